"""Frames of a cell's attach socket, between `belljar attach` and the cell's owner. Pure.

A frame is one byte of kind, four of length (little-endian), the payload (at most 64 KiB). Both ends
belong to the same user of the same host; the bounds are there because a broken peer must not hurt
the owner.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final

MAX_PAYLOAD_BYTES: Final = 1 << 16
_HEAD: Final = struct.Struct("<cI")
_SIZE: Final = struct.Struct("<HH")


class FrameKind(Enum):
    """What a frame means."""

    OPEN = b"O"
    INPUT = b"I"
    INPUT_END = b"E"
    RESIZE = b"W"
    RELEASE = b"K"
    CONNECT = b"C"
    OUTPUT_END = b"F"
    OUTPUT = b"D"
    EXIT = b"X"


class AttachError(ValueError):
    """The peer sent something that is not of this protocol."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The first frame: who wants what."""

    argv: tuple[str, ...] = ()
    user: str | None = None
    rows: int = 24
    cols: int = 80
    term: str = "xterm"

    def payload(self) -> bytes:
        """As bytes."""
        return json.dumps(asdict(self)).encode()


def read_opening(payload: bytes) -> Opening:
    """The opening in a frame. Raises `AttachError`."""
    try:
        said = json.loads(payload)
        return Opening(
            argv=tuple(str(arg) for arg in said["argv"]),
            user=None if said["user"] is None else str(said["user"]),
            rows=int(said["rows"]) & 0xFFFF,
            cols=int(said["cols"]) & 0xFFFF,
            term=str(said["term"])[:64],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise AttachError("not an opening") from error


def read_target(payload: bytes) -> int | str:
    """What a `CONNECT` names: a port, or a path. Raises `AttachError`."""
    try:
        text = payload.decode()
    except UnicodeDecodeError as error:
        raise AttachError("not a target") from error
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else text


def frame(kind: FrameKind, payload: bytes = b"") -> bytes:
    """One frame. The payload must fit."""
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise AttachError(f"{len(payload)} bytes in one frame")
    return _HEAD.pack(kind.value, len(payload)) + payload


def frames(kind: FrameKind, payload: bytes) -> Iterator[bytes]:
    """As many frames as the payload needs."""
    for start in range(0, len(payload), MAX_PAYLOAD_BYTES):
        yield frame(kind, payload[start : start + MAX_PAYLOAD_BYTES])


def size_payload(rows: int, cols: int) -> bytes:
    """A terminal's size."""
    return _SIZE.pack(rows & 0xFFFF, cols & 0xFFFF)


def read_size(payload: bytes) -> tuple[int, int]:
    """Rows and columns. Raises `AttachError`."""
    try:
        rows, cols = _SIZE.unpack(payload)
    except struct.error as error:
        raise AttachError("not a terminal's size") from error
    return int(rows), int(cols)


class FrameReader:
    """Bytes in, frames out. Holds at most one frame's worth of bytes beyond what it was fed."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, chunk: bytes) -> Iterator[tuple[FrameKind, bytes]]:
        """The frames that `chunk` completes. Raises `AttachError`."""
        self._held += chunk
        while len(self._held) >= _HEAD.size:
            kind, length = _HEAD.unpack_from(self._held)
            if length > MAX_PAYLOAD_BYTES:
                raise AttachError(f"a frame of {length} bytes")
            if len(self._held) < _HEAD.size + length:
                return
            payload = bytes(self._held[_HEAD.size : _HEAD.size + length])
            del self._held[: _HEAD.size + length]
            try:
                yield FrameKind(kind), payload
            except ValueError as error:
                raise AttachError(f"a frame of kind {kind!r}") from error
