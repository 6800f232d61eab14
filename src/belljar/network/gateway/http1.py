"""Reads HTTP/1.1 from bytes; pure.

h11 reads whole heads alone, by its public interface: what two parsers could read in two ways is
refused before. Bodies are read here, in linear time.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import h11

from belljar.network.gateway.config import Bounds
from belljar.network.gateway.context import RefusedRequestError

# RFC 9112 sections 2.2 and 5.2, RFC 9110 section 5.5.
_AMBIGUOUS: Final = re.compile(
    rb"(?P<line>\r(?!\n|\Z)|(?<!\r)\n)|(?P<fold>\r\n[ \t])"
    rb"|(?P<control>[\0-\x08\x0b\x0c\x0e-\x1f\x7f])"
)
_PROBLEMS: Final = {
    "line": "a line ends with a bare CR or LF",
    "fold": "a folded header field",
    "control": "a control character in the head",
}
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length:([^\r]*)")
# The line of a chunk, and what may become one: first in a body, and behind another chunk. A size
# has one form, as it is in no event; extensions and trailers would be in none either.
_SIZE: Final = rb"(?:[1-9a-f][0-9a-f]{0,14}|[1-9A-F][0-9A-F]{0,14})"
_LINE: Final = rb"(?:(%s)\r\n|0\r\n\r\n)" % _SIZE
_BEGUN: Final = rb"(?:%s\r?|0(?:\r(?:\n\r?)?)?)?" % _SIZE
_FIRST_LINE: Final = re.compile(_LINE), re.compile(_BEGUN)
_NEXT_LINE: Final = re.compile(rb"\r\n" + _LINE), re.compile(rb"(?:\r(?:\n%s)?)?" % _BEGUN)
_MAX_LINE_BYTES: Final = 19
Head: TypeAlias = h11.Request | h11.Response | h11.InformationalResponse


class FramingError(ValueError):
    """A body's framing is not canonical."""


def head_problem(data: bytes | bytearray, start: int, stop: int) -> str:
    """Return why these bytes of a head are refused, or ""; what is before `start` was looked at."""
    found = _AMBIGUOUS.search(data, max(0, start - 3), stop)
    if found is not None:
        return _PROBLEMS[str(found.lastgroup)]
    return "no request line" if data[:1] in (b" ", b"\t", b"\r") else ""


def request_problem(request: Head, head: bytes, max_fields: int) -> tuple[str, int] | None:
    """Return why a head that h11 takes is refused, with the status, or None."""
    fields = list(request.headers)
    lengths = _LENGTH.findall(head)  # h11 merges equal ones
    is_coded = any(name == b"transfer-encoding" for name, _ in fields)
    if request.http_version not in (b"1.0", b"1.1"):
        return "another version of HTTP than 1.0 and 1.1", 505
    if len(fields) > max_fields:
        return "too many header fields", 431
    if len(lengths) > 1 or any(b"," in length for length in lengths):
        return "more than one Content-Length", 400
    # Parsers disagree about these, which is request smuggling (RFC 9112 section 6.1).
    if is_coded and (lengths or request.http_version == b"1.0"):
        return "both Content-Length and Transfer-Encoding, or the latter in HTTP/1.0", 400
    if any(name == b"upgrade" and b"h2c" in value.lower() for name, value in fields):
        return "an upgrade to HTTP/2", 400
    return None


def is_websocket(request: h11.Request) -> bool:
    """Return whether a request asks for a WebSocket (RFC 6455 section 4.2.1)."""
    fields = dict(request.headers)
    words = [word.strip() for word in fields.get(b"connection", b"").lower().split(b",")]
    wanted = fields.get(b"upgrade", b"").strip().lower()
    return request.method == b"GET" and b"upgrade" in words and wanted == b"websocket"


