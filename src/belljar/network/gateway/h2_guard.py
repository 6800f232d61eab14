"""Counts an HTTP/2 connection's frames before the library sees them: the floods that a correct
parser would serve. Sans-io.

RFC 9113 section 4.1 (frame header), section 10.5 (denial of service); CVE-2023-44487 (rapid reset),
CVE-2024-27316 and its like (CONTINUATION), CVE-2019-9512 to 9518.
"""

from __future__ import annotations

from typing import Final

from belljar.network.gateway.bounds import Bounds

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEADER_BYTES: Final = 9
BYTES_PER_WINDOW_UPDATE: Final = 1024
"""A client that takes a long answer says so every few KiB, for the stream and for the connection.
"""
_DATA: Final = 0
_HEADERS: Final = 1
_CONTINUATION: Final = 9
_END_STREAM: Final = 1


class FloodGuard:
    """One connection's counts.

    `requests` is how many it has answered so far, `sent_bytes` how much it has sent: the owner of
    the guard counts them.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._skip = len(PREFACE)
        self._head = bytearray()
        self._control = 0
        self._block = 0
        self.requests = 0
        self.sent_bytes = 0

    def feed(self, data: bytes) -> str:
        """Why the connection is to be ended now; empty when it is not.

        Keeps at most a frame's header.
        """
        at = 0
        while at < len(data):
            if self._skip:
                step = min(self._skip, len(data) - at)
                self._skip -= step
                at += step
                continue
            step = min(FRAME_HEADER_BYTES - len(self._head), len(data) - at)
            self._head += data[at : at + step]
            at += step
            if len(self._head) == FRAME_HEADER_BYTES and (problem := self._frame()):
                return problem
        return ""

    def _frame(self) -> str:
        length, kind, flags = int.from_bytes(self._head[:3], "big"), self._head[3], self._head[4]
        self._head.clear()
        self._skip = length
        if kind in (_HEADERS, _CONTINUATION):
            self._block = length + (self._block if kind == _CONTINUATION else 0)
            if self._block > self._bounds.head_bytes:
                return "a header block over the bound"
        if (
            kind == _HEADERS
            or (kind == _DATA and (length or flags & _END_STREAM))
            or (kind == _CONTINUATION and length)
        ):
            return ""
        self._control += 1
        earned = self.sent_bytes // BYTES_PER_WINDOW_UPDATE
        allowed = (
            earned
            + self._bounds.h2_control_frames
            + self.requests * self._bounds.h2_control_frames_per_request
        )
        return "too many control frames" if self._control > allowed else ""
