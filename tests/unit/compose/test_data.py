"""Which volumes a cell's own directories can be, and which images are run and built."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.compose.test_translate import two

from belljar.compose.document import ServiceBuild, TaskFiles, builds_of, read_document
from belljar.compose.translate import Composed, read_compose
from belljar.compose.values import CannotKeepError
from belljar.differences import DifferenceKind
from belljar.policy.sections import TaskFile


def test_a_volume_of_one_service_is_a_directory_of_its_cell() -> None:
    """In each way to write it, named and nameless, for targets and the default service."""
    file = two(volumes=["data:/data/", "/cache", "logs:/logs:rw"], tmpfs="/scratch")
    plain = {"external": False, "name": "x", "labels": ["a=b"]}
    file["volumes"] = {"data": plain, "logs": {"driver": "local"}, "o": None}
    file["services"]["default"]["volumes"] = ["o:/own"]
    found = read_compose(file)
    assert found.network is not None
    directories = found.network["stand_ins"]["shop"]["directories"]
    assert directories == ["/data", "/cache", "/logs", "/scratch:mode=1777"]
    assert found.program["directories"] == ["/own"]
    assert [(fact.kind, fact.key) for fact in found.differences] == [
        (DifferenceKind.CHANGED, "tmpfs")
    ]


BOUND = {"driver_opts": {"type": "none", "o": "bind", "device": "/"}}


@pytest.mark.promise("1.5")
def test_a_volume_that_may_be_shared_or_this_hosts_is_refused() -> None:
    """Whether a service has it or not; nor has one service a volume twice."""
    for volumes in ({"a": ["v:/a"], "b": ["v:/b"]}, {"a": ["v:/a", "v:/b"]}):
        services = {name: {"image": "i", "volumes": of} for name, of in volumes.items()}
        with pytest.raises(CannotKeepError, match="cells share no directory"):
            read_compose({"services": services, "volumes": {"v": None}})
    for settings in ({"external": True}, {"driver": "nfs"}, BOUND):
        with pytest.raises(CannotKeepError, match=r"volume v: .* is refused"):
            read_compose({**two(), "volumes": {"v": settings}})


@pytest.mark.parametrize(
    "written",
    [
        *("/:/host", "./data:/data", "~/.ssh:/keys:ro", "C:\\data:/data", "data:/data"),
        *("mine:/data:ro", "mine:/", "mine:data", "mine:/data:ro:ro", "mine:/data:nfs", 7),
        {"type": "bind", "source": "/etc", "target": "/data"},
    ],
)
def test_any_other_is_refused_by_the_services_name(written: Any) -> None:  # noqa: ANN401 - YAML
    """This host's directories above all."""
    with pytest.raises(CannotKeepError, match="service shop: `volumes` is refused"):
        read_compose({**two(volumes=[written]), "volumes": {"mine": {}}})


@pytest.fixture
def files(tmp_path: Path) -> TaskFiles:
    (tmp_path / "app" / "sub").mkdir(parents=True)
    (tmp_path / "app" / "sub" / "f").write_text("four")
    (tmp_path / "one").write_text("1")
    return TaskFiles(tmp_path)


def data_of(files: TaskFiles | None, *mounts: Any) -> Composed:  # noqa: ANN401 - YAML
    return read_compose({"services": {"s": {"image": "i", "volumes": list(mounts)}}}, files)


@pytest.mark.promise("1.7")
def test_a_directory_of_the_task_is_copied(files: TaskFiles) -> None:
    """It is not shared, and its author is told what is different."""
    for written, said in (
        ("./app:/srv/app:ro,z", "root of the cell could change"),
        ("./app/../app/:/srv/app/", "ends with the cell"),
    ):
        found = data_of(files, written)
        assert found.data is not None
        assert found.data.own.files == (TaskFile(target="/srv/app", source="app"),)
        assert found.data.root == str(files.root)
        (fact,) = found.differences
        assert (fact.kind, fact.key) == (DifferenceKind.CHANGED, "volumes")
        assert said in fact.detail


