"""Connections out of a packet record, whatever is in it."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.pcapng import IN, OUT, block

from belljar.network.capture import conversations
from belljar.network.capture.conversations import (
    MAX_STREAM_BYTES,
    Conversation,
    ConversationTracker,
    End,
    read_segments,
)
from belljar.network.capture.packets import HEADER, sent_frames

CLIENT, SERVER = ("10.0.0.1", 40000), ("10.0.1.2", 80)
SYN, RST, ACK, SYN_ACK, URG = 2, 4, 16, 18, 48


class Packet(NamedTuple):
    """One TCP segment; `sent`: the range sent it on."""

    source: End
    target: End
    sequence: int
    flags: int
    payload: bytes = b""
    acknowledged: int = 0
    sent: bool = True
    checksum: int | None = None


def record(packets: Sequence[Packet], times_s: Iterable[int] | None = None) -> bytes:
    """A packet record of them."""
    out = HEADER
    for at, packet in zip(times_s or range(len(packets)), packets, strict=True):
        frame = b"\0" * 12 + b"\x08\0" + ip(packet)
        out += block(at * 10**9, frame, OUT if packet.sent else IN)
    return out


def ip(packet: Packet) -> bytes:
    """One IPv4 packet, with the right checksum unless it has one."""
    numbers = (
        packet.source[1],
        packet.target[1],
        packet.sequence % 2**32,
        packet.acknowledged % 2**32,
    )
    addresses = b"".join(bytes(map(int, end[0].split("."))) for end in packet[:2])
    before, after = (
        struct.pack("!HHIIBBH", *numbers, 5 << 4, packet.flags, 1000),
        b"\0\0" + packet.payload,
    )
    text = before + b"\0\0" + after
    summed = sum(struct.unpack(f"!{(len(text) + 1) // 2}H", text + b"\0" * (len(text) % 2)))
    summed += sum(struct.unpack("!4H", addresses)) + 6 + len(text)
    checksum = 0xFFFF - summed % 0xFFFF if packet.checksum is None else packet.checksum
    return (
        struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(text), 0, 0, 64, 6, 0)
        + addresses
        + before
        + struct.pack("!H", checksum)
        + after
    )


def greeting(client: End, server: End, *, first: int = 0, theirs: int = 0) -> list[Packet]:
    """How a connection begins."""
    return [
        Packet(client, server, first, SYN),
        Packet(server, client, theirs, SYN_ACK, acknowledged=first + 1),
    ]


def spoken(sent: bytes, received: bytes, *, first: int = 2**32 - 5, cut: int = 7) -> list[Packet]:
    """A connection with these bytes, in segments."""
    up = [
        Packet(CLIENT, SERVER, first + 1 + i, ACK, sent[i : i + cut])
        for i in range(0, len(sent), cut)
    ]
    down = [
        Packet(SERVER, CLIENT, 77 + i, ACK, received[i : i + cut])
        for i in range(0, len(received), cut)
    ]
    return [*greeting(CLIENT, SERVER, first=first, theirs=76), *up, *down]


def listen(written: bytes) -> ConversationTracker:
    """Who has heard all of a record; `SERVER` serves."""
    tracker = ConversationTracker(lambda end: end == SERVER)
    for segment in read_segments(sent_frames(io.BytesIO(written))):
        tracker.take(segment)
    return tracker


def heard(packets: Sequence[Packet]) -> list[Conversation]:
    """The conversations' bytes."""
    return list(listen(record(packets)).finish())


@given(
    st.binary(max_size=300),
    st.binary(max_size=300),
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
    st.randoms(),
)
def test_what_was_said_is_put_together(
    sent: bytes, received: bytes, first: int, cut: int, chance: random.Random
) -> None:
    """In whatever order segments come, some twice, and wherever sequence numbers begin; nothing of
    it is ambiguous."""
    syn, syn_ack, *rest = spoken(sent, received, first=first, cut=cut)
    rest += [*rest[:3], syn_ack]
    chance.shuffle(rest)
    found = heard([syn, syn_ack, *rest])
    assert [(each.client, each.server, each.sent, each.received) for each in found] == [
        (CLIENT, SERVER, sent, received)
    ] * bool(sent or received)
    assert not any(each.ambiguous or each.has_gap or each.cut_bytes for each in found)


