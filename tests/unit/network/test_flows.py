"""Logged packets made into events: few, whatever a guest sends, and none uncounted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.network.flows import FIRST_TOLD, Flows
from belljar.network.nflog import Logged
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan

SHOP = StandInPlan(id="shop", kind="http", names=("shop.example",), ports=(PortPlan(number=80, protocol="http"),))
LAYOUT = lay_out(NetworkPlan(stand_ins=(SHOP,)), ["agent"], random_bytes=bytes(16), avoid=[])
PACKET = Logged(
    reason="port", device=2, sequence=None, protocol="tcp", source="10.0.0.1", destination="10.0.0.2", port=1, bytes=60
)


def test_the_first_are_told_one_by_one() -> None:
    """A destination is told once, by cell and name; the same again is counted."""
    flows = Flows(LAYOUT)
    flows.attached(2, "agent")
    to_shop = replace(PACKET, destination=LAYOUT.names[0].address)
    first = flows.take(to_shop)
    assert first is not None
    assert (first["cell"], first["name"], first["verdict"], first["count"]) == ("agent", "shop.example", "refused", 1)
    assert flows.take(to_shop) is None
    (counted,) = flows.flush()
    assert (counted["count"], counted["bytes"], counted["address"], counted["port"]) == (1, 60, "", None)
    assert list(flows.flush()) == []


@settings(deadline=None, max_examples=30)
@given(
    st.lists(
        st.builds(
            lambda reason, device, protocol, port: replace(
                PACKET, reason=reason, device=device, protocol=protocol, port=port
            ),
            st.sampled_from(["port", "udp", "made up"]),
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
    assert len(told) <= FIRST_TOLD * len(kinds)
    assert len(sums) <= 9 * len(kinds)


def test_gaps_are_counted() -> None:
    """What the kernel logged and this process never saw."""
    flows = Flows(LAYOUT)
    for sequence in (7, 8, 12):
        flows.take(replace(PACKET, sequence=sequence))
    assert flows.lost == 3
