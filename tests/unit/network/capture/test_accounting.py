"""Which frames of a packet record may be thrown away."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.gateway import layout

from belljar.events import Body, Event, JsonValue, Kind
from belljar.network.capture.accounting import Accounts, Connection, Connections, Frame

LAYOUT = layout()
CELL, GATEWAY = LAYOUT.cells[0].address, LAYOUT.names[0].address
FIN, SYN, RST, PSH, ACK, URG = 1, 2, 4, 8, 16, 32
START = 0xFFFF_FFF0
"""The cell's first byte: the numbers wrap soon."""


def frame(
    payload: bytes = b"",
    *,
    at: int = 0,
    flags: int = ACK,
    sent: bool = False,
    port: int = 40_000,
    acknowledged: int = 1,
    options: bytes = b"",
    fragment: int = 0x4000,
    head: int = 0x45,
    service: int = 0,
    ttl: int = 64,
    tail: bytes = b"",
) -> memoryview:
    """A segment of the cell's, or with `sent` of the gateway's; `at` counts from the cell's first
    byte."""
    ends = (GATEWAY, CELL) if sent else (CELL, GATEWAY)
    ports = (80, port) if sent else (port, 80)
    sequence = (START + at) % (1 << 32)
    numbers = (0, sequence) if sent else (sequence, acknowledged)
    tcp = struct.pack(
        "!HHIIBBHHH", *ports, *numbers, (20 + len(options)) // 4 << 4, flags, 512, 0, 0
    )
    data = tcp + options + payload
    addresses = b"".join(bytes(map(int, end.split("."))) for end in ends)
    ip = struct.pack("!BBHHHBBH", head, service, 20 + len(data), 7, fragment, ttl, 6, 0) + addresses
    return memoryview(bytes(12) + b"\x08\x00" + ip + data + tail)


def opened(*, port: int = 40_000) -> Connections:
    """With one connection that the gateway's kernel has taken."""
    found = Connections(LAYOUT)
    assert found.take(frame(flags=SYN, at=-1, port=port), sent=False) is Frame.EVIDENCE
    assert found.take(frame(flags=SYN | ACK, sent=True, port=port), sent=True) is Frame.OURS
    return found


def closed(size: int, **changes: JsonValue) -> Event:
    """The gateway's event of a closed connection."""
    data: dict[str, JsonValue] = {
        "cell": LAYOUT.cells[0].name,
        "connection": 1,
        "address": GATEWAY,
        "port": 80,
        "source_port": 40_000,
        "phase": "closed",
        "received_bytes": size,
        "accounted": True,
        **changes,
    }
    return Event(kind=Kind.NETWORK_CONNECTION, data=data)


def unaccounted(found: Connections, *events: Event) -> int:
    """After these events."""
    accounts = Accounts()
    for event in events:
        accounts.report(event, event)
    for each in found.at_risk():
        accounts.settle([each])
    return accounts.unaccounted


def drop(found: Connections, *frames: memoryview) -> None:
    """These are the connection's, and are thrown away."""
    for each in frames:
        whose = found.take(each, sent=False)
        assert isinstance(whose, Connection)
        whose.dropped += 1


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("options", [b"", b"\x01\x01\x08\x0a" + bytes(8)])
def test_a_connection_that_is_whole_on_record_may_go(options: bytes) -> None:
    """All of its ordinary segments: bytes, acknowledgements, a segment that came twice, both ends'
    end."""
    found = opened()
    frames = (
        frame(options=options),
        frame(b"GET / HTTP/1.1\r\n", flags=ACK | PSH, options=options),
        frame(b"\r\n", at=16, options=options),
        frame(b"\r\n", at=16, options=options),
        frame(at=17, options=options),
        frame(at=18, flags=ACK | FIN, options=options),
        frame(at=18, flags=ACK | FIN, options=options),
        frame(at=19, flags=RST),
    )
    drop(found, *frames)
    assert unaccounted(found, closed(18)) == 0
    assert unaccounted(found) == len(frames)


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    "said",
    [
        closed(17),
        closed(19),
        closed(18, accounted=False),
        closed(18, phase="open"),
        closed(18, source_port=40_001),
        closed(18, cell="other"),
        closed(18, address="10.1.1.1"),
    ],
)
def test_another_count_or_another_connection_accounts_for_nothing(said: Event) -> None:
    """Other counts or ends, or an event that reports missing bytes."""
    found = opened()
    drop(found, frame(b"GET / HTTP/1.1\r\n\r\n"))
    assert unaccounted(found, said) == 1


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("number", [1, None])
def test_a_body_that_was_cut_is_not_whole(number: int | None) -> None:
    """An upload of which a part is kept, or an event that the budget cut down: its packets had the
    rest."""
    found = opened()
    drop(found, frame(b"x" * 18))
    data: dict[str, JsonValue] = {} if number is None else {"connection": number}
    upload = Event(
        kind=Kind.NETWORK_HTTP,
        data=data,
        bodies=(Body(name="request", content=b"x", total_bytes=9, sha256="0" * 64),),
    )
    assert unaccounted(found, upload, closed(18)) == 1
    answer = Event(
        kind=Kind.NETWORK_HTTP_ANSWERED,
        data=data,
        bodies=(Body(name="response", content=b"x", total_bytes=9, sha256="0" * 64),),
    )
    assert unaccounted(found, answer, closed(18)) == 0
    accounts = Accounts()
    accounts.report(answer, replace(answer, bodies=()))
    accounts.report(closed(18), closed(18))
    accounts.settle(list(found.at_risk()))
    assert accounts.unaccounted == 1


