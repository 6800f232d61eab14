"""What of a request's text is shown in a record: bounded and made visible."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from belljar.units import printable

MAX_SHOWN_HEADERS: Final = 64
MAX_SHOWN_HEADER_CHARS: Final = 512
MAX_SHOWN_HEADERS_BYTES: Final = 16 << 10
MAX_SHOWN_URL_CHARS: Final = 2048


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
