"""Reads HTTP/1.1 requests from bytes, by h11's public interface; pure.

h11 is given whole heads and canonical bodies alone: what two parsers could read in two ways is
refused before, and h11 reads all the rest in linear time.
"""

from __future__ import annotations

import re
from typing import Any, Final

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
# The line of a chunk, and what may become one: first in a body, and behind another chunk.
_FIRST_LINE: Final = (
    re.compile(rb"([0-9A-Fa-f]{1,16})\r\n"),
    re.compile(rb"(?:[0-9A-Fa-f]{1,16}\r?)?"),
)
_NEXT_LINE: Final = (
    re.compile(rb"\r\n([0-9A-Fa-f]{1,16})\r\n"),
    re.compile(rb"(?:\r(?:\n(?:[0-9A-Fa-f]{1,16}\r?)?)?)?"),
)
_MAX_LINE_BYTES: Final = 20


def head_problem(data: bytes | bytearray, start: int, stop: int) -> str:
    """Return why these bytes of a head are refused, or ""; what is before `start` was looked at."""
    found = _AMBIGUOUS.search(data, max(0, start - 3), stop)
    if found is not None:
        return _PROBLEMS[str(found.lastgroup)]
    return "no request line" if data[:1] in (b" ", b"\t", b"\r") else ""


def request_problem(
    request: h11.Request | h11.Response | h11.InformationalResponse, head: bytes, max_fields: int
) -> tuple[str, int] | None:
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


class BodyGate:
    """Says how many bytes belong to a request's body, whose framing has to be canonical."""

    def __init__(self, request: h11.Request) -> None:
        fields = dict(request.headers)
        self._is_chunked = b"transfer-encoding" in fields
        self._is_last = False
        self._line = _FIRST_LINE
        self._left = 0 if self._is_chunked else int(fields.get(b"content-length", b"0"))
        self.is_over = not self._is_chunked and not self._left

    def admit(self, buffer: bytes | bytearray) -> int:
        """Return how many bytes at the front may be parsed. Raises `RefusedRequestError`."""
        at = 0
        while not self.is_over:
            step = min(self._left, len(buffer) - at)
            at, self._left = at + step, self._left - step
            if self._left:
                break
            line = self._admit_line(bytes(buffer[at : at + _MAX_LINE_BYTES]))
            at += len(line)
            if not line:
                break
        return at

    def _admit_line(self, rest: bytes) -> bytes:
        if not self._is_chunked:
            self.is_over = True
            return b""
        if self._is_last:
            if not b"\r\n".startswith(rest[:2]):
                raise RefusedRequestError("trailers", 400)
            self.is_over = len(rest) >= 2
            return rest[:2] if self.is_over else b""
        whole, begun = self._line
        found = whole.match(rest)
        if found is None and not begun.fullmatch(rest):
            raise RefusedRequestError("the line of a chunk has more than its size", 400)
        if found is None:
            return b""
        self._line = _NEXT_LINE
        self._left = int(found[1], 16)
        self._is_last = not self._left
        return found[0]


class RequestParser:
    """Reads one request after the other, each with an h11 connection of its own."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._scanned = 0
        self._is_refused = False
        self._gate: BodyGate | None = None
        self.http = h11.Connection(h11.SERVER)
        self.held = bytearray()
        """What came and was not parsed."""

    @property
    def is_body_over(self) -> bool:
        """Return whether all of the open request was parsed."""
        return self.http.their_state not in (h11.IDLE, h11.SEND_BODY, h11.ERROR)

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
        request = self._next_event()
        if problem_and_status := request_problem(request, head, self._bounds.headers):
            raise RefusedRequestError(*problem_and_status)
        del self.held[:stop]
        self._scanned = 0
        self._gate = BodyGate(request)
        if self._gate.is_over:
            self._next_event()  # the end, by which h11 knows that another request may follow
        return request, head

    def next_data(self) -> bytes | None:
        """Return what has come of the open request's body, or None before more has come.

        Raises `RefusedRequestError`.
        """
        if self._gate is None or self.is_body_over:
            return b""
        self._is_refused = True  # unless what follows raises nothing
        if size := self._gate.admit(self.held):
            self.http.receive_data(bytes(self.held[:size]))
            del self.held[:size]
        data = []
        while isinstance(event := self._next_event(), h11.Data):
            data.append(bytes(event.data))
        self._is_refused = False
        return b"".join(data) if data or self.is_body_over else None

    def _next_event(self) -> Any:  # noqa: ANN401 - h11's events and its sentinels
        try:
            return self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise RefusedRequestError(str(error), error.error_status_hint) from None
