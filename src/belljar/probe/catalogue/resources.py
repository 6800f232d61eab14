"""Limits, each tried a little over what was told."""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.catalogue._entry import entry

_probe = partial(entry, "resources")

PROBES: Final = (
    _probe(
        "open_files",
        tries="Opens a descriptor numbered as the limit.",
        why="Open files are the kernel's memory; one workload that held them all kept this "
        "project's own cells from starting commands.",
        breach="It opens.",
    ),
    _probe(
        "raise_limits",
        tries="Raises its hard limits of open files, processes and locked memory by one.",
        why="A limit that its subject can raise is none: CAP_SYS_RESOURCE.",
        breach="A call succeeds.",
    ),
    _probe(
        "processes",
        tries="Starts 64 processes more than are allowed.",
        why="A fork bomb takes the host's process table, and with it every other cell.",
        breach="All of them live at once.",
    ),
    _probe(
        "disk",
        tries="Allocates a file one mebibyte larger than all that may be written.",
        why="A full disk ends the host's record before the host's services.",
        breach="The file is allocated.",
    ),
    _probe(
        "terminals",
        tries="Opens one terminal more than a cell may have, on the host's kernel.",
        why="Terminals are counted for the whole host (kernel.pty.max, 4,096): three cells with "
        "1,024 each took all that containers may have.",
        breach="It opens.",
    ),
    _probe(
        "device_files",
        tries="Writes two mebibytes into a file in /dev.",
        why="gVisor's runtime makes /dev without a bound: files there were memory of the sentry, "
        "outside of what the disk may hold.",
        breach="They are written.",
    ),
    _probe(
        "core_files",
        tries="Looks whether a crash may leave a core, and lowers the limit that says so from 1 "
        "to 0, by both system calls.",
        why="Cores go where the host's core_pattern says: to a program that runs as the host's "
        "root on the cell's data (CVE-2022-0811, CVE-2025-4598). "
        "A limit of 1 keeps the kernel from starting it; one of 0 does not.",
        breach="The hard limit is more than one byte, or can be lowered while the kernel has a "
        "pattern for cores.",
        quick=True,
    ),
    _probe(
        "priority",
        tries="Gives itself a better priority.",
        why="CAP_SYS_NICE starves the neighbours and the supervisor.",
        breach="It has it.",
        expected={"gvisor": "gVisor keeps the number to itself; the host's scheduler is not told."},
    ),
    _probe(
        "real_time",
        tries="Asks to be scheduled in real time.",
        why="A real-time process runs before everything that would stop it.",
        breach="The call succeeds.",
    ),
    _probe(
        "killed_last",
        tries="Lowers its score for the out-of-memory killer below the ordinary.",
        why="Then others are killed for this cell's memory.",
        breach="The score is written.",
        expected={"gvisor": "gVisor keeps the score to itself; the host's killer goes by its own."},
    ),
)