@pytest.mark.promise("5.4")
@given(st.lists(st.tuples(st.integers(0, 12), st.binary(min_size=1, max_size=6)), max_size=12))
def test_different_data_in_one_place_is_ambiguous(said: list[tuple[int, bytes]]) -> None:
    """Overlapping segments in any order: the same data is fine, different data is reported."""
    packets = [Packet(CLIENT, SERVER, 1 + at, ACK, payload) for at, payload in said]
    meant: dict[int, set[int]] = {}
    for at, payload in said:
        for index, value in enumerate(payload):
            meant.setdefault(at + index, set()).add(value)
    for found in heard([*greeting(CLIENT, SERVER), *packets]):
        doubtful = any(len(meant[at]) > 1 for at in range(len(found.sent)))
        assert all(value in meant[at] for at, value in enumerate(found.sent))
        assert found.ambiguous if doubtful else (not found.ambiguous or found.has_gap)
        assert found.has_gap or len(found.sent) == len(meant)


def test_it_ends_at_a_gap() -> None:
    """Nothing after missing bytes is guessed, and the gap is reported."""
    packets = spoken(b"0123456789", b"", cut=2)
    del packets[4]
    (found,) = heard(packets)
    assert (found.sent, found.has_gap) == (b"0123", True)


def test_a_stream_is_bounded() -> None:
    """Bytes beyond the bound are counted, not kept."""
    (found,) = heard(spoken(b"x" * (MAX_STREAM_BYTES + 5000), b"", cut=60_000))
    assert (len(found.sent), found.cut_bytes) == (MAX_STREAM_BYTES, 5000)


def test_all_conversations_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """So many bytes are held, the rest is counted."""
    monkeypatch.setattr(conversations, "MAX_HELD_BYTES", 400)
    (found,) = heard(spoken(b"0123456789" * 2, b"", cut=10))
    assert (found.sent, found.cut_bytes) == (b"0123456789" * 2, 0)
    monkeypatch.setattr(conversations, "MAX_HELD_BYTES", 200)
    (found,) = heard(spoken(b"0123456789" * 2, b"", cut=10))
    assert (found.sent, found.cut_bytes) == (b"0123456789", 10)


def test_a_port_used_twice_is_two_conversations() -> None:
    """The second begins where its SYN-ACK stands."""
    found = heard([*spoken(b"one", b"1"), *spoken(b"two", b"2", first=9)])
    assert [(each.sent, each.received) for each in found] == [(b"one", b"1"), (b"two", b"2")]


@pytest.mark.promise("5.4")
def test_unanswered_segments_hide_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused and silent connections, other servers' and dropped packets take no place among those
    that are read."""
    monkeypatch.setattr(conversations, "MAX_CONVERSATIONS", 1)
    noise = [packet for port in range(50) for packet in greeting(("10.0.0.1", port), SERVER)]
    noise += [Packet(("10.0.0.1", port), SERVER, 5, SYN) for port in range(100, 150)]
    noise += [Packet(("10.0.0.1", port), ("10.0.1.2", 81), 5, SYN) for port in range(150)]
    noise += [packet._replace(sent=False) for packet in spoken(b"never arrived", b"", first=900)]
    tracker = listen(record([*noise, *spoken(b"this", b"that")]))
    assert [(each.sent, each.received) for each in tracker.finish()] == [(b"this", b"that")]
    assert not +tracker.left_out


def test_what_is_not_looked_at_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each conversation beyond the bound once."""
    monkeypatch.setattr(conversations, "MAX_CONVERSATIONS", 2)
    talk = [each for first in (10, 20, 30, 40) for each in spoken(b"a", b"b", first=first)]
    tracker = listen(record(talk))
    assert len(list(tracker.finish())) == 2
    assert +tracker.left_out == {"connections": 2}


