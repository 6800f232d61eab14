"""A range's rules as data; `tests/integration/test_rules.py` has them on a kernel."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.plan.addresses import RangeLayout, lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan, UpstreamPlan
from belljar.plan.rules import FORBIDDEN, forbidden_networks, render_rules
from belljar.policy.guarding import METADATA_ADDRESS

HTTP, SQL = PortPlan(number=80, protocol="http"), PortPlan(number=5432, protocol="tcp")
SHOP = StandInPlan(id="shop", kind="http", names=("shop.example", "*.shop.example"), ports=(HTTP,))
DATABASE = StandInPlan(id="db", kind="cell", names=("db",), ports=(SQL,))
CLOUD = StandInPlan(id="cloud", kind="metadata", names=(), ports=(HTTP,))
_REAL: dict[str, Any] = {"host": "real.example", "ports": (443,), "methods": ("GET",)}
REAL = UpstreamPlan(**_REAL, budget_bytes=1, run_budget_bytes=100 << 20, reason="only there")


def cell_in(name: str, *networks: str) -> StandInPlan:
    of = {"networks": list(networks)}
    return StandInPlan(id=name, kind="cell", names=(name,), ports=(), settings=of, all_ports=True)


FRONT, BACK, BOTH = (
    cell_in("default", "front"),
    cell_in("store", "back"),
    cell_in("web", "front", "back"),
)
PLANS = {
    "least": NetworkPlan(),
    "shop": NetworkPlan(stand_ins=(SHOP,)),
    "everything": NetworkPlan(
        stand_ins=(SHOP, BACK, BOTH, FRONT, DATABASE, CLOUD),
        upstreams=(REAL,),
        default="simulate",
        sink=True,
    ),
}
NEVER = ("127.0.0.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.168.1.1", "172.16.0.1", "10.0.0.1", "0.0.0.0", "255.255.255.254")  # noqa: S104 - an address, not a listener  # fmt: skip


def layout_of(plan: NetworkPlan, random_bytes: bytes = bytes(range(16))) -> RangeLayout:
    return lay_out(plan, ("default",), random_bytes=random_bytes, avoid=())


def objects(
    plan: NetworkPlan, kind: str, layout: RangeLayout | None = None
) -> list[dict[str, Any]]:
    document = render_rules(layout or layout_of(plan), plan)
    return [entry["add"][kind] for entry in document["nftables"] if kind in entry.get("add", {})]


def chain(plan: NetworkPlan, name: str) -> list[Any]:
    return [
        rule["expr"]
        for rule in objects(plan, "rule")
        if rule["chain"] == name and rule["family"] == "inet"
    ]


def test_rules_are_golden(golden: Callable[[str, str], None]) -> None:
    """What the kernel is told changes only when it is meant: one command a line, in order."""
    plan = PLANS["everything"]
    document = render_rules(layout_of(plan), plan)
    lines = ",\n".join(json.dumps(command) for command in document["nftables"])
    golden("rules-everything.json", f'{{"nftables": [\n{lines}\n]}}\n')


@pytest.mark.parametrize("name", PLANS)
def test_every_hook_drops_what_no_rule_lets_through(name: str) -> None:
    """By policy, and the last rule of each says so besides, with a reason."""
    plan = PLANS[name]
    found = [item for item in objects(plan, "chain") if "hook" in item]
    hooks = {item["hook"]: item for item in found if item["family"] == "inet"}
    assert set(hooks) == {"prerouting", "input", "forward", "output"}
    assert {item["policy"] for item in found} == {"drop"}
    assert hooks["prerouting"]["prio"] == -450
    for hook in hooks:
        assert chain(plan, hook)[-1][0]["goto"]["target"].startswith("drop_")
    assert render_rules(layout_of(plan), plan)["nftables"][0] == {"flush": {"ruleset": None}}


@pytest.mark.promise("5.4")
def test_nothing_is_forwarded() -> None:
    """Not even between cells that reach each other: the chain has no rule but the refusal."""
    for plan in PLANS.values():
        assert chain(plan, "forward") == [[{"goto": {"target": "drop_forwarded"}}]]


@given(st.binary(min_size=16, max_size=32), st.booleans(), st.integers(0, 0xFFFFFFFF))
def test_what_is_forbidden_is_all_but_the_ranges_own(
    random_bytes: bytes, cloud: bool, number: int
) -> None:
    """Disjoint; never an address of the range's own."""
    plan = NetworkPlan(stand_ins=(SHOP, CLOUD) if cloud else (SHOP,))
    layout = layout_of(plan, random_bytes)
    found = forbidden_networks(layout)
    assert all(
        one.broadcast_address < two.network_address for one, two in itertools.pairwise(found)
    )
    address, prefix = IPv4Address(number), IPv4Network(layout.prefix)
    own = address in prefix or (cloud and str(address) == METADATA_ADDRESS)
    expected = any(address in network for network in FORBIDDEN) and not own
    assert any(address in network for network in found) is expected
    for never in NEVER:
        reached = IPv4Address(never) in prefix or (cloud and never == METADATA_ADDRESS)
        assert any(IPv4Address(never) in network for network in found) is not reached
    assert not any(prefix.overlaps(network) for network in found)


@given(st.binary(min_size=16, max_size=32), st.sampled_from(sorted(PLANS)))
def test_nothing_allowed_is_outside_the_range(random_bytes: bytes, name: str) -> None:
    """In the range's /22, or the metadata stand-in's address."""
    plan = PLANS[name]
    layout = layout_of(plan, random_bytes)
    prefix = IPv4Network(layout.prefix)
    for item in objects(plan, "set", layout):
        if item["name"] in ("answered", "of_cells"):
            addresses = {element["concat"][0] for element in item.get("elem", [])}
            assert all(IPv4Address(at) in prefix for at in addresses - {METADATA_ADDRESS})
