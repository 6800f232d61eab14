"""Connections out of a packet record, whatever is in it."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.conversations import MAX_STREAM_BYTES, conversations, read_segments

CLIENT, SERVER = ("10.0.0.1", 40000), ("10.0.1.2", 80)
SYN, ACK, SYN_ACK = 2, 16, 18
Packet = tuple[tuple[str, int], tuple[str, int], int, int, bytes]


def record(packets: Sequence[Packet], *, order: str = "<", magic: int = 0xA1B2C3D4) -> bytes:
    """A packet record of TCP segments: source, target, sequence number, flags, payload."""
    out = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 65535, 1)
    for at, (source, target, sequence, flags, payload) in enumerate(packets):
        frame = b"\0" * 12 + b"\x08\0" + packet(source, target, sequence, flags, payload)
        out += struct.pack(f"{order}IIII", at, 0, len(frame), len(frame)) + frame
    return out


def packet(source: tuple[str, int], target: tuple[str, int], sequence: int, flags: int, payload: bytes) -> bytes:
    """One IPv4 packet."""
    tcp = struct.pack("!HHIIBBHHH", source[1], target[1], sequence % 2**32, 0, 5 << 4, flags, 1000, 0, 0) + payload
    addresses = bytes(map(int, source[0].split("."))), bytes(map(int, target[0].split(".")))
    return struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(tcp), 0, 0, 64, 6, 0, *addresses) + tcp


def spoken(sent: bytes, received: bytes, *, first: int = 2**32 - 5, cut: int = 7) -> list[Packet]:
    """A connection in which this was said, in segments."""
    begun: list[Packet] = [(CLIENT, SERVER, first, SYN, b""), (SERVER, CLIENT, 76, SYN_ACK, b"")]
    up = [(CLIENT, SERVER, first + 1 + i, ACK, sent[i : i + cut]) for i in range(0, len(sent), cut)]
    down = [(SERVER, CLIENT, 77 + i, ACK, received[i : i + cut]) for i in range(0, len(received), cut)]
    return [*begun, *up, *down]


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 2**32 - 1), st.integers(1, 40), st.randoms())
def test_what_was_said_is_put_together(
    sent: bytes, received: bytes, first: int, cut: int, chance: random.Random
) -> None:
    """In whatever order segments come, some twice, and wherever sequence numbers begin."""
    syn, syn_ack, *rest = spoken(sent, received, first=first, cut=cut)
    rest += rest[:3]
    chance.shuffle(rest)
    (found,) = conversations(read_segments(record([syn, syn_ack, *rest])))
    assert (found.client, found.server) == (CLIENT, SERVER)
    assert (found.sent, found.received) == (sent, received)


def test_it_ends_at_a_gap() -> None:
    """What came after bytes that nobody saw is not guessed at."""
    packets = spoken(b"0123456789", b"", cut=2)
    del packets[4]
    (found,) = conversations(read_segments(record(packets)))
    assert found.sent == b"0123"


def test_a_stream_is_bounded() -> None:
    """What is said beyond the bound is not kept."""
    (found,) = conversations(read_segments(record(spoken(b"x" * (MAX_STREAM_BYTES + 5000), b"", cut=60_000))))
    assert len(found.sent) == MAX_STREAM_BYTES


def test_a_port_used_twice_is_two_conversations() -> None:
    """The second begins where its SYN stands."""
    packets = [*spoken(b"one", b"1"), *spoken(b"two", b"2", first=9)]
    found = list(conversations(read_segments(record(packets))))
    assert [(each.sent, each.received) for each in found] == [(b"one", b"1"), (b"two", b"2")]


@pytest.mark.parametrize(
    ("order", "magic"), [("<", 0xA1B2C3D4), (">", 0xA1B2C3D4), ("<", 0xA1B23C4D), (">", 0xA1B23C4D)]
)
def test_both_byte_orders_and_clocks(order: str, magic: int) -> None:
    """As libpcap writes them."""
    (found,) = conversations(read_segments(record(spoken(b"a", b"b"), order=order, magic=magic)))
    assert (found.sent, found.received) == (b"a", b"b")


@given(st.binary(max_size=400))
def test_any_bytes_are_a_record_or_are_refused(garbage: bytes) -> None:
    """Nothing but `ValueError`."""
    with contextlib.suppress(ValueError):
        assert list(conversations(read_segments(garbage))) is not None


@given(st.binary(max_size=200), st.integers(0, 200))
def test_damaged_packets_are_passed_over(garbage: bytes, at: int) -> None:
    """Whatever stands in a frame."""
    whole = bytearray(record(spoken(b"hello", b"world")))
    body = slice(40 + at, 40 + at + len(garbage))
    whole[body] = garbage[: len(whole[body])]
    assert list(conversations(read_segments(bytes(whole)))) is not None
