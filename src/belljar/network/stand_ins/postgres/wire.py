"""PostgreSQL's protocol 3: messages in, messages out. Pure and bounded.

https://www.postgresql.org/docs/15/protocol-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from belljar.dataclass import dataclass
from belljar.network.stand_ins.conversation import MessageReader

MAX_STARTUP_BYTES: Final = 10_000  # As the real server's
MAX_PASSWORD_BYTES: Final = 8 << 10
# A real server takes more: what is larger is refused as it refuses what it finds too large
MAX_MESSAGE_BYTES: Final = 64 << 10
SSL_REQUEST: Final = 80_877_103
GSS_REQUEST: Final = 80_877_104
CANCEL_REQUEST: Final = 80_877_102
PROTOCOL_MAJOR: Final = 3


@dataclass(frozen=True, slots=True)
class Message:
    """`kind`: its letter, or "" and `code` at startup. `problem`: why it is invalid."""

    kind: str
    body: bytes
    raw: bytes
    code: int = 0
    problem: str = ""


class Reader(MessageReader[Message]):
    """`is_begun`: the startup message has come."""

    def __init__(self) -> None:
        super().__init__()
        self.is_begun = False

    def _next(self) -> Message | None:
        head = 5 if self.is_begun else 4
        if len(self._buffer) < head:
            return None
        (length,) = struct.unpack_from("!i", self._buffer, head - 4)
        low, high, what = 8, MAX_STARTUP_BYTES, "length of startup packet"
        if self.is_begun:
            low, what = 4, "message length"
            high = MAX_PASSWORD_BYTES if self.is_anonymous else MAX_MESSAGE_BYTES
        if not low <= length <= high:
            return Message("", b"", self._stop(), problem=f"invalid {what}")
        end = head - 4 + length
        if len(self._buffer) < end:
            return None
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        if self.is_begun:
            return Message(chr(raw[0]), raw[5:], raw)
        return Message("", raw[8:], raw, code=struct.unpack_from("!I", raw, 4)[0])


def startup_parameters(body: bytes) -> Mapping[bytes, bytes]:
    """Names and values, up to the first empty name."""
    words = body.split(b"\0")[:-1]
    pairs = zip(words[::2], words[1::2], strict=False)
    return {name: value for name, value in pairs if name}


def message(kind: str, body: bytes = b"") -> bytes:
    """A message of the server's."""
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def text(value: str) -> bytes:
    """A zero-ended string."""
    return value.encode("utf-8", "replace").replace(b"\0", b"") + b"\0"


def error(code: str, what: str, *, severity: str = "ERROR") -> bytes:
    """An error with its SQLSTATE."""
    fields = (("S", severity), ("V", severity), ("C", code), ("M", what))
    return message("E", b"".join(name.encode() + text(value) for name, value in fields) + b"\0")
