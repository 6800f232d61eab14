"""What the host keeps of an output stream: a bounded piece from its beginning or its end, and the
count of the rest.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

Keep: TypeAlias = Literal["head", "tail"]


class KeptOutput:
    """At most `max_bytes` of a stream are returned; at most about twice that are held."""

    def __init__(self, keep: Keep, max_bytes: int) -> None:
        self._keep = keep
        self._max_bytes = max_bytes
        self._held = bytearray()
        self._dropped = 0

    def feed(self, chunk: bytes) -> None:
        """Take the stream's next bytes."""
        if self._keep == "head":
            taken = chunk[: self._max_bytes - len(self._held)]
            self._held += taken
            self._dropped += len(chunk) - len(taken)
        else:
            self._held += chunk
            if len(self._held) > 2 * self._max_bytes:
                self._trim()

    def finish(self) -> tuple[bytes, int]:
        """What was kept, and how many bytes were not."""
        self._trim()
        return bytes(self._held), self._dropped

    def _trim(self) -> None:
        excess = len(self._held) - self._max_bytes
        if excess > 0:
            del self._held[:excess]
            self._dropped += excess
