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
    """`kind`: its letter, or "" and `code` at the beginning. `problem`: why it is invalid."""

    kind: str
    body: bytes
    raw: bytes
    code: int = 0
    problem: str = ""


class Reader(MessageReader[Message]):
    """Bytes → messages. `is_begun`: the startup message has come."""

    def __init__(self) -> None:
        super().__init__()
        self.is_begun = False

    def _next(self) -> Message | None:
        head = 5 if self.is_begun else 4
        if len(self._buffer) < head:
            return None
        (length,) = struct.unpack_from("!i", self._buffer, head - 4)
        most = MAX_STARTUP_BYTES
        if self.is_begun:
            most = MAX_PASSWORD_BYTES if self.is_stranger else MAX_MESSAGE_BYTES
        least = 4 if self.is_begun else 8
        if not least <= length <= most:
            return self._fail(
                "invalid message length" if self.is_begun else "invalid length of startup packet"
            )
        end = head - 4 + length
        if len(self._buffer) < end:
            return None
        raw = bytes(self._buffer[:end])
        del self._buffer[:end]
        if self.is_begun:
            return Message(chr(raw[0]), raw[5:], raw)
        return Message("", raw[8:], raw, code=struct.unpack_from("!I", raw, 4)[0])

    def _fail(self, problem: str) -> Message:
        return Message("", b"", self._stop(), problem=problem)


def strings(body: bytes) -> list[bytes]:
    """The zero-ended strings of a body."""
    return body.split(b"\0")[:-1]


def startup_parameters(body: bytes) -> Mapping[bytes, bytes]:
    """Names and values, up to the first empty name."""
    words = strings(body)
    pairs = zip(words[::2], words[1::2], strict=False)
    return {name: value for name, value in pairs if name}


@dataclass(frozen=True, slots=True)
class Bound:
    """What a Bind message says behind its names. `parameters`: as text; null is empty."""

    parameters: tuple[str, ...] = ()
    result_formats: tuple[int, ...] = ()

    def is_binary(self, column: int) -> bool:
        """Whether a column of the result goes out in binary."""
        formats = self.result_formats
        return (
            bool(formats)
            and formats[column if len(formats) > 1 and column < len(formats) else 0] == 1
        )


NOT_BOUND: Final = Bound()


def read_bound(body: bytes, types: Sequence[int]) -> Bound | None:
    """A Bind message from its formats on (type 0: text); None if it isn't one."""
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
            form = (
                formats[index if len(formats) > 1 else 0]
                if index < len(formats) or len(formats) == 1
                else 0
            )
            is_number = form == 1 and index < len(types) and types[index] in _INTEGERS
            values.append(
                str(int.from_bytes(value, "big", signed=True))
                if is_number
                else value.decode("utf-8", "replace")
            )
            if is_number and len(value) > 8:
                return None
        result_formats, _ = _numbers(body, at)
    except struct.error:
        return None
    return Bound(tuple(values), result_formats)


def parameter_types(body: bytes) -> tuple[int, ...]:
    """Of a Parse message, from their count on; those that it leaves out are text."""
    count = min(struct.unpack_from("!H", body)[0] if len(body) >= 2 else 0, (len(body) - 2) // 4)
    return tuple(struct.unpack_from(f"!{max(0, count)}I", body, 2)) if count > 0 else ()


def _numbers(body: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """A count and so many small numbers, and where they end. Raises `struct.error`."""
    (count,) = struct.unpack_from("!H", body, at)
    return struct.unpack_from(f"!{count}H", body, at + 2), at + 2 + 2 * count


def message(kind: str, body: bytes = b"") -> bytes:
    """A message of the server's."""
    return kind.encode() + struct.pack("!i", len(body) + 4) + body


def text(value: str) -> bytes:
    """A zero-ended string."""
    return value.encode("utf-8", "replace").replace(b"\0", b"") + b"\0"


def error(code: str, what: str, *, severity: str = "ERROR", position: int = 0) -> bytes:
    """`position`: of the character in the query, from 1; 0: none."""
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
    """Each in the form that was asked for; a text's binary form is its text."""
    said = struct.pack("!h", len(values))
    for index, (value, (_, kind)) in enumerate(zip(values, columns, strict=True)):
        size = TYPES[kind][1]
        is_number = TYPES[kind][0] in _INTEGERS and bound.is_binary(index)
        encoded = _binary(value, size) if is_number else value.encode("utf-8", "replace")
        said += struct.pack("!i", len(encoded)) + encoded
    return message("D", said)


def _binary(value: str, size: int) -> bytes:
    most = 1 << (8 * size - 1)
    number = int(value) if value.isascii() and value.isdigit() and len(value) < 20 else 0
    return min(number, most - 1).to_bytes(size, "big", signed=True)
