"""HTTP/1.1 of bytes; what two parsers could read differently is refused."""

from __future__ import annotations

import re
from typing import Any, Final

import h11

from belljar.network.gateway.config import Bounds
from belljar.network.stand_ins.web import RefusedRequestError

# A line that ends with a bare CR or LF, a fold, a control character: RFC 9112 sections 2.2 and 5.2,
# RFC 9110 section 5.5.
_AMBIGUOUS: Final = re.compile(rb"\r(?!\n|\Z)|(?<!\r)\n|\r\n[ \t]|[\0-\x08\x0b\x0c\x0e-\x1f\x7f]")
_HEAD_END: Final = b"\r\n\r\n"
# From the head itself, as h11 shows one field where equal ones came.
_LENGTH: Final = re.compile(rb"(?i)\r\ncontent-length:([^\r]*)")
# h11's expressions for a chunk's line and for trailers take the square of a run of blanks (h11
# 0.16: 0.7 s for 8 KB), so that it gets a body in pieces and waits for no longer line.
_PIECE_BYTES: Final = 1 << 10
# In one go: of chunks of a byte each that takes some ten milliseconds.
_TURN_BYTES: Final = 4 << 10


class RequestParser:
    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._scanned = 0
        self._refused: RefusedRequestError | None = None
        self.is_body_over = False  # All of the open request was parsed.
        self.http = h11.Connection(h11.SERVER)
        self.held = bytearray()  # What came and was not parsed.

    @property
    def is_over(self) -> bool:
        return self.is_body_over or self._refused is not None

    def next_request(self) -> tuple[h11.Request, bytes] | None:
        """Return the next request and its head. Raises `RefusedRequestError`."""
        found = self.held.find(_HEAD_END, max(0, self._scanned - 3))
        stop = len(self.held) if found < 0 else found + len(_HEAD_END)
        # A line's end or a fold may have begun in what was looked at.
        if _AMBIGUOUS.search(self.held, max(0, self._scanned - 3), stop):
            problem = "a bare CR or LF, a fold or a control character in the head"
            raise RefusedRequestError(problem, 400)
        if self.held.startswith((b" ", b"\t", b"\r")):
            raise RefusedRequestError("no request line", 400)
        if stop > self._bounds.head_bytes:
            raise RefusedRequestError("the head is over the bound", 431)
        self._scanned = stop
        if found < 0:
            return None
        head = bytes(self.held[:stop])
        # The bound is of a line in the body: a head is given whole.
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=_PIECE_BYTES)
        self.http.receive_data(head)
        try:
            request: Any = self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise RefusedRequestError(str(error), error.error_status_hint) from None
        fields, version = list(request.headers), request.http_version
        lengths = _LENGTH.findall(head)  # h11 merges equal ones
        is_coded = any(name == b"transfer-encoding" for name, _ in fields)
        is_http2 = any(name == b"upgrade" and b"h2c" in value.lower() for name, value in fields)
        both = "both Content-Length and Transfer-Encoding, or the latter in HTTP/1.0"
        for is_wrong, problem, status in (
            (version not in (b"1.0", b"1.1"), "another version of HTTP than 1.0 and 1.1", 505),
            (len(fields) > self._bounds.headers, "too many header fields", 431),
            (is_http2, "an upgrade to HTTP/2", 400),
            # Parsers disagree about these, which is request smuggling (RFC 9112 section 6.1).
            (b"," in b",".join(lengths), "more than one Content-Length", 400),
            (is_coded and (lengths or version == b"1.0"), both, 400),
        ):
            if is_wrong:
                raise RefusedRequestError(problem, status)
        del self.held[:stop]
        self._scanned = 0
        self.is_body_over = False
        return request, head

    def next_data(self) -> bytes | None:
        """Return some of the open request's body, or None before more has come.

        It is empty where a turn's bytes hold framing alone.
        Raises `RefusedRequestError`, behind the data before what is refused.
        """
        if self._refused is not None:
            raise self._refused
        data, turn_bytes = bytearray(), 0
        try:
            while not self.is_body_over:
                event = self.http.next_event()
                if isinstance(event, h11.Data):
                    data += event.data
                elif isinstance(event, h11.EndOfMessage):
                    self.is_body_over = True
                    self._take_back()
                elif not self.held or turn_bytes >= _TURN_BYTES:
                    break
                else:
                    self.http.receive_data(bytes(self.held[:_PIECE_BYTES]))
                    del self.held[:_PIECE_BYTES]
                    turn_bytes += _PIECE_BYTES
        except h11.RemoteProtocolError as error:
            self._refused = RefusedRequestError(str(error), error.error_status_hint)
            self._take_back()
            if not data:
                raise self._refused from None
        return bytes(data) if data or self.held or self.is_body_over else None

    def _take_back(self) -> None:
        self.held[:0] = self.http.trailing_data[0]
