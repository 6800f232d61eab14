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
    mounts = [
        "data:/data/",
        "/cache",
        "logs:/logs:rw",
        {"type": "volume", "source": "long", "target": "/long"},
    ]
    file: dict[str, Any] = {
        **two(volumes=mounts),
        "volumes": {"data": None, "logs": {"driver": "local"}, "long": {}, "o": {}},
    }
    file["services"]["default"]["volumes"] = ["o:/own"]
    found = read_compose(file)
    assert found.network is not None
    assert found.network["stand_ins"]["shop"]["directories"] == [
        "/data",
        "/cache",
        "/logs",
        "/long",
    ]
    assert found.program["directories"] == ["/own"]


@pytest.mark.parametrize(
    "mount",
    [
        "/:/host",
        "./data:/data",
        "~/.ssh:/keys:ro",
        "/var/run/docker.sock:/var/run/docker.sock",
        "C:\\data:/data",
        "data:/data",
        "mine:/data:ro",
        "mine:/",
        "mine:data",
        {"type": "bind", "source": "/etc", "target": "/etc"},
        {"type": "bind", "source": "mine", "target": "/etc"},
        {"type": "volume", "source": "/etc", "target": "/etc"},
        {"type": "volume", "source": "mine", "target": "/data", "read_only": True},
        {"type": "volume", "source": "mine", "target": "/data", "volume": {"subpath": "../.."}},
        {"type": "tmpfs", "target": "/data", "source": "mine"},
        {"type": "volume", "source": "mine", "target": "/data", "tmpfs": {"size": 1}},
        {"type": "npipe", "source": "x", "target": "/data"},
        {"target": "/data"},
        7,
        None,
        ["x"],
    ],
)
def test_any_other_is_refused_by_the_services_name(mount: Any) -> None:  # noqa: ANN401 - YAML
    """This host's directories above all."""
    with pytest.raises(CannotKeepError, match="service shop: `volumes` is refused"):
        read_compose({**two(volumes=[mount]), "volumes": {"mine": {}}})


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


@pytest.mark.parametrize(
    "settings",
    [
        {"external": True},
        {"driver": "nfs"},
        {"driver_opts": {"type": "none", "o": "bind", "device": "/"}},
    ],
)
def test_a_volume_that_may_be_this_hosts(settings: dict[str, Any]) -> None:
    """Whether a service has it or not."""
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
@pytest.mark.parametrize(
    ("mount", "said"),
    [
        ("./app:/srv/app:ro", "root of the cell could change"),
        ("./app:/srv/app:ro,z", "root of the cell could change"),
        (
            {"type": "bind", "source": "app", "target": "/srv/app", "read_only": True},
            "root of the cell",
        ),
        ("./app:/srv/app", "ends with the cell"),
        ("./app/../app/:/srv/app/", "ends with the cell"),
    ],
)
def test_a_directory_of_the_task_is_copied(files: TaskFiles, mount: Any, said: str) -> None:  # noqa: ANN401 - YAML
    """It is not shared, and its author is told what is different."""
    found = data_of(files, mount)
    assert found.data is not None
    assert found.data.own.files == (TaskFile(target="/srv/app", source="app"),)
    assert found.data.root == str(files.root)
    (fact,) = found.differences
    assert (fact.kind, fact.key, said in fact.detail) == (DifferenceKind.CHANGED, "volumes", True)


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
@pytest.mark.parametrize(
    "source",
    [
        "..",
        "../x",
        "./app/../../x",
        "/etc",
        "~/.ssh",
        "/var/run/docker.sock",
        "./out",
        "./out/passwd",
        "./pipe",
    ],
)
def test_nothing_outside_of_the_tasks_directory_is_taken(files: TaskFiles, source: str) -> None:
    """Neither by a path nor by a link, and no pipe or socket in it."""
    (files.root / "out").symlink_to("/etc")
    os.mkfifo(files.root / "pipe")
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
