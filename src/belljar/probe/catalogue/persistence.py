"""What an earlier cell left.

Looked for at the start only; later, what is found is this cell's own.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.catalogue._entry import entry

_probe = partial(entry, "persistence")

PROBES: Final = (
    _probe(
        "memory_files",
        tries="Looks for files in /dev/shm and queues in /dev/mqueue of a fresh cell.",
        why="In the 2026 incidents a shared cache served agents as a message board; any place "
        "that outlives a cell does.",
        breach="There is one.",
        quick=True,
    ),
    _probe(
        "ipc_objects",
        tries="Looks for System V shared memory, semaphores and queues in a fresh cell.",
        why="They outlive their makers, and in a shared IPC namespace the cell.",
        breach="There is one.",
        quick=True,
    ),
    _probe(
        "processes",
        tries="Looks for processes in a fresh cell beyond its first and the one that looks.",
        why="The agents of the 2026 intrusion re-armed a loader in every sandbox; reused "
        "sandboxes keep what was started in them.",
        breach="There is one.",
        quick=True,
    ),
    _probe(
        "scheduled",
        tries="Looks for a preloaded library and a cron table of root in a fresh cell.",
        why="The places where something waits for the next command: /etc/ld.so.preload is in the "
        "first line of rootkits.",
        breach="One of the files has content.",
        quick=True,
    ),
)