class Framing:
    """Takes a body's bytes. `left_bytes`: of a body without chunks; None: until the end."""

    def __init__(self, left_bytes: int | None, *, is_chunked: bool = False) -> None:
        self.is_over, self.is_until_end = left_bytes == 0 and not is_chunked, left_bytes is None
        self._left_bytes = sys.maxsize if left_bytes is None else left_bytes
        self._is_chunked = is_chunked
        self._patterns = _FIRST_LINE
        self._line = b""

    @property
    def open_line(self) -> bytes:
        """The line of a chunk that is not whole: nothing else tells its size."""
        return self._line if self._left_bytes else b""

    def take(self, waiting: bytearray, feed: Callable[[bytes], object]) -> None:
        """Move what belongs to the body to `feed`. Raises `FramingError` when that is done.

        Then the bytes that are not canonical are still waiting, and the next call raises, too.
        """
        at = 0
        pieces = []
        try:
            while not self.is_over:
                piece = waiting[at : at + self._left_bytes]
                pieces.append(piece)
                at += len(piece)
                self._left_bytes -= len(piece)
                if self._left_bytes:
                    break
                if not self._is_chunked:
                    self.is_over = True
                elif line := self._next_line(bytes(waiting[at : at + _MAX_LINE_BYTES])):
                    at += len(line)
                else:
                    break
        finally:
            del waiting[:at]
            feed(b"".join(pieces))

    def _next_line(self, rest: bytes) -> bytes:
        whole, begun = self._patterns
        if (found := whole.match(rest)) is None:
            if begun.fullmatch(rest):
                return b""
            raise FramingError("the line of a chunk has more than its size, or trailers follow it")
        self._patterns, self._line = _NEXT_LINE, found[0]
        self._left_bytes = int(found[1] or b"0", 16)
        self.is_over = not self._left_bytes
        return found[0]


def framing_of(head: Head, method: bytes = b"") -> Framing:
    """Return the framing of what follows a head (RFC 9112 section 6.3).

    `method`: of the request that an answer answers.
    """
    fields = dict(head.headers)
    if isinstance(head, h11.Response) and (method == b"HEAD" or head.status_code in (204, 304)):
        return Framing(0)
    if b"transfer-encoding" in fields:
        return Framing(0, is_chunked=True)
    if isinstance(head, h11.Response) and b"content-length" not in fields:
        return Framing(None)
    return Framing(int(fields.get(b"content-length", b"0")))


class RequestParser:
    """Reads one request after the other, each with an h11 connection of its own."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._scanned = 0
        self._is_refused = False
        self._framing: Framing | None = None
        self.http = h11.Connection(h11.SERVER)
        self.held = bytearray()
        """What came and was not parsed."""

    @property
    def is_body_over(self) -> bool:
        """Return whether all of the open request was parsed."""
        return self._framing is not None and self._framing.is_over

    @property
    def has_rest(self) -> bool:
        """Return whether bytes came that belong to no request, if none follows."""
        return bool(self.held) and (self.is_body_over or self._is_refused)

    def next_request(self) -> tuple[h11.Request, bytes] | None:
        """Return the next request and its head, once it is whole. Raises `RefusedRequestError`."""
        found = self.held.find(_HEAD_END, max(0, self._scanned - 3))
        stop = len(self.held) if found < 0 else found + len(_HEAD_END)
        if problem := head_problem(self.held, self._scanned, stop):
            raise RefusedRequestError(problem, 400)
        if stop > self._bounds.head_bytes:
            raise RefusedRequestError("the head is over the bound", 431)
        self._scanned = stop
        if found < 0:
            return None
        head = bytes(self.held[:stop])
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._bounds.head_bytes)
        self.http.receive_data(head)
        try:
            request: Any = self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise RefusedRequestError(str(error), error.error_status_hint) from None
        if problem_and_status := request_problem(request, head, self._bounds.headers):
            raise RefusedRequestError(*problem_and_status)
        del self.held[:stop]
        self._scanned = 0
        self._framing = framing_of(request)
        return request, head

    def next_data(self) -> bytes | None:
        """Return what has come of the open request's body, or None before more has come.

        Raises `RefusedRequestError`.
        """
        data = bytearray()
        if self._framing is not None:
            try:
                self._framing.take(self.held, data.extend)
            except FramingError as error:
                self._is_refused = True
                if not data:  # else the next call
                    raise RefusedRequestError(str(error), 400) from None
        return bytes(data) if data or self.is_body_over else None
