"""What is kept of a stream for the record: the digest of every byte the host saw, and its first
part.

Pure: bytes in, a `Body` out.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

from belljar.events import Body

Pieces: TypeAlias = bytes | AsyncIterator[bytes] | None

KEEP_BODY_BYTES: Final = 4 << 20
"""How much of one stream or file the ledger keeps.

What is beyond it is hashed and counted, not stored.
"""


class Capture:
    """Feeds on a stream and remembers its digest, its size and its first `keep_bytes` bytes."""

    def __init__(self, name: str, *, keep_bytes: int = KEEP_BODY_BYTES) -> None:
        self.name = name
        self.total_bytes = 0
        self._keep_bytes = keep_bytes
        self._kept = bytearray()
        self._digest = hashlib.sha256()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total_bytes += len(chunk)
        self._digest.update(chunk)
        room = self._keep_bytes - len(self._kept)
        if room > 0:
            self._kept += chunk[:room]

    def body(self) -> Body:
        """The body as it stands now."""
        return Body(
            name=self.name,
            content=bytes(self._kept),
            total_bytes=self.total_bytes,
            sha256=self._digest.hexdigest(),
        )


def body_of(name: str, content: bytes, *, keep_bytes: int = KEEP_BODY_BYTES) -> Body:
    """The body of bytes that are there whole."""
    capture = Capture(name, keep_bytes=keep_bytes)
    capture.feed(content)
    return capture.body()


def fed(source: Pieces, capture: Capture) -> Pieces:
    """The input, seen by the record as it goes by."""
    if source is None:
        return None
    if isinstance(source, bytes):
        capture.feed(source)
        return source
    return _watched(source, capture)


async def _watched(source: AsyncIterator[bytes], capture: Capture) -> AsyncIterator[bytes]:
    async for chunk in source:
        capture.feed(chunk)
        yield chunk
