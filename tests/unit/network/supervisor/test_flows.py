"""Logged packets made into events: few, whatever a guest sends, and none uncounted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.supervisor.netfilter import FIRST_LISTED, Flows, Logged
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan

SHOP = StandInPlan(
    id="shop", kind="http", names=("shop.example",), ports=(PortPlan(number=80, protocol="http"),)
)
LAYOUT = lay_out(NetworkPlan(stand_ins=(SHOP,)), ["agent"], random_bytes=bytes(16), avoid=[])
PACKET = Logged(
    reason="port",
    device=2,
    protocol="tcp",
    source="10.0.0.1",
    destination="10.0.0.2",
    port=1,
    size_bytes=60,
)


def test_a_destination_is_reported_once() -> None:
    """By cell and name; repeats are counted."""
    flows = Flows(LAYOUT)
    flows.cells[2] = "agent"
    to_shop = replace(PACKET, destination=LAYOUT.names[0].address)
    first = flows.take(to_shop)
    assert first is not None
    named = {"cell": "agent", "name": "shop.example", "verdict": "refused", "count": 1}
    assert first.items() >= named.items()
    assert flows.take(to_shop) is None
    (counted,) = flows.flush()
    assert counted.items() >= {"count": 1, "bytes": 60, "address": "", "port": None}.items()
    assert list(flows.flush()) == []


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.builds(
            lambda reason, device, protocol, port: replace(
                PACKET, reason=reason, device=device, protocol=protocol, port=port
            ),
            st.sampled_from(["port", "udp", "made up", "connection"]),
            st.integers(0, 3),
            st.sampled_from(["tcp", *(f"ip-{number}" for number in range(20))]),
            st.integers(0, 400),
        ),
        max_size=600,
    )
)
def test_every_packet_is_in_exactly_one_event(packets: list[Logged]) -> None:
    """The counts of all events add up, and there are no more than the bound."""
    flows = Flows(LAYOUT)
    told = [flow for packet in packets if (flow := flows.take(packet)) is not None]
    sums = list(flows.flush())
    assert sum(flow["count"] for flow in [*told, *sums]) == len(packets)
    kinds = {(flow["cell"], flow["reason"]) for flow in told}
    assert len([flow for flow in told if flow["verdict"] != "allowed"]) <= FIRST_LISTED * len(kinds)
    assert len(sums) <= len(kinds)


def test_what_was_logged_and_never_came_is_lost() -> None:
    """As many as the rules have logged beyond those that were taken."""
    flows = Flows(LAYOUT)
    for _ in range(3):
        flows.take(PACKET)
    flows.count_lost(3)
    assert flows.lost == 0
    flows.count_lost(5)
    assert flows.lost == 2
    flows.take(PACKET)
    flows.count_lost(5)
    assert flows.lost == 2
