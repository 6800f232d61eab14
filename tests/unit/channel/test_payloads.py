"""Reading a guest's payload: what is written is read, and nothing is read that isn't there."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from belljar.channel.frames import FrameType
from belljar.channel.messages import Payload
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
