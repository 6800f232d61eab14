"""What the cells of a task hold besides their images, as a compose file says.

Files are copied when a cell is made; no directory of the host is ever shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from belljar.policy.fields import Strict
from belljar.policy.files import Tree, list_tree
from belljar.policy.guarding import OWN_CELL
from belljar.units import format_size

# Of one cell: each is an operation of its own.
MAX_ENTRIES: Final = 2_000
# Of one cell together. More belongs into an image.
MAX_BYTES: Final = 100 << 20


class TaskFile(Strict):
    """A file or directory; `source` is below the root."""

    target: str
    source: str


class CellData(Strict):
    """Of one cell; `hosts`: names and addresses."""

    files: tuple[TaskFile, ...] = ()
    hosts: tuple[tuple[str, str], ...] = ()


class TaskData(Strict):
    """Of all cells, by name; `cell` is the one being made."""

    cells: Mapping[str, CellData] = {}
    root: str = ""
    cell: str = OWN_CELL

    @property
    def own(self) -> CellData:
        """What the cell `cell` holds."""
        return self.cells.get(self.cell, CellData())

    def of(self, cell: str) -> TaskData:
        """The same, for another cell."""
        return self.model_copy(update={"cell": cell})

    def __hash__(self) -> int:
        return hash((self.root, self.cell, tuple(sorted(self.cells))))


def trees_of(root: Path, data: CellData) -> dict[str, Tree]:
    """What each source is now, by target. Raises as `list_tree`."""
    trees: dict[str, Tree] = {}
    entries = total_bytes = 0
    for file in data.files:
        tree = trees[file.target] = list_tree(root, file.source, max_entries=MAX_ENTRIES - entries)
        entries += len(tree.entries)
        total_bytes += tree.total_bytes
        if total_bytes > MAX_BYTES:
            most = format_size(MAX_BYTES)
            raise ValueError(f"{format_size(total_bytes)} of files; at most {most} for one cell")
    return trees
