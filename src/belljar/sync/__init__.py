"""Belljar without `async`: the same names, which wait.

`open_cell`, `open_pool` and `open_range` are plain context managers; the cells in them have the
methods of `belljar.Cell` with the same arguments, results and errors, whose contracts stand there.
For scripts, threads and notebooks. Code that runs in an event loop uses `belljar.open_cell`.

Each opened cell, pool or range has a thread of its own with an event loop, which ends with it:
there is nothing global to start or stop, nothing to inherit by a fork, and no cell waits for
another's.

Must not: decide anything; each method calls its counterpart.
"""

from __future__ import annotations

from belljar.isolation.hold import release
from belljar.sync.cells import (
    Cell,
    CellStream,
    Pool,
    Range,
    RunningCommand,
    Snapshot,
    kill,
    open_cell,
    open_pool,
    open_range,
)

__all__ = [
    "Cell",
    "CellStream",
    "Pool",
    "Range",
    "RunningCommand",
    "Snapshot",
    "kill",
    "open_cell",
    "open_pool",
    "open_range",
    "release",
]
