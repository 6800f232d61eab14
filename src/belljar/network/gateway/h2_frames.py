"""HTTP/2 frames before the library sees them, and what of each frame's bytes is no request's.

Sans-io.

RFC 9113 section 4.1 and 6; RFC 7541 section 6.3 (table size updates).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from belljar.network.gateway.account import Account
from belljar.network.gateway.h2_guard import FRAME_HEADER_BYTES, PREFACE

DATA, HEADERS, SETTINGS, CONTINUATION = 0, 1, 4, 9
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
_PRIORITY_FLAG: Final = 0x20
_NAMES: Final = {
    DATA: "data",
    HEADERS: "headers",
    2: "priority",
    3: "rst_stream",
    SETTINGS: "settings",
    5: "push_promise",
    6: "ping",
    7: "goaway",
    8: "window_update",
    CONTINUATION: "continuation",
}
_FLAGS: Final = {DATA: 0x9, HEADERS: 0x2D, SETTINGS: 0x1, 6: 0x1, CONTINUATION: END_HEADERS}
"""Those that a frame of this type may have; of others none."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame, or what can't be one."""

    raw: bytes

    @property
    def kind(self) -> int:
        """Its type; -1 of the preface and of what is no whole frame."""
        return self.raw[3] if len(self.raw) >= FRAME_HEADER_BYTES and self.raw != PREFACE else -1

    @property
    def name(self) -> str:
        """Its type's name."""
        return _NAMES.get(self.kind, "unknown")

    @property
    def flags(self) -> int:
        """As they came."""
        return self.raw[4]

    @property
    def stream(self) -> int:
        """Its stream, the reserved bit included: with it set this is no stream's number."""
        return int.from_bytes(self.raw[5:FRAME_HEADER_BYTES], "big")

    @property
    def payload(self) -> bytes:
        """All behind its header."""
        return self.raw[FRAME_HEADER_BYTES:]

    @property
    def padded(self) -> tuple[bytes, bytes, bytes]:
        """The payload of DATA or HEADERS in three: what stands before its content, the content, the
        padding.
        """
        payload, front, back = self.payload, 0, 0
        if self.kind != CONTINUATION and self.flags & PADDED:
            front, back = 1, payload[0] if payload else 0
        if self.kind == HEADERS and self.flags & _PRIORITY_FLAG:
            front += 5
        end = max(front, len(payload) - back)
        return payload[:front], payload[front:end], payload[end:]

    def has_known_header(self, streams: frozenset[int] | set[int]) -> bool:
        """Whether nothing in its header was free to choose: known flags, and one of these
        streams.
        """
        return not self.flags & ~_FLAGS.get(self.kind, 0) and self.stream in streams


class Frames:
    """Cuts a connection's bytes into its preface and frames."""

    def __init__(self, max_payload_bytes: int) -> None:
        self._max_payload_bytes = max_payload_bytes
        self._buffer = bytearray()
        self._has_preface = False

    def feed(self, data: bytes) -> None:
        """More bytes."""
        self._buffer += data

    def next(self) -> Frame | None:
        """The next one, if it is whole.

        What is too long comes as far as it is there: the library refuses it.
        """
        buffer = self._buffer
        if not self._has_preface:
            if len(buffer) < len(PREFACE) and PREFACE.startswith(buffer):
                return None
            self._has_preface = True
            return self._cut(len(PREFACE) if buffer.startswith(PREFACE) else len(buffer))
        if len(buffer) < FRAME_HEADER_BYTES:
            return None
        length = int.from_bytes(buffer[:3], "big")
        end = FRAME_HEADER_BYTES + length if length <= self._max_payload_bytes else len(buffer)
        return self._cut(end) if len(buffer) >= end else None

    def _cut(self, end: int) -> Frame:
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        return Frame(raw)

    @property
    def rest(self) -> bytes:
        """What is not whole."""
        return bytes(self._buffer)

    def take_rest(self) -> bytes:
        """What is not whole, and no longer held."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest


def account_for_control(account: Account, frame: Frame, streams: set[int]) -> None:
    """A frame that carries nothing of a request: its payload remains, and so does a header with a
    choice in it.
    """
    kind = f"h2_{frame.name}"
    if frame.name != "unknown" and frame.has_known_header(streams | {0}):
        account.frame(FRAME_HEADER_BYTES)
        account.remain(kind, frame.payload)
    else:
        account.remain(kind, frame.raw)


def account_for_header(account: Account, frame: Frame, streams: set[int]) -> bytes:
    """A frame of a request, but for its content, which is returned."""
    if frame.has_known_header(streams):
        account.frame(FRAME_HEADER_BYTES)
    else:
        account.remain(f"h2_{frame.name}", frame.raw[:FRAME_HEADER_BYTES])
    front, content, padding = frame.padded
    account.remain(
        "h2_priority" if frame.kind == HEADERS and len(front) >= 5 else "h2_padding", front
    )
    account.remain("h2_padding", padding)
    return content


def size_updates(block: bytes) -> int:
    """How many bytes at the front of a header block are table size updates: no field's."""
    at = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        is_long = block[at] & 0x1F == 0x1F
        at += 1
        while is_long and at < len(block):
            is_long = bool(block[at] & 0x80)
            at += 1
    return at
