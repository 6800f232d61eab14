"""What of a compose file's networks a range can be, and by what names services are known."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.compose.test_translate import two

from belljar.compose.translate import read_compose
from belljar.compose.values import CannotKeepError
from belljar.policy.network import Network


def joined(**networks: list[str]) -> dict[str, Any]:
    """A compose file whose services join these."""
    declared = {network: None for of in networks.values() for network in of}
    services = {name: {"image": name, "networks": of} for name, of in networks.items()}
    return {"services": services, "networks": declared}


@pytest.mark.promise("1.5")
@pytest.mark.parametrize(
    "apart",
    [
        {"default": ["front"], "web": ["front", "back"], "db": ["back"]},
        {"default": ["a", "b"], "web": ["b", "c"], "db": ["a", "c"]},
    ],
)
def test_services_that_are_kept_apart_stay_apart(apart: dict[str, list[str]]) -> None:
    """Each cell has its service's networks."""
    network = read_compose(joined(**apart)).network
    assert network is not None
    assert network["own_cell"]["networks"] == apart["default"]
    assert {name: words["networks"] for name, words in network["stand_ins"].items()} == {
        name: of for name, of in apart.items() if name != "default"
    }


def test_a_service_without_a_network() -> None:
    """Its cell is in no network; those that have one share it as ever."""
    network = read_compose(two(network_mode="none")).network
    assert network is not None
    assert network["stand_ins"]["shop"]["networks"] == []
    assert "networks" not in network["own_cell"]
    apart = {name: {"image": name, "network_mode": "none"} for name in ("default", "scorer")}
    network = read_compose({"services": apart}).network
    assert not Network.model_validate(network, strict=False).has_cells


def test_a_network_must_be_declared() -> None:
    """As Compose wants it; the implicit one is there anyway."""
    with pytest.raises(CannotKeepError, match="not declared: inner"):
        read_compose(two(networks=["inner"]))
    assert read_compose(two(networks=["default"])).network
    with pytest.raises(CannotKeepError, match="both networks and network_mode"):
        read_compose(
            {"services": {"x": {"image": "i", "network_mode": "none", "networks": ["default"]}}}
        )


@pytest.mark.promise("1.5")
def test_what_a_range_is_not_is_refused_by_name() -> None:
    """Also where no service joins it."""
    odd: list[tuple[str, Any]] = [
        ("external", True),
        *(("driver", "host"), ("driver", "macvlan"), ("enable_ipv6", True), ("enable_ipv4", False)),
        *(("ipam", {"config": [{"subnet": "172.16.238.0/24"}]}), ("made_up", 1)),
    ]
    for key, value in odd:
        with pytest.raises(CannotKeepError, match=f"network n: `{key}` is refused"):
            read_compose({**two(), "networks": {"n": {key: value}}})
    fixed: list[tuple[str, Any]] = [
        *(("ipv4_address", "172.16.238.10"), ("ipv6_address", "2001:db8::1"), ("made_up", 1)),
        *(("link_local_ips", ["169.254.1.1"]), ("mac_address", "02:42:ac:11:00:02")),
        *(("driver_opts", {"a": "b"}), ("interface_name", "eth1")),
    ]
    for key, value in fixed:
        with pytest.raises(CannotKeepError, match=f"service shop: `networks` is refused.*{key}"):
            read_compose(two(networks={"default": {key: value}}))


def test_names_differ_by_more_than_case() -> None:
    """A service keeps its name, and its host names are found however they are written."""
    services = {"default": {"image": "a"}, "DC01": {"image": "b", "hostname": "DC01.corp.local"}}
    network = read_compose({"services": services}).network
    assert network is not None
    assert network["stand_ins"]["DC01"]["names"] == ["dc01", "dc01.corp.local"]
    with pytest.raises(CannotKeepError, match="the same name: dc01"):
        read_compose({"services": {**services, "dc01": {"image": "c"}}})
    shops = {"default": {"image": "a", "hostname": "shop"}, "shop": {"image": "b"}}
    with pytest.raises(CannotKeepError, match="default and shop have the same name: shop"):
        read_compose({"services": shops})


def test_a_name_that_no_cell_can_have() -> None:
    """Is refused here, by name, and not as a fault of the policy."""
    odd = ("_web", "x" * 64, "default", "localhost", "123", "a..b")
    for name in odd:
        services = {"agent": {"image": "a", "x-default": True}, name: {"image": "b"}}
        with pytest.raises(CannotKeepError, match=r"compose service .*can't"):
            read_compose({"services": services})
