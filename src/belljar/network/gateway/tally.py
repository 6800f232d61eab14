"""Bytes that pass, of which a bounded part is kept for the record: kept, counted, and all of them
in the digest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Final

from belljar.events import Body
from belljar.units import printable

MAX_SHOWN_HEADERS: Final = 64
MAX_SHOWN_HEADER_CHARS: Final = 512
MAX_SHOWN_HEADERS_BYTES: Final = 16 << 10
MAX_SHOWN_URL_CHARS: Final = 2048


class Tally:
    """One direction's bytes."""

    def __init__(self, max_kept_bytes: int) -> None:
        self._most = max_kept_bytes
        self._kept = bytearray()
        self._digest = hashlib.sha256()
        self.total_bytes = 0

    def add(self, data: bytes) -> None:
        """Counts some more."""
        self.total_bytes += len(data)
        self._digest.update(data)
        if len(self._kept) < self._most:
            self._kept += data[: self._most - len(self._kept)]

    def bodies(self, name: str) -> tuple[Body, ...]:
        """What there was so far, as a body of an event; none when there was nothing."""
        if not self.total_bytes:
            return ()
        digest = self._digest.hexdigest()
        return (
            Body(name=name, content=bytes(self._kept), total_bytes=self.total_bytes, sha256=digest),
        )


def shown(text: str | bytes, max_chars: int) -> str:
    """`units.printable`, at once for what is printable ASCII."""
    if isinstance(text, bytes) and text.isascii():
        text = text.decode()
    if isinstance(text, str) and len(text) <= max_chars and text.isascii() and text.isprintable():
        return text
    return printable(text, max_chars=max_chars)


def shown_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[list[list[str]], int]:
    """Header fields for a record: bounded as JSON, and how many were left out."""
    kept: list[list[str]] = []
    left = MAX_SHOWN_HEADERS_BYTES
    dropped = 0
    for name, value in headers:
        pair = [shown(part, MAX_SHOWN_HEADER_CHARS) for part in (name, value)]
        left -= len(json.dumps(pair))
        if left < 0 or len(kept) == MAX_SHOWN_HEADERS:
            dropped += 1
        else:
            kept.append(pair)
    return kept, dropped
