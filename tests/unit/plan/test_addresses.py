"""Addresses: drawn, apart from each other and from the host's."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.dataclass import from_json, json_of
from belljar.errors import HostError
from belljar.plan.addresses import RangeLayout, lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan, UpstreamPlan, plan_network
from belljar.policy.guarding import METADATA_ADDRESS
from belljar.policy.model import Policy
from belljar.policy.network import Network

HTTP = (PortPlan(number=80, protocol="http"),)


def stand_in(name: str, kind: str = "http", names: int = 1) -> StandInPlan:
    hosts = tuple(f"{name}-{at}.example" for at in range(names))
    return StandInPlan(id=name, kind=kind, names=hosts, ports=HTTP)


def plan(
    http: int = 2, targets: int = 1, *, simulate: bool = False, sink: bool = False
) -> NetworkPlan:
    real: dict[str, Any] = {"host": "real.example", "ports": (443,), "methods": ("GET",)}
    upstream = UpstreamPlan(**real, budget_bytes=1, run_budget_bytes=100 << 20, reason="because")
    cells = (stand_in(f"t{at}", "cell", 2) for at in range(targets))
    meta = StandInPlan(id="meta", kind="metadata", names=(), ports=HTTP)
    return NetworkPlan(
        stand_ins=(stand_in("web", names=http), *cells, meta),
        upstreams=(upstream,),
        default="simulate" if simulate else "deny",
        sink=sink,
    )


def network_of(address: int, length: int) -> str:
    return str(IPv4Network((address & (0xFFFFFFFF << (32 - length)), length)))


LENGTH = st.integers(9, 32)
NETWORKS = st.builds(network_of, st.integers(0, 0xFFFFFFFF), LENGTH)
INSIDE = st.builds(network_of, st.integers(10 << 24, (11 << 24) - 1), LENGTH)


@settings(max_examples=40)
@given(
    st.binary(min_size=16, max_size=64),
    st.lists(NETWORKS | INSIDE, max_size=20),
    st.integers(1, 200),
    st.integers(0, 16),
    st.booleans(),
)
def test_a_layout_is_apart_from_everything(
    random_bytes: bytes, avoid: list[str], http: int, targets: int, simulate: bool
) -> None:
    """Deterministic, inside one /22 that overlaps nothing avoided."""
    network = plan(http, targets, simulate=simulate, sink=simulate)
    layout = lay_out(network, ("default", "second"), random_bytes=random_bytes, avoid=avoid)
    assert layout == lay_out(network, ("default", "second"), random_bytes=random_bytes, avoid=avoid)
    assert from_json(RangeLayout, json.loads(json.dumps(json_of(layout)))) == layout
    prefix = IPv4Network(layout.prefix)
    assert prefix.prefixlen == 22
    assert not any(prefix.overlaps(IPv4Network(item)) for item in avoid)
    names_net, cells_net, *_ = prefix.subnets(new_prefix=24)
    others = {METADATA_ADDRESS, *(layout.cell(item.id).address for item in network.targets)}
    own = [name.address for name in layout.names if name.address not in others]
    drawn = [layout.resolver, *own, *([layout.catch_all] if layout.catch_all else ())]
    cells = [port.address for port in layout.cells]
    assert len(cells) == targets + 2
    for addresses, net in ((drawn, names_net), (cells, cells_net)):
        assert len(set(addresses)) == len(addresses)
        assert all(IPv4Address(address) in net for address in addresses)
        assert not {str(net[0]), str(net[255])} & {*addresses}
    macs = [mac for port in layout.cells for mac in (port.mac, port.gateway_mac)]
    assert len(set(macs)) == len(macs)
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs)
    assert len({port.outer_device for port in layout.cells}) == len(cells)


def test_every_name_has_an_address_and_a_targets_is_its_cells() -> None:
    """Each pattern and upstream has its own; the metadata service the clouds' besides."""
    layout = lay_out(plan(), ("default",), random_bytes=bytes(16), avoid=())
    found = {name.pattern: (name.stand_in, name.address) for name in layout.names}
    hosts = {f"{name}.example" for name in ("web-0", "web-1", "t0-0", "t0-1", "real")}
    assert set(found) == {*hosts, METADATA_ADDRESS}
    assert found["t0-0.example"] == found["t0-1.example"] == ("t0", layout.cell("t0").address)
    assert found["web-0.example"][1] != found["web-1.example"][1]
    assert found["real.example"][0] == "upstream:real.example"
    assert found[METADATA_ADDRESS] == ("meta", METADATA_ADDRESS)
    names = str(IPv4Network(f"{layout.resolver}/24", strict=False))
    assert layout.local_prefixes == (names, f"{METADATA_ADDRESS}/32")
    with pytest.raises(KeyError):
        layout.cell("absent")


def test_a_host_with_a_route_to_one_private_net_gets_another() -> None:
    """And one with routes to all of them is told so."""
    routes = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16"]
    for known, prefix in enumerate(("10.", "172.", "192.168.")):
        found = lay_out(plan(), ("a",), random_bytes=bytes(16), avoid=routes[:known])
        assert found.prefix.startswith(prefix)
    with pytest.raises(HostError, match="routes to all private networks") as refused:
        lay_out(plan(), ("a",), random_bytes=bytes(16), avoid=routes)
    assert refused.value.hint


def test_a_cell_without_a_network_is_no_part_of_it() -> None:
    """It is made and awaited as others, in the policy's order; it has no address, name or rule."""
    sealed = {"kind": "cell", "names": ["a"], "ports": ["all"], "networks": []}
    web = {"kind": "cell", "names": ["b"], "ports": [80]}
    own = {"names": ["me"], "ports": ["all"], "networks": []}
    written = {"stand_ins": {"a": sealed, "b": web}, "own_cell": own}
    found = plan_network(Network.model_validate(written, strict=False), None)
    assert [item.id for item in found.targets] == ["a", "b"]
    assert [item.id for item in found.attached().stand_ins] == ["b"]
    layout = lay_out(found.attached(), (), random_bytes=bytes(32), avoid=())
    assert [port.name for port in layout.cells] == ["b"]
    assert not found.has_own_cell
    alone = Network.model_validate({"stand_ins": {"a": sealed}, "own_cell": own}, strict=False)
    assert not alone.has_cells
    decoy = {"id": "db", "kind": "redis", "place": "db.example"}
    fields = {"belljar": 1, "name": "x", "risk": "low", "network": alone, "decoys": [decoy]}
    with pytest.raises(ValueError, match="needs a network"):
        Policy.model_validate(fields, strict=False)
