"""Joins isolation and channel into a cell; owns its lifetime and its record.

Lives here: `open_cell`, the recorded operations, the join of policy, plan and image; `open_pool`:
cells made ahead, which no two takers ever share.
Must not: let an operation take effect before its start is recorded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.lazy import lazy_names

if TYPE_CHECKING:
    from belljar.cell.cell import Cell, Snapshot
    from belljar.cell.connection import CellStream
    from belljar.cell.exec import OutputSoFar, RunningCommand
    from belljar.cell.files import FileInfo
    from belljar.cell.health import HealthFinding, Metrics
    from belljar.cell.local_tree import Transfer
    from belljar.cell.open import open_cell, open_range
    from belljar.cell.parts import Parts, prepare, start_run
    from belljar.cell.pool import Pool, open_pool
    from belljar.cell.range import Range
    from belljar.channel import CommandError, ExecOutput, PtySize, Stream

__all__ = [
    "Cell",
    "CellStream",
    "CommandError",
    "ExecOutput",
    "FileInfo",
    "HealthFinding",
    "Metrics",
    "OutputSoFar",
    "Parts",
    "Pool",
    "PtySize",
    "Range",
    "RunningCommand",
    "Snapshot",
    "Stream",
    "Transfer",
    "open_cell",
    "open_pool",
    "open_range",
    "prepare",
    "start_run",
]

__getattr__ = lazy_names(
    __name__,
    {
        **dict.fromkeys(("Cell", "Snapshot"), "belljar.cell.cell"),
        "CellStream": "belljar.cell.connection",
        **dict.fromkeys(("open_cell", "open_range"), "belljar.cell.open"),
        "FileInfo": "belljar.cell.files",
        "Metrics": "belljar.cell.health",
        "Transfer": "belljar.cell.local_tree",
        "HealthFinding": "belljar.cell.health",
        "Range": "belljar.cell.range",
        **dict.fromkeys(("Parts", "prepare", "start_run"), "belljar.cell.parts"),
        **dict.fromkeys(("Pool", "open_pool"), "belljar.cell.pool"),
        **dict.fromkeys(("OutputSoFar", "RunningCommand"), "belljar.cell.exec"),
        **dict.fromkeys(("CommandError", "ExecOutput", "PtySize", "Stream"), "belljar.channel"),
    },
)
