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
ANONYMOUS_ARGUMENT_BYTES: Final = 16 << 10  # Of who isn't logged in, as real servers bound it
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
    """A request's words and bytes; without words, `problem` is the protocol's error."""

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
        """Of a command that isn't complete."""
        return bytes(self._raw + self._buffer)

    def _next(self) -> Command | None:
        while True:
            if self._size is not None:
                piece = self._take_bulk(self._size)
                if piece is None:
                    return None
                self._words.append(piece)
                self._size = None
                self._missing -= 1
                if not self._missing:
                    return self._done()
                continue
            line = self._take_line()
            if line is None:
                too_long = len(self._buffer) > MAX_LINE_BYTES
                kind = b"bulk count string" if self._missing else b"inline request"
                return self._fail(b"too big " + kind) if too_long else None
            found = self._take_head(line)
            if found is not None:
                return found

    def _take_head(self, line: bytes) -> Command | None:
        if self._missing:
            if not line.startswith(b"$"):
                return self._fail(b"expected '$', got '%s'" % (line[:1] or b" "))
            size = _number(line[1:])
            if (
                size is None
                or not 0 <= size <= MAX_ARGUMENT_BYTES
                or len(self._raw) + size > MAX_COMMAND_BYTES
            ):
                return self._fail(b"invalid bulk length")
            if self.is_anonymous and size > ANONYMOUS_ARGUMENT_BYTES:
                return self._fail(b"unauthenticated bulk length")
            self._size = size
            return None
        if line.startswith(b"*"):
            count = _number(line[1:])
            if count is None or count > MAX_ARGUMENTS:
                return self._fail(b"invalid multibulk length")
            if self.is_anonymous and count > ANONYMOUS_ARGUMENTS:
                return self._fail(b"unauthenticated multibulk length")
            if count > 0:
                self._missing = count
            return None
        words = split_line(line)
        if words is None:
            return self._fail(b"unbalanced quotes in request")
        self._words = words
        return self._done() if words else None

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\n", 0, MAX_LINE_BYTES + 1)
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        self._move(end + 1)
        return line.removesuffix(b"\r")

    def _take_bulk(self, size: int) -> bytes | None:
        """The argument, without the two bytes behind it, whatever they are, as real servers do."""
        if len(self._buffer) < size + 2:
            return None
        piece = bytes(self._buffer[:size])
        self._move(size + 2)
        return piece

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


def _number(text: bytes) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


def split_line(line: bytes) -> list[bytes] | None:
    """The words of an inline request, quotes undone; None when they aren't balanced."""
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
            plain if plain is not None else _unescaped(double) if double is not None else single
        )
    return words


def _unescaped(text: bytes) -> bytes:
    def one(match: re.Match[bytes]) -> bytes:
        return bytes.fromhex(match[1].decode()) if match[1] else _ESCAPED.get(match[2], match[2])

    return _ESCAPE.sub(one, text)


def render(reply: Reply, version: int = 2) -> bytes:
    """A reply as it goes out; maps and null have a form of their own in RESP 3."""
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
            return head + b"".join(
                render(name, version) + render(value, version) for name, value in reply.items()
            )
        case _:
            return b"*%d\r\n" % len(reply) + b"".join(render(item, version) for item in reply)


_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
