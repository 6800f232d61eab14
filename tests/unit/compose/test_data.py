"""Which volumes of a compose file a cell's own directories can be."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.unit.compose.test_translate import two

from belljar.compose import keys
from belljar.compose.data import add_volumes
from belljar.compose.document import TaskFiles
from belljar.compose.keys import Converted
from belljar.compose.model import Service
from belljar.compose.translate import Composed, read_compose
from belljar.compose.values import CannotKeepError, Refusals
from belljar.differences import DifferenceKind
from belljar.policy.task_data import TaskFile


def test_a_volume_of_one_service_is_a_directory_of_its_cell() -> None:
    """In each way to write it, named and nameless, for targets and the default service."""
    long = {"type": "volume", "source": "long", "target": "/long"}
    file = two(volumes=["data:/data/", "/cache", "logs:/logs:rw", long])
    file["volumes"] = {"data": None, "logs": {"driver": "local"}, "long": {}, "o": {}}
    file["services"]["default"]["volumes"] = ["o:/own"]
    found = read_compose(file)
    assert found.network is not None
    directories = found.network["stand_ins"]["shop"]["directories"]
    assert directories == ["/data", "/cache", "/logs", "/long"]
    assert found.program["directories"] == ["/own"]


def mount(**fields: Any) -> dict[str, Any]:  # noqa: ANN401 - YAML
    """A volume in the long form, called `mine` unless it says otherwise."""
    return {"type": "volume", "source": "mine", "target": "/data", **fields}


@pytest.mark.parametrize(
    "written",
    [
        *("/:/host", "./data:/data", "~/.ssh:/keys:ro", "C:\\data:/data", "data:/data"),
        *("/var/run/docker.sock:/var/run/docker.sock", "mine:/data:ro", "mine:/", "mine:data"),
        *(mount(type="bind", source="/etc"), mount(type="bind"), mount(source="/etc")),
        *(mount(read_only=True), mount(volume={"subpath": "../.."}), mount(type="tmpfs")),
        *(mount(tmpfs={"size": 1}), mount(type="npipe"), {"target": "/data"}, 7, None, ["x"]),
    ],
)
def test_any_other_is_refused_by_the_services_name(written: Any) -> None:  # noqa: ANN401 - YAML
    """This host's directories above all."""
    with pytest.raises(CannotKeepError, match="service shop: `volumes` is refused"):
        read_compose({**two(volumes=[written]), "volumes": {"mine": {}}})


def test_a_tmpfs_is_a_directory_of_the_cell() -> None:
    """Its mode is kept and its size is not, which is reported."""
    mount = {"type": "tmpfs", "target": "/scratch", "tmpfs": {"size": 1 << 20, "mode": 0o700}}
    found = read_compose({"services": {"s": {"image": "i", "volumes": [mount]}}})
    assert found.program["directories"] == ["/scratch:mode=700"]
    assert [(fact.kind, fact.key) for fact in found.differences] == [
        (DifferenceKind.CHANGED, "volumes")
    ]


def mounts(services: dict[str, Any], volumes: dict[str, Any]) -> dict[str, Converted]:
    """What becomes of the services' volumes. Raises `CannotKeepError`."""
    models = {name: Service.model_validate(service) for name, service in services.items()}
    found = {name: Converted(name, model) for name, model in models.items()}
    refused = Refusals()
    add_volumes(found, volumes, refused)
    refused.raise_all()
    return found


@pytest.mark.promise("1.5")
def test_two_services_share_no_directory() -> None:
    """Nor has one service a volume twice."""
    for services in (
        {"a": {"volumes": ["v:/a"]}, "b": {"volumes": ["v:/b"]}},
        {"a": {"volumes": ["v:/a", "v:/b"]}},
    ):
        with pytest.raises(CannotKeepError, match="cells share no directory"):
            mounts(services, {"v": None})


def test_a_volume_that_may_be_this_hosts() -> None:
    """Whether a service has it or not."""
    bound = {"driver_opts": {"type": "none", "o": "bind", "device": "/"}}
    for settings in ({"external": True}, {"driver": "nfs"}, bound):
        with pytest.raises(CannotKeepError, match=r"volume v: .* is refused"):
            mounts({}, {"v": settings})
    plain = {"external": False, "name": "x", "labels": ["a=b"], "driver_opts": {}}
    assert mounts({"a": {}}, {"v": plain})["a"].directories == []


@pytest.fixture
def files(tmp_path: Path) -> TaskFiles:
    """A task's directory with an `app` and a file."""
    (tmp_path / "app" / "sub").mkdir(parents=True)
    (tmp_path / "app" / "sub" / "f").write_text("four")
    (tmp_path / "one").write_text("1")
    return TaskFiles(tmp_path)


def data_of(files: TaskFiles | None, *mounts: Any) -> Composed:  # noqa: ANN401 - YAML
    """What a service with these volumes comes to."""
    return read_compose({"services": {"s": {"image": "i", "volumes": list(mounts)}}}, files)


@pytest.mark.promise("1.7")
def test_a_directory_of_the_task_is_copied(files: TaskFiles) -> None:
    """It is not shared, and its author is told what is different."""
    long = {"type": "bind", "source": "app", "target": "/srv/app", "read_only": True}
    for written, said in (
        ("./app:/srv/app:ro", "root of the cell could change"),
        ("./app:/srv/app:ro,z", "root of the cell could change"),
        (long, "root of the cell"),
        ("./app:/srv/app", "ends with the cell"),
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
    long = {"type": "bind", "source": "none", "target": "/n", "bind": {"create_host_path": False}}
    for mount in ("./none:/none:ro", long):
        with pytest.raises(CannotKeepError, match="no such file"):
            data_of(files, mount)


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


@pytest.mark.promise("1.7")
def test_a_cell_takes_so_much(files: TaskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all its mounts together."""
    monkeypatch.setattr(keys, "MAX_BYTES", 6)
    assert data_of(files, "./app:/a").data
    with pytest.raises(CannotKeepError, match="at most"):
        data_of(files, "./app:/a", "./app:/b")
    monkeypatch.setattr(keys, "MAX_ENTRIES", 2)
    with pytest.raises(CannotKeepError, match="at most"):
        data_of(files, "./app:/a")