def test_a_client_begins_nothing_anew() -> None:
    """A second SYN with other numbers, and a reset, in mid-stream: the receiver ignores them or
    answers."""
    begun, rest = spoken(b"hello", b""), Packet(CLIENT, SERVER, 1, ACK, b" world")
    for lie in (
        Packet(CLIENT, SERVER, 777, SYN),
        Packet(CLIENT, SERVER, 5, RST),
        Packet(CLIENT, SERVER, 7, SYN, b"x"),
    ):
        (found,) = heard([*begun, lie, rest])
        assert found.sent == b"hello world"


def test_what_a_receiver_throws_away_is_not_said() -> None:
    """A wrong checksum: its bytes are not taken, and the conversation is doubtful. One that a
    device is to finish (the pseudo header's sum) is as good as right."""
    begun = greeting(CLIENT, SERVER)
    decoy, real = (
        Packet(CLIENT, SERVER, 1, ACK, b"decoy", checksum=1),
        Packet(CLIENT, SERVER, 1, ACK, b"truth"),
    )
    (found,) = heard([*begun, decoy, real])
    assert (found.sent, found.ambiguous) == (b"truth", True)
    pseudo = sum(struct.unpack("!4H", bytes([10, 0, 0, 1, 10, 0, 1, 2]))) + 6 + 25
    (found,) = heard([*begun, real._replace(checksum=pseudo % 0xFFFF)])
    assert (found.sent, found.ambiguous) == (b"truth", False)


def test_bytes_before_the_beginning_are_ambiguous() -> None:
    """A second SYN-ACK moves the beginning; bytes of the first connection are reported. A
    keepalive's byte is fine."""
    talk = spoken(b"GET / HTTP/1.1", b"HTTP/1.1 200 OK", first=1000, cut=20)
    later = greeting(CLIENT, SERVER, first=1000 + 10**9, theirs=76 + 10**9)
    (found,) = heard([*talk[:2], *later, *talk[2:]])
    assert (found.ambiguous, found.sent, found.cut_bytes) == (True, b"", 29)
    first, second = heard(
        [*talk, *greeting(CLIENT, SERVER, first=5), Packet(CLIENT, SERVER, 6, ACK, b"again")]
    )
    assert (first.ambiguous, second.ambiguous) == (True, False)
    (found,) = heard([*talk, Packet(SERVER, CLIENT, 76, ACK, b"\0")])
    assert not found.ambiguous


def test_a_client_that_answers_is_no_server() -> None:
    """Where every port is served: a SYN-ACK of the client's doesn't turn its connection round, and
    makes it doubtful."""
    tracker = ConversationTracker(lambda _: True)
    turned = Packet(CLIENT, SERVER, 1, SYN_ACK, acknowledged=10**9)
    talk = spoken(b"GET / HTTP/1.1", b"HTTP/1.1 200 OK")
    for segment in read_segments(sent_frames(io.BytesIO(record([*talk[:3], turned, *talk[3:]])))):
        tracker.take(segment)
    (found,) = tracker.finish()
    assert (found.client, found.sent, found.received) == (
        CLIENT,
        b"GET / HTTP/1.1",
        b"HTTP/1.1 200 OK",
    )
    assert found.ambiguous


def test_a_segment_without_acknowledgement_is_not_taken() -> None:
    """No stack takes its text (RFC 9293, 3.10.7.4)."""
    talk = spoken(b"true", b"yes", first=0, cut=20)
    (found,) = heard([*talk[:2], Packet(CLIENT, SERVER, 1, 0, b"fals"), *talk[2:]])
    assert (found.sent, found.ambiguous) == (b"true", True)


