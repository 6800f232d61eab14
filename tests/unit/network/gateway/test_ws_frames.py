"""A WebSocket's frames, in whatever pieces they come."""

from __future__ import annotations

import pytest
import wsproto
from hypothesis import given
from hypothesis import strategies as st
from wsproto.events import BytesMessage, Ping

from belljar.network.gateway.site import Account
from belljar.network.gateway.websocket import WebSocketFrames, unmasked


def cut(data: bytes, size: int) -> list[bytes]:
    """In pieces."""
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(st.lists(st.binary(max_size=400), max_size=5), st.integers(1, 500))
def test_messages_and_the_rest_are_told_apart(messages: list[bytes], size: int) -> None:
    """What the library sends is read back: payloads to the byte, a mask of four bytes a frame,
    pings."""
    engine = wsproto.connection.Connection(wsproto.ConnectionType.CLIENT)
    sent = b"".join(
        engine.send(event) for data in messages for event in (Ping(b"ping"), BytesMessage(data))
    )
    account = Account()
    frames = WebSocketFrames(account)
    for piece in cut(sent, size):
        account.receive(len(piece))
        frames.feed(piece)
    frames.record(sum(map(len, messages)))
    frames.leave()
    assert account.missing_bytes == 0
    assert account.recorded_bytes == sum(map(len, messages))
    assert account.remainder_bytes == len(messages) * (4 + 4 + 4)


@pytest.mark.promise("5.4")
@given(st.lists(st.binary(max_size=30), max_size=6))
def test_no_byte_is_lost_of_what_is_no_frame(pieces: list[bytes]) -> None:
    """Whatever comes is framing, or in the remainder."""
    account = Account()
    frames = WebSocketFrames(account)
    for piece in pieces:
        account.receive(len(piece))
        frames.feed(piece)
    frames.leave()
    assert account.missing_bytes == 0


@given(st.binary(max_size=50), st.binary(min_size=4, max_size=4), st.integers(0, 50))
def test_a_mask_is_taken_off_from_any_place(data: bytes, mask: bytes, at: int) -> None:
    """RFC 6455 section 5.3."""
    assert unmasked(data, mask, at) == bytes(
        byte ^ mask[(at + n) % 4] for n, byte in enumerate(data)
    )
