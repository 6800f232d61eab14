"""The encoders: what can't be said is refused, and a request of any size is whole. That a guest agent
reads each field where it is written: `tests/contract/test_channel_*`."""

from __future__ import annotations

import struct

import pytest

from belljar.channel import frames
from belljar.channel.frames import FrameType, OpKind


def split(said: bytes) -> list[tuple[int, int, bytes]]:
    """Frames as (type, op, payload)."""
    found = []
    while said:
        length, kind, flags, reserved, op = struct.unpack_from("<IBBHI", said)
        assert (flags, reserved) == (0, 0)
        assert length <= 65_536
        found.append((kind, op, said[12 : 12 + length]))
        said = said[12 + length :]
    return found


@pytest.mark.parametrize("size", [0, 65_535, 65_536, 131_072, 4 << 20])
def test_a_request_of_any_size_arrives_whole(size: int) -> None:
    """PARTs and START together are the body; only the last frame is START."""
    body = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    *parts, last = split(frames.request_frames(9, OpKind.WRITE, body))
    assert {kind for kind, _, _ in parts} <= {FrameType.PART}
    assert (last[0], last[2][0]) == (FrameType.START, OpKind.WRITE)
    assert {op for _, op, _ in [*parts, last]} == {9}
    assert b"".join(part[2] for part in parts) + last[2][1:] == body
