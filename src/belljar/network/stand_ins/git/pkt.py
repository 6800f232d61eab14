"""Git's packet lines (gitprotocol-common(5)): four hexadecimal digits of length, then content;
`0000` ends a section.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

FLUSH: Final = b"0000"
MAX_CONTENT_BYTES: Final = 65_516
_LENGTH: Final = re.compile(rb"[0-9a-fA-F]{4}")


class PktError(ValueError):
    """Bytes that are no packet lines, or say what a request can't."""


def pkt(content: bytes) -> bytes:
    """One line. Its content has at most `MAX_CONTENT_BYTES`."""
    if len(content) > MAX_CONTENT_BYTES:
        raise PktError(f"a packet of {len(content)} bytes")
    return b"%04x" % (len(content) + 4) + content


def section(data: bytes, start: int = 0) -> tuple[list[bytes], int]:
    """The lines from `start` to the next flush, without their line ends, and where what follows
    begins. Raises `PktError`, also where no flush comes.
    """
    lines: list[bytes] = []
    for content, after in packets(data, start):
        if content is None:
            return lines, after
        lines.append(content)
    raise PktError("a section without an end")


def packets(data: bytes, start: int = 0) -> Iterator[tuple[bytes | None, int]]:
    """Each line's content without its line end, `None` for a flush, and where the next begins.

    Raises `PktError`.
    """
    while start < len(data):
        head = data[start : start + 4]
        if _LENGTH.fullmatch(head) is None:
            raise PktError("a length that is no number")
        length = int(head, 16)
        if length == 0:
            start += 4
            yield None, start
            continue
        if length < 4 or start + length > len(data):
            raise PktError("a length beyond the end")
        content, start = data[start + 4 : start + length], start + length
        yield content.removesuffix(b"\n"), start
