"""RESP: requests in (arrays of bulk strings, or lines), replies out. Pure and bounded.

https://redis.io/docs/latest/develop/reference/protocol-spec/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from belljar.dataclass import dataclass
from belljar.network.stand_ins.conversation import MessageReader

MAX_LINE_BYTES: Final = 64 << 10
MAX_ARGUMENTS: Final = 1024
MAX_ARGUMENT_BYTES: Final = 64 << 10
# A real server takes more: what is larger is refused as it refuses what it finds too large
MAX_COMMAND_BYTES: Final = 128 << 10
ANONYMOUS_ARGUMENTS: Final = 10
ANONYMOUS_ARGUMENT_BYTES: Final = 16 << 10  # Before a login, as real servers bound it
_NUMBER: Final = re.compile(rb"-?[0-9]{1,18}")
_WORD: Final = re.compile(rb"\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s\"']+)", re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}

Reply: TypeAlias = "bytes | int | Sequence[Reply] | Mapping[bytes, Reply] | Status | Error | None"


class Status(bytes):
    """A simple string, as `OK`."""


class Error(bytes):
    """An error, its code first."""


@dataclass(frozen=True, slots=True)
class Command:
    """`problem`: the protocol's error, without words."""

    words: tuple[bytes, ...]
    raw: bytes
    problem: bytes = b""


class Reader(MessageReader[Command]):
    """Bytes → commands."""

    def __init__(self) -> None:
        super().__init__()
        self._raw = bytearray()
        self._words: list[bytes] = []
        self._missing = 0
        self._size: int | None = None

    @property
    def rest(self) -> bytes:
        """Bytes of an incomplete command."""
        return bytes(self._raw + self._buffer)

    def _next(self) -> Command | None:
        while True:
            if self._size is not None:
                # Without the two bytes behind it, whatever they are, as real servers do.
                if len(self._buffer) < self._size + 2:
                    return None
                self._words.append(bytes(self._buffer[: self._size]))
                self._move(self._size + 2)
                self._size = None
                self._missing -= 1
                if not self._missing:
                    return self._done()
                continue
            end = self._buffer.find(b"\n", 0, MAX_LINE_BYTES + 1)
            if end < 0:
                too_long = len(self._buffer) > MAX_LINE_BYTES
                kind = b"bulk count string" if self._missing else b"inline request"
                return self._fail(b"too big " + kind) if too_long else None
            line = bytes(self._buffer[:end]).removesuffix(b"\r")
            self._move(end + 1)
            found = self._take_head(line)
            if found is not None:
                return found

    def _take_head(self, line: bytes) -> Command | None:
        if self._missing:
            if not line.startswith(b"$"):
                return self._fail(b"expected '$', got '%s'" % (line[:1] or b" "))
            size = number(line[1:])
            is_bounded = size is not None and 0 <= size <= MAX_ARGUMENT_BYTES
            if size is None or not is_bounded or len(self._raw) + size > MAX_COMMAND_BYTES:
                return self._fail(b"invalid bulk length")
            if self.is_anonymous and size > ANONYMOUS_ARGUMENT_BYTES:
                return self._fail(b"unauthenticated bulk length")
            self._size = size
            return None
        if line.startswith(b"*"):
            count = number(line[1:])
            if count is None or count > MAX_ARGUMENTS:
                return self._fail(b"invalid multibulk length")
            if self.is_anonymous and count > ANONYMOUS_ARGUMENTS:
                return self._fail(b"unauthenticated multibulk length")
            self._missing = max(0, count)
            return None
        words = split_line(line)
        if words is None:
            return self._fail(b"unbalanced quotes in request")
        self._words = words
        return self._done() if words else None

    def _move(self, count: int) -> None:
        if not (self._missing or self._words):
            self._raw.clear()
        self._raw += self._buffer[:count]
        del self._buffer[:count]

    def _done(self) -> Command:
        command = Command(tuple(self._words), bytes(self._raw))
        self._words, self._missing = [], 0
        self._raw.clear()
        return command

    def _fail(self, problem: bytes) -> Command:
        raw = self._stop()
        self._raw.clear()
        return Command((), raw, b"ERR Protocol error: " + problem)


def number(text: bytes) -> int | None:
    """A whole number of at most 18 digits."""
    return int(text) if _NUMBER.fullmatch(text) else None


def split_line(line: bytes) -> list[bytes] | None:
    """An inline request's words; None: unbalanced quotes."""
    words: list[bytes] = []
    at = 0
    while at < len(line) and len(words) <= MAX_ARGUMENTS:
        if line[at : at + 1].isspace():
            at += 1
            continue
        match = _WORD.match(line, at)
        if match is None:
            return None
        at = match.end()
        if match[3] is None and line[at : at + 1].strip():
            return None
        double, single, plain = match.groups()
        words.append(
            _ESCAPE.sub(_unescaped, double) if double is not None else single or plain or b""
        )
    return words


def _unescaped(match: re.Match[bytes]) -> bytes:
    return bytes.fromhex(match[1].decode()) if match[1] else _ESCAPED.get(match[2], match[2])


def render(reply: Reply, version: int = 2) -> bytes:
    """Maps and null have a form of their own in RESP 3."""
    match reply:
        case None:
            return b"_\r\n" if version == 3 else b"$-1\r\n"
        case Status():
            return b"+%s\r\n" % reply
        case Error():
            return b"-%s\r\n" % reply.translate(_ONE_LINE)
        case bytes():
            return b"$%d\r\n%s\r\n" % (len(reply), reply)
        case int():
            return b":%d\r\n" % reply
        case Mapping():
            head = b"%%%d\r\n" % len(reply) if version == 3 else b"*%d\r\n" % (2 * len(reply))
            parts = [part for pair in reply.items() for part in pair]
            return head + b"".join(render(part, version) for part in parts)
        case _:
            return b"*%d\r\n" % len(reply) + b"".join(render(item, version) for item in reply)


_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
