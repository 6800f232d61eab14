"""Which volumes of a compose file a cell's own directories can be."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.compose.test_read import two

from belljar.compose.read import CannotKeepError, read_compose
from belljar.compose.volumes import directories_of


def test_a_volume_of_one_service_is_a_directory_of_its_cell() -> None:
    """In each way to write it, named and nameless, for targets and the default service."""
    mounts = ["data:/data/", "/cache", "logs:/logs:rw", {"type": "volume", "source": "long", "target": "/long"}]
    file: dict[str, Any] = {
        **two(volumes=mounts),
        "volumes": {"data": None, "logs": {"driver": "local"}, "long": {}, "o": {}},
    }
    file["services"]["default"]["volumes"] = ["o:/own"]
    found = read_compose(file)
    assert found.network is not None
    assert found.network["stand_ins"]["shop"]["directories"] == ["/data", "/cache", "/logs", "/long"]
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
        {"type": "tmpfs", "target": "/data"},
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


def test_two_services_share_no_directory() -> None:
    """Nor has one service a volume twice."""
    for services in ({"a": {"volumes": ["v:/a"]}, "b": {"volumes": ["v:/b"]}}, {"a": {"volumes": ["v:/a", "v:/b"]}}):
        with pytest.raises(CannotKeepError, match="v is a's already"):
            directories_of(services, {"v": None})


@pytest.mark.parametrize(
    "settings", [{"external": True}, {"driver": "nfs"}, {"driver_opts": {"type": "none", "o": "bind", "device": "/"}}]
)
def test_a_volume_that_may_be_this_hosts(settings: dict[str, Any]) -> None:
    """Whether a service has it or not."""
    with pytest.raises(CannotKeepError, match=r"volume v: .* is refused"):
        directories_of({}, {"v": settings})
    assert directories_of({"a": {}}, {"v": {"external": False, "name": "x", "labels": ["a=b"], "driver_opts": {}}}) == {
        "a": []
    }