def test_connections_that_share_a_port_are_each_accounted_for() -> None:
    """A second one from the same port: one report is not enough, and neither is one of another
    length."""
    found = opened()
    drop(found, frame(b"first"))
    again = frame(flags=SYN | ACK, sent=True, at=5000)
    assert found.take(again, sent=True) is Frame.OURS
    assert found.take(again, sent=True) is Frame.OURS
    drop(found, frame(b"second", at=5000))
    assert unaccounted(found, closed(5), closed(6, connection=2)) == 0
    assert unaccounted(found, closed(5)) == 2
    assert unaccounted(found, closed(6)) == 2
    assert unaccounted(found, closed(5), closed(6, connection=2), closed(6, connection=3)) == 2


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    "odd",
    [
        frame(b"secret", flags=ACK | URG),
        frame(b"secret", flags=SYN),
        frame(b"secret", flags=RST),
        frame(b"secret", flags=0),
        frame(b"secret", at=1 << 20),
        frame(b"secret", at=-3),
        frame(b"secret", fragment=0x2000),
        frame(b"secret", fragment=0x8000),
        frame(b"secret", head=0x46),
        frame(b"secret", options=b"\xfd\x08secret"),
        frame(b"secret", options=b"\x01\x01\x05\x0a" + bytes(8)),
        frame(tail=b"secret"),
        frame(b"x" * 60, tail=b"\0"),
        frame(flags=SYN),
        frame(at=9),
        frame(port=41_000),
    ],
)
def test_what_is_no_ordinary_segment_is_evidence(odd: memoryview) -> None:
    """Urgent bytes, bytes with SYN or RST, out of order, in IP or TCP options, fragments, bytes
    after the packet, and a connection that was never accepted."""
    assert opened().take(odd, sent=False) is Frame.EVIDENCE


@pytest.mark.parametrize("size", [0, 10, 33, 53])
def test_whatever_is_cut_off_is_evidence(size: int) -> None:
    """Of any length."""
    assert opened().take(frame(b"x")[:size], sent=False) is Frame.EVIDENCE


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    "odd",
    [
        frame(b"abc", service=0xB8),
        frame(b"abc", service=2),
        frame(b"abc", ttl=65),
        frame(b"abc", ttl=0),
        frame(b"abc", flags=ACK | 0x40),
        frame(b"abc", flags=ACK | 0x80),
    ],
)
def test_header_fields_that_a_program_sets_are_evidence(odd: memoryview) -> None:
    """Type of service, time to live and ECN: the frame is kept, and the rest of its connection may
    go."""
    found = opened()
    drop(found, frame())
    assert found.take(odd, sent=False) is Frame.EVIDENCE
    drop(found, frame(b"def", at=3))
    assert unaccounted(found, closed(6)) == 0


def test_what_a_cell_sends_to_another_is_evidence() -> None:
    """Nobody but the packet record has it, in both directions; what the gateway sends is its
    own."""
    found = Connections(LAYOUT)
    between = bytearray(frame(b"x"))
    assert found.take(memoryview(between), sent=True) is Frame.EVIDENCE
    assert found.take(frame(b"x", sent=True), sent=True) is Frame.OURS


