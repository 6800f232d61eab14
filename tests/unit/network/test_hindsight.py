"""Events out of a range's packet record, made of real packets: who asked which target cell what."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.network.test_conversations import ACK, SYN, SYN_ACK, Packet, record

from belljar.events import Event, Kind, Trust
from belljar.network import hindsight
from belljar.network.hindsight import seen_exchanges
from belljar.plan.addresses import RangeLayout, lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan
from belljar.policy.network import OWN_CELL

ASKED = b"POST /buy?x=1 HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\ntea"
ANSWERED = b"HTTP/1.1 201 Made\r\nContent-Length: 2\r\n\r\nok"


def target(name: str, *ports: PortPlan, all_ports: bool = False) -> StandInPlan:
    """A target cell."""
    return StandInPlan(id=name, kind="cell", names=(f"{name}.example",), ports=ports, all_ports=all_ports)


PLAN = NetworkPlan(
    stand_ins=(
        target("shop", PortPlan(number=80, protocol="http")),
        target("mail", PortPlan(number=25, protocol="smtp")),
        target("all", all_ports=True),
        StandInPlan(id="page", kind="http", names=("page.example",), ports=(PortPlan(number=80, protocol="http"),)),
    )
)
LAYOUT: RangeLayout = lay_out(PLAN, (OWN_CELL,), random_bytes=bytes(range(64)), avoid=())


def spoken(client: str, server: tuple[str, int], sent: bytes, received: bytes, *, port: int = 4000) -> list[Packet]:
    """A connection between two cells (a name that is none's is an address)."""
    ends = [
        LAYOUT.cell(name).address if name in {c.name for c in LAYOUT.cells} else name for name in (client, server[0])
    ]
    here, there = (ends[0], port), (ends[1], server[1])
    packets: list[Packet] = [(here, there, 0, SYN, b""), (there, here, 0, SYN_ACK, b""), (here, there, 1, ACK, sent)]
    return [*packets, *([(there, here, 1, ACK, received)] if received else [])]


def seen(*conversations: list[Packet]) -> list[Event]:
    """What is made of them."""
    return list(seen_exchanges(record([each for one in conversations for each in one]), LAYOUT, PLAN))


def test_a_request_and_its_answer_are_two_events() -> None:
    """With who asked, what, and both bodies; they say that they were written afterwards, and when it was."""
    asked, answered = seen(spoken(OWN_CELL, ("shop", 80), ASKED, ANSWERED))
    assert (asked.kind, answered.kind) == (Kind.NETWORK_HTTP, Kind.NETWORK_HTTP_ANSWERED)
    assert asked.trust is answered.trust is Trust.HOST_OBSERVED
    assert asked.data["url"] == "http://shop.example/buy?x=1"
    assert (asked.data["cell"], asked.data["stand_in"], asked.data["method"]) == (OWN_CELL, "shop", "POST")
    assert (answered.data["status"], answered.data["exchange"]) == (201, asked.data["exchange"])
    assert [body.content for body in (*asked.bodies, *answered.bodies)] == [b"tea", b"ok"]
    assert asked.data["hindsight"] is answered.data["hindsight"] is True
    assert "at_s" in asked.data


def test_who_was_not_answered_has_one_event() -> None:
    """And a target may ask another."""
    (asked,) = seen(spoken("mail", ("shop", 80), ASKED, b""))
    assert asked.data["cell"] == "mail"


def test_only_target_cells_and_their_web_ports() -> None:
    """The gateway has recorded its own; what speaks no HTTP, or is no cell, is in the packet record alone. Every port of a cell that is open at every port counts."""
    page = next(name.address for name in LAYOUT.names if name.stand_in == "page")
    assert not seen(
        spoken(OWN_CELL, (page, 80), ASKED, ANSWERED),
        spoken(OWN_CELL, ("mail", 25), ASKED, ANSWERED),
        spoken(OWN_CELL, ("shop", 81), ASKED, ANSWERED),
    )
    assert len(seen(spoken(OWN_CELL, ("all", 5432), ASKED, ANSWERED))) == 2


def test_words_of_a_guest_are_escaped_and_bounded() -> None:
    """A URL and a header that want to act on a terminal, or are long."""
    hostile = b"GET /\x1b[2J" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\nX-Y: " + b"z" * 9000 + b"\r\n\r\n"
    for event in seen(spoken(OWN_CELL, ("shop", 80), hostile, b"")):
        assert "\x1b" not in str(event.data["url"])
        assert len(str(event.data["url"])) <= 2100
        headers = event.data["headers"]
        assert isinstance(headers, list)
        assert all(len(str(header)) < 700 for header in headers)


def test_there_is_a_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many events the packet record alone has them."""
    monkeypatch.setattr(hindsight, "MAX_EVENTS", 4)
    talk = [spoken(OWN_CELL, ("shop", 80), ASKED, ANSWERED, port=4000 + at) for at in range(5)]
    assert len(seen(*talk)) == 4


def test_what_is_no_record_is_refused() -> None:
    """By name."""
    with pytest.raises(ValueError, match="no packet record"):
        list(seen_exchanges(b"", LAYOUT, PLAN))


@given(st.binary(max_size=400), st.binary(max_size=400), st.binary(max_size=60))
def test_whatever_cells_say(sent: bytes, received: bytes, rest: bytes) -> None:
    """Every byte of it is a guest's: events that can be recorded, or none."""
    bytes_of = record(spoken(OWN_CELL, ("shop", 80), sent, received)) + rest
    with contextlib.suppress(ValueError):
        for event in seen_exchanges(bytes_of, LAYOUT, PLAN):
            assert str(event.data["url"]).isprintable()
            assert all(len(body.content) <= body.total_bytes for body in event.bodies)
