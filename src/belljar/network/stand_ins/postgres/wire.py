"""PostgreSQL's protocol 3: messages in, messages out. Pure and bounded.

https://www.postgresql.org/docs/15/protocol-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
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
# Object id and size
TYPES: Final[Mapping[str, tuple[int, int]]] = {
    "integer": (23, 4),
    "text": (25, -1),
    "bigint": (20, 8),
    "name": (19, 64),
}
_INTEGERS: Final = frozenset({20, 21, 23})


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


@dataclass(frozen=True, slots=True)
class Bound:
    """A Bind message behind its names. `parameters`: as text; null is empty."""

    parameters: tuple[str, ...] = ()
    result_formats: tuple[int, ...] = ()

    def is_binary(self, column: int) -> bool:
        """Whether a column of the result goes out in binary."""
        return _format(self.result_formats, column) == 1


NOT_BOUND: Final = Bound()


def _format(formats: Sequence[int], index: int) -> int:
    """One format counts for all; without any, it is text."""
    if len(formats) == 1:
        return formats[0]
    return formats[index] if index < len(formats) else 0


def read_bound(body: bytes, types: Sequence[int]) -> Bound | None:
    """A Bind message from its formats on; None if invalid."""
    try:
        formats, at = _numbers(body, 0)
        (count,) = struct.unpack_from("!H", body, at)
        at += 2
        values = []
        for index in range(count):
            (size,) = struct.unpack_from("!i", body, at)
            at += 4
            if size > len(body) - at:
                return None
            value = body[at : at + max(0, size)]
            at += len(value)
            is_number = index < len(types) and types[index] in _INTEGERS
            if not (is_number and _format(formats, index) == 1):
                values.append(value.decode("utf-8", "replace"))
            elif len(value) > 8:
                return None
            else:
                values.append(str(int.from_bytes(value, "big", signed=True)))
        result_formats, _ = _numbers(body, at)
    except struct.error:
        return None
    return Bound(tuple(values), result_formats)


def parameter_types(body: bytes) -> tuple[int, ...]:
    """Of a Parse message, from their count on."""
    count = min(struct.unpack_from("!H", body)[0] if len(body) >= 2 else 0, (len(body) - 2) // 4)
    return tuple(struct.unpack_from(f"!{max(0, count)}I", body, 2)) if count > 0 else ()


def _numbers(body: bytes, at: int) -> tuple[tuple[int, ...], int]:
    (count,) = struct.unpack_from("!H", body, at)
    return struct.unpack_from(f"!{count}H", body, at + 2), at + 2 + 2 * count


def message(kind: str, body: bytes = b"") -> bytes:
    """A message of the server's."""
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def text(value: str) -> bytes:
    """A zero-ended string."""
    return value.encode("utf-8", "replace").replace(b"\0", b"") + b"\0"


def error(code: str, what: str, *, severity: str = "ERROR", position: int = 0) -> bytes:
    """`position`: of the character, from 1; 0: none."""
    fields = [("S", severity), ("V", severity), ("C", code), ("M", what)]
    fields += [("P", str(position))] if position else []
    return message("E", b"".join(name.encode() + text(value) for name, value in fields) + b"\0")


def row_description(columns: Sequence[tuple[str, str]], bound: Bound = NOT_BOUND) -> bytes:
    """Of columns by name and type."""
    body = struct.pack("!h", len(columns))
    for index, (name, kind) in enumerate(columns):
        oid, size = TYPES[kind]
        body += text(name) + struct.pack("!ihihih", 0, 0, oid, size, -1, bound.is_binary(index))
    return message("T", body)


def data_row(
    values: Sequence[str], columns: Sequence[tuple[str, str]], bound: Bound = NOT_BOUND
) -> bytes:
    """A text's binary form is its text."""
    row = struct.pack("!h", len(values))
    for index, (value, (_, kind)) in enumerate(zip(values, columns, strict=True)):
        oid, size = TYPES[kind]
        encoded = value.encode("utf-8", "replace")
        if oid in _INTEGERS and bound.is_binary(index):
            number = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else 0
            largest = (1 << (8 * size - 1)) - 1
            encoded = min(number, largest).to_bytes(size, "big", signed=True)
        row += struct.pack("!i", len(encoded)) + encoded
    return message("D", row)