def test_two_openings_with_data_are_ambiguous() -> None:
    """TCP Fast Open: of two SYNs with data the first is shown, as ambiguous."""
    opened = [Packet(CLIENT, SERVER, 0, SYN, text) for text in (b"/real", b"/fake")]
    (found,) = heard([*opened, Packet(SERVER, CLIENT, 9, SYN_ACK, acknowledged=6)])
    assert (found.sent, found.ambiguous) == (b"/real", True)


def test_urgent_bytes_are_doubtful() -> None:
    """Whether they are part of the stream is the receiver's choice (RFC 6093)."""
    (found,) = heard([*greeting(CLIENT, SERVER), Packet(CLIENT, SERVER, 1, URG, b"GEXT")])
    assert found.ambiguous


def test_data_of_a_syn_counts_when_it_is_acknowledged() -> None:
    """TCP Fast Open: the SYN-ACK shows whether it was."""
    asked = Packet(CLIENT, SERVER, 4, SYN, b"early ")
    later = Packet(CLIENT, SERVER, 11, ACK, b"late")
    (found,) = heard([asked, Packet(SERVER, CLIENT, 0, SYN_ACK, acknowledged=11), later])
    assert found.sent == b"early late"
    (found,) = heard(
        [asked, Packet(SERVER, CLIENT, 0, SYN_ACK, acknowledged=5), later._replace(sequence=5)]
    )
    assert found.sent == b"late"


def test_segments_of_no_connection_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """In either direction, by sender and receiver, and bounded."""
    monkeypatch.setattr(conversations, "MAX_STRAYS", 2)
    said = [Packet(CLIENT, SERVER, 9, ACK, b"psst")] * 3 + [Packet(SERVER, CLIENT, 9, ACK, b"what")]
    more = [Packet((f"10.0.0.{at}", 1), SERVER, 1, ACK) for at in range(5, 9)]
    assert listen(record([*said, *more])).strays == {
        ("10.0.0.1", "10.0.1.2", 80): [3, 3 * 44],
        ("10.0.1.2", "10.0.0.1", None): [1, 44],
        ("", "", None): [4, 160],
    }


def test_what_is_no_record_is_refused() -> None:
    """By name."""
    with pytest.raises(ValueError, match="no packet record"):
        listen(b"\xd4\xc3\xb2\xa1" + bytes(20))


@given(st.binary(max_size=400))
def test_any_bytes_are_read(garbage: bytes) -> None:
    """Behind a header; whatever they are."""
    assert list(listen(HEADER + garbage).finish()) is not None


@given(st.binary(max_size=200), st.integers(0, 200))
def test_damaged_packets_are_passed_over(garbage: bytes, at: int) -> None:
    """Whatever stands in a frame."""
    whole = bytearray(record(spoken(b"hello", b"world")))
    start = len(HEADER) + 28 + at  # within the first frames
    body = slice(start, start + len(garbage))
    whole[body] = garbage[: len(whole[body])]
    assert list(listen(bytes(whole)).finish()) is not None


@given(
    st.lists(
        st.tuples(
            st.sampled_from([CLIENT, SERVER]),
            st.sampled_from([CLIENT, SERVER]),
            st.integers(0, 30),
            st.sampled_from([0, 1, SYN, RST, ACK, SYN_ACK, URG]),
            st.binary(max_size=8),
            st.integers(0, 30),
        ).map(lambda fields: Packet(*fields)),
        max_size=40,
    )
)
def test_any_segments_are_taken(packets: list[Packet]) -> None:
    """In any order, with any flags and numbers; every reported byte was sent by that side."""
    sent = {
        end: {value for packet in packets if packet.source == end for value in packet.payload}
        for end in (CLIENT, SERVER)
    }
    for found in heard(packets):
        assert set(found.sent) <= sent[found.client]
        assert set(found.received) <= sent[found.server]