@pytest.mark.promise("1.7")
def test_what_is_not_there_is_an_empty_directory(files: TaskFiles) -> None:
    """As Compose makes one; but there is nothing to read in one that can only be read."""
    found = data_of(files, "./none:/none")
    assert found.program["directories"] == ["/none"]
    with pytest.raises(CannotKeepError, match="no such file"):
        data_of(files, "./none:/none:ro")


@pytest.mark.promise("1.7")
def test_nothing_outside_of_the_tasks_directory_is_taken(files: TaskFiles) -> None:
    """Neither by a path nor by a link, and no pipe or socket in it."""
    (files.root / "out").symlink_to("/etc")
    os.mkfifo(files.root / "pipe")
    outside = ("..", "../x", "./app/../../x", "/etc", "~/.ssh", "/var/run/docker.sock")
    for source in (*outside, "./out", "./out/passwd", "./pipe"):
        for options in ("", ":ro"):
            with pytest.raises(CannotKeepError, match="service s: `volumes` is refused"):
                data_of(files, f"{source}:/target{options}")


def builds(tmp_path: Path, build: str) -> tuple[ServiceBuild, ...]:
    directory = tmp_path / "pack" / "task"
    directory.mkdir(parents=True)
    (tmp_path / "pack" / "__init__.py").touch()
    (directory / "compose.yaml").write_text(f"services:\n  web:\n    build: {build}\n")
    return builds_of(read_document(directory / "compose.yaml"))


@pytest.mark.promise("1.8")
def test_paths_are_below_the_tasks_package(tmp_path: Path) -> None:
    """Context and Dockerfile are paths below the package that the file is in."""
    rows = (
        (".", "task", "task/Dockerfile"),
        ("../shared", "shared", "shared/Dockerfile"),
        ("{context: ., dockerfile: sub/My.Dockerfile}", "task", "task/sub/My.Dockerfile"),
        ("{context: .., dockerfile: task/Dockerfile, no_cache: true}", ".", "task/Dockerfile"),
        ("{context: ., args: [A=1, PATH], target: final}", "task", "task/Dockerfile"),
    )
    for number, (written, context, dockerfile) in enumerate(rows):
        (build,) = builds(tmp_path / str(number), written)
        root = str(tmp_path / str(number) / "pack")
        assert (build.root, build.context, build.dockerfile) == (root, context, dockerfile)
        assert build.image.partition(":")[0] == "task-web"
        assert (":" in build.image) == ("dockerfile" in written or "args" in written)
    assert (dict(build.args), build.target) == ({"A": "1"}, "final")


@pytest.mark.promise("1.8")
def test_files_of_one_directory_build_images_of_their_own(tmp_path: Path) -> None:
    """Another Dockerfile, argument or target is another image; the same build has one name."""
    kinds = (
        "{context: ., dockerfile: 1.Dockerfile}",
        "{context: ., args: {A: 1}}",
        "{context: ., target: a}",
        ".",
    )
    names = set()
    for number, build in enumerate((*kinds, *kinds)):
        path = tmp_path / f"compose_{number}.yaml"
        path.write_text(f"services:\n  default:\n    build: {build}\n")
        (found,) = builds_of(read_document(path))
        names.add(found.image)
    assert len(names) == len(kinds)


@pytest.mark.promise("1.8")
@pytest.mark.parametrize(
    "written",
    [
        *("../..", "https://example.org/repo.git", "[a]"),
        "{context: ., dockerfile: ../../Dockerfile}",
        "{context: ., dockerfile: D, dockerfile_inline: FROM x}",
        *("{context: ., secrets: [a]}", "{context: ., network: host}"),
        "{context: ., additional_contexts: {a: /}}",
    ],
)
def test_what_leads_out_or_is_not_known_is_refused(tmp_path: Path, written: str) -> None:
    """A path out, an address, a key that would decide the image: before anything is read."""
    with pytest.raises((CannotKeepError, ValueError)):
        builds(tmp_path, written)
