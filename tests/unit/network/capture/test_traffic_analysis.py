"""Events out of a range's packet record, made of real packets: requests between cells."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.network.capture.test_conversations import ACK, Packet, greeting, record

from belljar.events import Event, Kind, Trust
from belljar.ledger.schema import check_data
from belljar.network.capture import conversations, exchanges, traffic_analysis
from belljar.network.capture.traffic_analysis import seen_exchanges
from belljar.network.ipc import MAX_DATA_BYTES
from belljar.network.owner.budget import Budget
from belljar.plan.addresses import RangeLayout, lay_out
from belljar.plan.network import NetworkBounds, NetworkPlan, PortPlan, StandInPlan
from belljar.policy.guarding import OWN_CELL

ASKED = b"POST /buy?x=1 HTTP/1.1\r\nHost: shop.example\r\nContent-Length: 3\r\n\r\ntea"
ANSWERED = b"HTTP/1.1 201 Made\r\nContent-Length: 2\r\n\r\nok"


def target(name: str, *ports: PortPlan, all_ports: bool = False) -> StandInPlan:
    """A target cell."""
    return StandInPlan(
        id=name, kind="cell", names=(f"{name}.example",), ports=ports, all_ports=all_ports
    )


PLAN = NetworkPlan(
    stand_ins=(
        target("shop", PortPlan(number=80, protocol="http")),
        target("mail", PortPlan(number=25, protocol="smtp")),
        target("all", all_ports=True),
        StandInPlan(
            id="page",
            kind="http",
            names=("page.example",),
            ports=(PortPlan(number=80, protocol="http"),),
        ),
    )
)
LAYOUT: RangeLayout = lay_out(PLAN, (OWN_CELL,), random_bytes=bytes(range(64)), avoid=())


def spoken(
    client: str, server: tuple[str, int], sent: bytes, received: bytes, *, port: int = 4000
) -> list[Packet]:
    """A connection between two cells (a name that is none's is an address)."""
    ends = [
        LAYOUT.cell(name).address if name in {c.name for c in LAYOUT.cells} else name
        for name in (client, server[0])
    ]
    here, there = (ends[0], port), (ends[1], server[1])
    packets = [*greeting(here, there), Packet(here, there, 1, ACK, sent)]
    return [*packets, *([Packet(there, here, 1, ACK, received)] if received else [])]


def seen(*talks: list[Packet], plan: NetworkPlan = PLAN) -> list[Event]:
    """What is made of them: each an event of its kind, of this range, made afterwards."""
    return read(record([each for talk in talks for each in talk]), plan)


def read(written: bytes, plan: NetworkPlan = PLAN) -> list[Event]:
    """The same of a record."""
    events = list(seen_exchanges([io.BytesIO(written)], LAYOUT, plan, range_id="r-1"))
    for event in events:
        check_data(event.kind, dict(event.data))
        assert (event.data["range"], event.data["traffic_analysis"]) == ("r-1", True)
    return events


def limits(events: list[Event]) -> dict[object, object]:
    """What was left out, by the bound, and how many."""
    return {
        event.data["limit"]: event.data["count"] for event in events if event.kind == Kind.LIMIT_HIT
    }


@pytest.mark.promise("5.4")
def test_a_request_and_its_response_are_two_events() -> None:
    """With client, target and both bodies; marked as written afterwards, with the time."""
    asked, answered = seen(spoken(OWN_CELL, ("shop", 80), ASKED, ANSWERED))
    assert (asked.kind, answered.kind) == (Kind.NETWORK_HTTP, Kind.NETWORK_HTTP_ANSWERED)
    assert asked.trust is answered.trust is Trust.HOST_OBSERVED
    assert asked.data["url"] == "http://shop.example/buy?x=1"
    assert (asked.data["cell"], asked.data["stand_in"], asked.data["method"]) == (
        OWN_CELL,
        "shop",
        "POST",
    )
    assert (answered.data["status"], answered.data["exchange"]) == (201, asked.data["exchange"])
    assert [body.content for body in (*asked.bodies, *answered.bodies)] == [b"tea", b"ok"]
    assert "ambiguous" not in asked.data
    assert "at_s" in asked.data


def test_who_was_not_answered_has_one_event() -> None:
    """And a target may ask another."""
    (asked,) = seen(spoken("mail", ("shop", 80), ASKED, b""))
    assert asked.data["cell"] == "mail"


def test_only_target_cells_and_their_web_ports() -> None:
    """The gateway has recorded its own; what speaks no HTTP, or is no cell, is in the packet record
    alone. Every port of a cell that is open at every port counts."""
    page = next(name.address for name in LAYOUT.names if name.stand_in == "page")
    assert not seen(
        spoken(OWN_CELL, (page, 80), ASKED, ANSWERED),
        spoken(OWN_CELL, ("mail", 25), ASKED, ANSWERED),
        spoken(OWN_CELL, ("shop", 81), ASKED, ANSWERED),
    )
    assert len(seen(spoken(OWN_CELL, ("all", 5432), ASKED, ANSWERED))) == 2


def test_words_of_a_guest_are_escaped_and_bounded() -> None:
    """A URL and a header that want to act on a terminal, or are long."""
    hostile = (
        b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\nX-Y: \x9b2J" + b"z" * 9000 + b"\r\n\r\n"
    )
    (asked,) = seen(spoken(OWN_CELL, ("shop", 80), hostile, b""))
    assert len(str(asked.data["url"])) <= 2100
    headers = asked.data["headers"]
    assert isinstance(headers, list)
    assert all(len(str(header)) < 700 and str(header).isprintable() for header in headers)
    (refused,) = seen(
        spoken(OWN_CELL, ("shop", 80), b"GET /\x1b[2J HTTP/1.1\r\nHost: a\r\n\r\n", b"")
    )
    assert "\x1b" not in str(refused.data)


TALK = [spoken(OWN_CELL, ("shop", 80), ASKED, ANSWERED, port=4000 + at) for at in range(5)]


def test_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many events the packet record alone has the rest, which is counted; further
    connections are not read."""
    monkeypatch.setattr(traffic_analysis, "MAX_EVENTS", 4)
    events = seen(*TALK)
    assert len(events) == 4 + 2
    assert limits(events) == {"traffic_analysis_events": 2, "traffic_analysis_connections": 2}


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    ("module", "bound", "value", "left_out"),
    [
        (conversations, "MAX_CONVERSATIONS", 2, {"traffic_analysis_connections": 3}),
        (conversations, "MAX_STREAM_BYTES", len(ASKED) - 1, {"traffic_analysis_bytes": 5}),
        (traffic_analysis, "MAX_FRAMES", 10, {"traffic_analysis_frames": 1}),
        (traffic_analysis, "MAX_STEPS", 70, {"traffic_analysis_steps": 3}),
    ],
)
def test_what_is_left_out_is_said(
    module: object,
    bound: str,
    value: int,
    left_out: dict[str, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An event for each bound, with how many."""
    monkeypatch.setattr(module, bound, value)
    assert limits(seen(*TALK)) == left_out


def test_the_ledger_is_bounded() -> None:
    """Beyond the policy's bound events are cut down, which is reported, and then left out."""
    events = seen(*TALK, plan=replace(PLAN, bounds=NetworkBounds(recorded_bytes=20_000)))
    left_out = limits(events)
    assert (
        left_out["traffic_analysis_whole_events"]
        == sum("cut" in event.data for event in events)
        > 0
    )
    assert (
        limits(seen(*TALK, plan=replace(PLAN, bounds=NetworkBounds(recorded_bytes=1000))))[
            "traffic_analysis_connections"
        ]
        == 4
    )


@pytest.mark.promise("5.4")
def test_steps_are_those_of_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """When they are used up, further bytes are reported by the first ones, with the reason; so is a
    request whose response they end at."""
    monkeypatch.setattr(traffic_analysis, "MAX_STEPS", 70)
    events = seen(*TALK)
    assert [str(event.kind) for event in events[:5]] == [
        "network.http",
        "network.http.answered",
    ] * 2 + ["network.http"]
    unread = [event for event in events if event.kind == Kind.NETWORK_STREAM]
    assert all(str(event.data["reason"]).startswith("not read further") for event in unread)
    assert [event.bodies[-1].content for event in unread] == [ANSWERED] * 3


@pytest.mark.promise("5.4")
def test_the_budget_is_the_rests_of_the_range() -> None:
    """What the range has spent before is not there any more."""
    spent = replace(Budget.of(100_000), spent_bytes=123_200, events=9, cut_events=4)
    events = list(
        seen_exchanges([io.BytesIO(record(TALK[0]))], LAYOUT, PLAN, range_id="r-1", budget=spent)
    )
    assert limits(events) == {"traffic_analysis_events": 1, "traffic_analysis_whole_events": 1}
    assert [event.data["cut"] for event in events if event.kind == Kind.NETWORK_HTTP] == [True]


def test_files_are_read_in_the_order_of_time() -> None:
    """As a full disk leaves them: the frames of one connection may stand in each of them."""
    packets, times = TALK[0], range(len(TALK[0]))
    files = [io.BytesIO(record(packets[at::2], times[at::2])) for at in (1, 0)]
    asked, answered = seen_exchanges(files, LAYOUT, PLAN, range_id="r-1")
    assert (asked.kind, answered.kind) == (Kind.NETWORK_HTTP, Kind.NETWORK_HTTP_ANSWERED)


@pytest.mark.parametrize("byte", [b"\x80", b"\xe9", b'"', b"\\"])
def test_headers_have_room_in_a_message(byte: bytes) -> None:
    """However long they are when escaped and encoded; the number left out is reported."""
    fields = b"".join(b"a: " + byte * 500 + b"\r\n" for _ in range(60))
    target = b"GET /" + b'"' * 9000 + b" HTTP/1.1\r\nHost: " + byte * 3000 + b"\r\n"
    (asked,) = seen(spoken(OWN_CELL, ("shop", 80), target + fields + b"\r\n", b""))
    assert len(json.dumps(asked.data, separators=(",", ":"))) < MAX_DATA_BYTES
    headers = asked.data["headers"]
    assert isinstance(headers, list)
    assert len(headers) + int(str(asked.data["dropped_headers"])) == 61


def test_different_data_in_one_place_is_ambiguous() -> None:
    """The first version is shown, as ambiguous."""
    begun = spoken(OWN_CELL, ("shop", 80), ASKED, ANSWERED)
    again = begun[2]._replace(payload=ASKED.replace(b"tea", b"gin"))
    asked, answered = seen([*begun, again])
    assert asked.data["ambiguous"] is answered.data["ambiguous"] is True
    assert asked.bodies[0].content == b"tea"


def test_what_is_no_http_is_told_by_its_first_bytes() -> None:
    """After the requests that were read, or instead of them; and a request that did not end."""
    upgraded = spoken(OWN_CELL, ("shop", 80), ASKED + b"\x00binary", ANSWERED + b"\x01back")
    *_, rest = seen(upgraded)
    assert rest.kind == Kind.NETWORK_STREAM
    assert [(body.name, body.content) for body in rest.bodies] == [
        ("received", b"\x00binary"),
        ("sent", b"\x01back"),
    ]
    (alone,) = seen(spoken(OWN_CELL, ("all", 5432), b"x" * 9000, b""))
    assert (alone.data["stand_in"], alone.data["port"], alone.data["bytes"]) == ("all", 5432, 9000)
    assert (len(alone.bodies[0].content), alone.bodies[0].total_bytes) == (4096, 9000)
    (half,) = seen(spoken(OWN_CELL, ("shop", 80), ASKED[:-1], b""))
    assert half.bodies[0].content == ASKED[:-1]


def test_more_requests_than_are_read_are_told_as_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one connection."""
    monkeypatch.setattr(exchanges, "MAX_EXCHANGES", 2)
    found = seen(spoken(OWN_CELL, ("shop", 80), ASKED * 3, ANSWERED * 3))
    assert [event.kind for event in found] == [
        Kind.NETWORK_HTTP,
        Kind.NETWORK_HTTP_ANSWERED,
    ] * 2 + [Kind.NETWORK_STREAM]
    assert [body.content for body in found[-1].bodies] == [ASKED, ANSWERED]


def test_a_gap_is_reported() -> None:
    """Bytes that the record lacks: what follows them is not shown, but reported."""
    begun = spoken(OWN_CELL, ("shop", 80), ASKED, ANSWERED)
    *_, rest = seen([*begun, begun[2]._replace(sequence=len(ASKED) + 50)])
    assert (rest.kind, rest.data["reason"]) == (
        Kind.NETWORK_STREAM,
        "bytes are missing from the packet record",
    )


def test_segments_of_no_connection_are_a_flow() -> None:
    """Two roots that make their own frames are on record, though no connection was begun; to
    whatever port of a target."""
    (flow,) = seen(spoken(OWN_CELL, ("mail", 25), b"psst", b"")[2:])
    assert flow.kind == Kind.NETWORK_FLOW
    assert (flow.data["cell"], flow.data["name"], flow.data["port"]) == (OWN_CELL, "mail", 25)
    assert (flow.data["reason"], flow.data["count"], flow.data["bytes"]) == ("segment", 1, 44)


def test_what_is_no_record_is_refused() -> None:
    """By name."""
    with pytest.raises(ValueError, match="no packet record"):
        read(b"")


@pytest.mark.promise("5.4")
@given(st.binary(max_size=400), st.binary(max_size=400), st.binary(max_size=60))
def test_whatever_cells_say(sent: bytes, received: bytes, rest: bytes) -> None:
    """Every byte of it is a guest's: events that can be recorded, or none."""
    for event in read(record(spoken(OWN_CELL, ("shop", 80), sent, received)) + rest):
        assert str(event.data.get("url", "")).isprintable()
        assert all(len(body.content) <= body.total_bytes for body in event.bodies)
