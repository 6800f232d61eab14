"""HTTP/2 frames, in whatever pieces they come."""

from __future__ import annotations

import hpack
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.gateway_clients import raw_frame

from belljar.network.gateway.http2 import PREFACE, Frame, Frames, size_updates


def cut(data: bytes, size: int) -> list[Frame]:
    """The frames of these bytes, given in pieces."""
    frames, found = Frames(16384), []
    for at in range(0, len(data), size):
        frames.feed(data[at : at + size])
        while (frame := frames.next()) is not None:
            found.append(frame)
    return [*found, Frame(frames.take_rest())]


@given(
    st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=60)), max_size=8),
    st.integers(1, 300),
)
def test_frames_are_whole(given_frames: list[tuple[int, bytes]], size: int) -> None:
    """The preface and each frame come as they were sent."""
    sent = [PREFACE, *(raw_frame(kind, payload) for kind, payload in given_frames)]
    assert [frame.raw for frame in cut(b"".join(sent), size)] == [*sent, b""]


@given(st.binary(max_size=100), st.integers(1, 100))
def test_no_byte_is_lost(data: bytes, size: int) -> None:
    """What is no frame, and what is too long for one, comes all the same."""
    assert b"".join(frame.raw for frame in cut(data, size)) == data
    assert b"".join(frame.raw for frame in cut(PREFACE + data, size)) == PREFACE + data


@given(st.lists(st.integers(0, 4096), max_size=5))
def test_table_size_updates_end_where_the_fields_begin(sizes: list[int]) -> None:
    """RFC 7541 section 6.3."""
    encoder = hpack.Encoder()
    updates = b""
    for size in sizes:
        number = hpack.hpack.encode_integer(size, 5)
        number[0] |= 0x20
        updates += bytes(number)
    fields = encoder.encode([("x", "y"), (":path", "/")])
    assert size_updates(updates + fields) == len(updates)
