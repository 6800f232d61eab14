"""What a gateway has told of its connections, beside what the supervisor saw."""

from __future__ import annotations

from ipaddress import IPv4Address
from typing import Any

import pytest

from belljar.events import Kind
from belljar.network.owner.told import ToldConnections
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan, UpstreamPlan

PORTS = (PortPlan(number=80, protocol="http"), PortPlan(number=443, protocol="tls"))
SHOP = StandInPlan(id="shop", kind="http", names=("shop.example",), ports=PORTS)
REAL = UpstreamPlan(
    host="real.example", ports=(443,), methods=(), budget_bytes=0, reason="", run_budget_bytes=0
)
NETWORK = NetworkPlan(stand_ins=(SHOP,), upstreams=(REAL,))
LAYOUT = lay_out(NETWORK, ["agent"], random_bytes=bytes(16), avoid=[])
ADDRESS, CELL = LAYOUT.names[0].address, LAYOUT.cells[0].address
UPSTREAM = next(name.address for name in LAYOUT.names if name.pattern == "real.example")
UNTOLD = "it has answered on a connection that it has not told of"


def frame(port: int, source_port: int, *, to_target: bool = False, address: str = ADDRESS) -> bytes:
    """The connection of a frame to the cell, or on from it."""
    ends = [(IPv4Address(address), port), (IPv4Address(CELL), source_port)]
    ends = ends[::-1] if to_target else ends
    addresses = b"".join(address.packed for address, _ in ends)
    return addresses + b"".join(number.to_bytes(2, "big") for _, number in ends)


class Told(ToldConnections):
    def __init__(self) -> None:
        super().__init__(LAYOUT, NETWORK)

    def open(self, number: int, port: int, *, has_secrets: bool = False, **more: Any) -> None:  # noqa: ANN401
        data = {"cell": "agent", "connection": number, "address": ADDRESS, "port": port}
        data |= {"source_port": 40_000 + number, **more}
        self.take(Kind.NETWORK_CONNECTION, data, has_secrets=has_secrets)

    def say(self, number: int, kind: Kind) -> None:
        self.take(kind, {"connection": number}, has_secrets=False)


@pytest.mark.promise("2.6", "5.4")
def test_what_was_told_before_is_no_violation() -> None:
    """A request, a failed handshake, a long answer in TLS, and both ways between two cells."""
    told = Told()
    told.open(1, 80)
    assert told.answer(frame(80, 40_001), is_long=False) == ""
    assert told.answer(frame(80, 40_001), is_long=True) == ""
    assert told.answer(frame(80, 40_001, to_target=True), is_long=False) == ""
    assert told.unreported(0) == 1
    told.say(1, Kind.NETWORK_HTTP)
    for number in (2, 3):
        told.open(number, 443)
        told.say(number, Kind.NETWORK_TLS)
        assert told.answer(frame(443, 40_000 + number), is_long=False) == ""
    told.open(3, 443, has_secrets=True)
    assert told.answer(frame(443, 40_003), is_long=True) == ""
    assert told.unreported(0) == 0


@pytest.mark.promise("2.6", "5.4")
def test_what_was_not_told_is_a_violation() -> None:
    """No event, the events of earlier connections with the same ends, no verdict, no secrets."""
    told = Told()
    assert told.answer(frame(80, 40_001), is_long=False) == UNTOLD
    for number in (1, 2):
        told.open(number, 80, source_port=40_001)
    for to_target in (False, True):
        again = frame(80, 40_001, to_target=to_target)
        assert [told.answer(again, is_long=False) for _ in range(3)] == ["", "", UNTOLD]
    for number, address in ((3, ADDRESS), (4, UPSTREAM)):
        told.open(number, 443, address=address)
        seen = frame(443, 40_000 + number, address=address)
        assert "without a word" in told.answer(seen, is_long=False)
        told.say(number, Kind.NETWORK_TLS)
        assert "kept the secrets" in told.answer(seen, is_long=True)


@pytest.mark.promise("2.6", "5.4")
@pytest.mark.parametrize("port", [80, 443])
def test_the_next_connection_may_have_the_same_ends(port: int) -> None:
    """A client with a port of its own (`curl --local-port`): the gateway tells of the second before
    the supervisor tells of the first one's answer, and tells of the first one's secrets then."""
    told, seen = Told(), frame(port, 40_001)
    told.open(1, port)
    told.say(1, Kind.NETWORK_TLS if port == 443 else Kind.NETWORK_HTTP)
    told.open(2, port, source_port=40_001)
    told.open(1, port, has_secrets=True)
    assert [told.answer(seen, is_long=is_long) for is_long in (False, True)] == ["", ""]
    told.say(2, Kind.NETWORK_TLS if port == 443 else Kind.NETWORK_STREAM)
    assert told.answer(seen, is_long=False) == ""
    assert told.unreported(0) == 0
    assert told.answer(seen, is_long=False) == UNTOLD


@pytest.mark.promise("5.4")
def test_what_went_to_a_target_without_an_event_is_counted() -> None:
    """Between two cells, one way alone."""
    told = Told()
    told.open(1, 80)
    assert told.answer(frame(80, 40_001, to_target=True), is_long=False) == ""
    assert told.unreported(0) == 1
    told.say(1, Kind.NETWORK_STREAM)
    assert told.unreported(0) == 0


@pytest.mark.promise("5.4")
def test_a_datagram_without_a_query_on_record_is_counted() -> None:
    """Fewer answers than queries are none that is missing."""
    told = Told()
    told.take(Kind.NETWORK_DNS, {}, has_secrets=False)
    assert [told.unreported(datagrams) for datagrams in (0, 1, 3)] == [0, 0, 2]


@pytest.mark.promise("2.6")
def test_events_that_hide_a_connection_are_refused() -> None:
    """One number for two connections; a cell that there is not."""
    told = Told()
    told.open(1, 80)
    with pytest.raises(ValueError, match="one number"):
        told.open(1, 443)
    with pytest.raises(KeyError):
        told.open(2, 80, cell="nobody")
