"""A stream's kept part, bounded, with the whole's count and digest. Pure."""

from __future__ import annotations

import hashlib
from typing import Final, Literal, TypeAlias

from belljar.events import Body

Keep: TypeAlias = Literal["head", "tail"]

MAX_CAPTURED_BYTES: Final = 4 << 20  # Of a stream or file, in the ledger.


class Capture:
    """Keeps a stream's first or last `max_kept_bytes`; `keep="tail"` holds twice that."""

    def __init__(
        self,
        name: str = "",
        *,
        max_kept_bytes: int = MAX_CAPTURED_BYTES,
        keep: Keep = "head",
        hashed: bool = True,
    ) -> None:
        self.name = name
        self.total_bytes = 0
        self._max_kept_bytes = max_kept_bytes
        self._keep = keep
        self._held = bytearray()
        self._digest = hashlib.sha256() if hashed else None

    def feed(self, chunk: bytes | memoryview) -> None:
        self.total_bytes += len(chunk)
        if self._digest is not None:
            self._digest.update(chunk)
        if self._keep == "tail":
            self._held += chunk
            if len(self._held) > 2 * self._max_kept_bytes:
                self._trim()
        elif (room := self._max_kept_bytes - len(self._held)) > 0:
            self._held += chunk[:room]

    @property
    def kept(self) -> bytes:
        self._trim()
        return bytes(self._held)

    @property
    def dropped_bytes(self) -> int:
        return self.total_bytes - min(self.total_bytes, self._max_kept_bytes)

    @property
    def sha256(self) -> str:
        """Return the whole stream's digest. Raise `ValueError` if it was not hashed."""
        if self._digest is None:
            raise ValueError("this capture has no digest")
        return self._digest.hexdigest()

    def body(self, name: str = "") -> Body:
        return Body(
            name=name or self.name,
            content=self.kept,
            total_bytes=self.total_bytes,
            sha256=self.sha256,
        )

    def bodies(self, name: str = "") -> tuple[Body, ...]:
        """Return the body; none when there was nothing."""
        return (self.body(name),) if self.total_bytes else ()

    def _trim(self) -> None:
        if self._keep == "tail":
            del self._held[: max(0, len(self._held) - self._max_kept_bytes)]


def body_of(name: str, content: bytes, max_kept_bytes: int = MAX_CAPTURED_BYTES) -> Body:
    return Body(
        name=name,
        content=content[:max_kept_bytes],
        total_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
