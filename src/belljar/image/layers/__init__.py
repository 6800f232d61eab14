"""Hostile tar streams, read with bounds, merged in memory."""

from __future__ import annotations

from typing import Final

from belljar.dataclass import dataclass
from belljar.errors import PolicyError
from belljar.units import printable

# Linux's own bounds of a path and a name.
MAX_PATH_BYTES: Final = 4096
MAX_NAME_BYTES: Final = 255
# Far beyond any image, and within what Python's recursion takes.
MAX_DEPTH: Final = 200
MAX_METADATA_BYTES: Final = 1 << 20  # Of one extended header, held in memory
MAX_XATTR_BYTES: Final = 64 << 10  # Linux's bound of one value (xattr(7)), here of all
# Of all paths and links of an archive, which are held in memory: half a million of usual length.
MAX_TEXT_BYTES: Final = 256 << 20
# The kernel's -1 is no id; squashfs keeps ids and times in 32 bits.
MAX_ID: Final = 0xFFFF_FFFE
MAX_TIME_S: Final = 0xFFFF_FFFF


class LayerError(ValueError):
    """A broken layer, or one with forbidden content."""

    def __init__(
        self, what: str, *, hint: str = "use an image without it; nothing of this one was kept"
    ) -> None:
        super().__init__(what)
        self.hint = hint

    def refusal(self, where: str) -> PolicyError:
        """The error that ends an import from `where`."""
        return PolicyError(f"the image is refused: {self}", where=printable(where), hint=self.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportLimits:
    """The import is refused beyond any of these."""

    max_bytes: int = 8 << 30
    """All layers together, uncompressed."""
    max_entries: int = 500_000
    """All layers together, replaced ones included."""
    max_layers: int = 500
    max_document_bytes: int = 4 << 20
    """A manifest or a configuration."""
    timeout_s: float = 1800
    """Fetching, in all."""
    answer_s: float = 60
    """For each question to a registry or daemon."""
    stall_s: float = 120
    """Without a byte from a registry."""
