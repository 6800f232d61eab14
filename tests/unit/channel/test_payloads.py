"""Reading a guest's payload: what is written is read, and nothing is read that isn't there."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.channel.frames import MAX_TEXT_BYTES, FrameType
from belljar.channel.messages import Payload, violated
from belljar.errors import ProtocolViolation

READERS = ("u8", "u16", "u32", "u64", "text", "end")


def payload(raw: bytes) -> Payload:
    """A RESULT of operation 5."""
    return Payload(raw, kind=int(FrameType.RESULT), op=5)


@given(
    st.integers(0, 2**8 - 1),
    st.integers(0, 2**16 - 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**64 - 1),
)
def test_numbers_come_back(a: int, b: int, c: int, d: int) -> None:
    """Little-endian, without padding, in their order."""
    cursor = payload(struct.pack("<BHIQ", a, b, c, d))
    assert (cursor.u8(), cursor.u16(), cursor.u32(), cursor.u64()) == (a, b, c, d)
    cursor.end()


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_texts_come_back(text: str) -> None:
    """A text that is UTF-8 is itself; controls are kept for who shows it to escape."""
    raw = text.encode()
    assert payload(struct.pack("<I", len(raw)) + raw).text() == text


@given(raw=st.binary(max_size=40), reads=st.lists(st.sampled_from(READERS), max_size=10))
def test_hostile_payloads(raw: bytes, reads: list[str]) -> None:
    """Whatever is read from whatever bytes: a value or a `ProtocolViolation`, and never more than
    there is."""
    cursor = payload(raw)
    try:
        for read in reads:
            getattr(cursor, read)()
    except ProtocolViolation:
        return
    rest = len(raw) - sum(
        {"u8": 1, "u16": 2, "u32": 4, "u64": 8}.get(read, 0) for read in reads if read != "text"
    )
    assert rest >= 0


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (
            struct.pack("<I", MAX_TEXT_BYTES + 1) + bytes(MAX_TEXT_BYTES + 1),
            "4097 bytes; at most 4096",
        ),
        (struct.pack("<I", 0xFFFFFFFF), "4294967295"),
        (struct.pack("<I", 2) + b"x", "should be longer"),
        (b"\0\0\0", "should be longer"),
    ],
)
def test_texts_are_bounded_before_they_are_taken(raw: bytes, why: str) -> None:
    """A length over the limit or over the frame is refused."""
    with pytest.raises(ProtocolViolation, match=why):
        payload(raw).text()


def test_nothing_may_follow() -> None:
    """Bytes too many are refused, with their number."""
    cursor = payload(b"abc")
    cursor.take(1)
    with pytest.raises(ProtocolViolation, match="2 bytes too many"):
        cursor.end()


@pytest.mark.parametrize(
    ("kind", "op", "where"),
    [(int(FrameType.RESULT), 5, "channel, RESULT of operation 5"), (0x7F, 0, "channel, type 0x7f")],
)
def test_a_violation_says_where(kind: int, op: int, where: str) -> None:
    """The frame's name, or its number when it has none, and its operation; and what to do next."""
    with pytest.raises(ProtocolViolation, match="broke the protocol: why") as caught:
        violated("why", kind, op)
    assert caught.value.where == where
    assert caught.value.hint