@pytest.mark.promise("5.4")
def test_what_is_sent_again_may_be_cut_another_way() -> None:
    """As TCP does it: the same bytes, in part with new ones. One other byte, or a gap, and it is
    never accounted for."""
    found = opened()
    drop(found, frame(b"abcdef"), frame(b"cd", at=2), frame(b"efghij", at=4), frame(b"abcdefghij"))
    assert unaccounted(found, closed(10)) == 0
    assert found.take(frame(b"cX", at=2), sent=False) is Frame.EVIDENCE
    assert unaccounted(found, closed(10)) == 4


@pytest.mark.promise("5.4")
def test_segments_may_come_out_of_their_order() -> None:
    """They are the connection's when the gap is filled; one that waits for ever is never accounted
    for."""
    found = opened()
    drop(
        found,
        frame(b"ghi", at=6, flags=ACK | FIN),
        frame(b"def", at=3),
        frame(b"def", at=3),
        frame(b"abc"),
    )
    assert unaccounted(found, closed(9)) == 0
    found = opened()
    drop(found, frame(b"abc"), frame(b"secret", at=9))
    assert unaccounted(found, closed(3)) == 2
    found = opened()
    drop(found, frame(b"secret", at=3))
    assert found.take(frame(b"public", at=3), sent=False) is Frame.EVIDENCE
    assert unaccounted(found, closed(9)) == 1


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest bytes are forgotten: sent again they are evidence."""
    monkeypatch.setattr("belljar.network.capture.accounting.MAX_RECENT_BYTES", 8)
    found = opened()
    drop(found, frame(b"first"))
    assert found.take(frame(flags=SYN | ACK, sent=True, port=40_001), sent=True) is Frame.OURS
    drop(found, frame(b"second", port=40_001))
    assert found.take(frame(b"first"), sent=False) is Frame.EVIDENCE
    assert isinstance(found.take(frame(b"second", port=40_001), sent=False), Connection)


def test_a_byte_that_was_sent_in_two_ways_is_never_accounted_for() -> None:
    """The kernel took one of them (the other had a wrong checksum, for instance); which one is
    unknown."""
    found = opened()
    drop(found, frame(b"secret"))
    assert found.take(frame(b"public"), sent=False) is Frame.EVIDENCE
    assert found.take(frame(b"more", at=6), sent=False) is Frame.EVIDENCE
    assert unaccounted(found, closed(6)) == 1


segments = st.tuples(
    st.integers(-3, 12),
    st.binary(max_size=4),
    st.sampled_from([ACK, ACK | PSH, ACK | FIN, RST, ACK | URG, SYN]),
    st.booleans(),
)


@pytest.mark.promise("5.4")
@given(st.lists(segments, max_size=12), st.booleans())
@settings(deadline=None, max_examples=1000)
def test_what_is_accounted_for_is_in_the_stream(
    sent: list[tuple[int, bytes, int, bool]], is_patient: bool
) -> None:
    """Whatever a cell sends, and whatever of it the kernel takes: when all that was thrown away is
    accounted for, each byte of it stands in what the gateway received, where it was sent to."""
    found = opened()
    stream = b""
    waiting: list[tuple[int, bytes]] = []
    dropped: list[tuple[int, bytes]] = []
    for at, payload, flags, is_taken in sent:
        whose = found.take(frame(payload, at=at, flags=flags), sent=False)
        if isinstance(whose, Connection):
            whose.dropped += 1
            dropped.append((at, payload))
        if is_taken and at >= 0 and not flags & (SYN | RST | URG):
            waiting.append((at, payload))
        for early in waiting if is_patient else waiting[-1:]:
            if early[0] <= len(stream):
                stream += early[1][len(stream) - early[0] :]
    if unaccounted(found, closed(len(stream))) == 0:
        assert all(stream[at : at + len(payload)] == payload for at, payload in dropped if payload)


@given(st.binary(max_size=80), st.booleans())
@settings(deadline=None)
def test_any_bytes_are_a_frame(data: bytes, sent: bool) -> None:
    """Nothing that comes is an error."""
    found = opened()
    for each in (data, bytes(frame())[:34] + data, bytes(frame())[:12] + data):
        found.take(memoryview(each), sent=sent)
