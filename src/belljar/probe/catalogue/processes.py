"""The host's processes."""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.catalogue._entry import entry
from belljar.probe.model import Witness

_probe = partial(entry, "processes")

PROBES: Final = (
    _probe(
        "see_host",
        tries="Looks for a process of the host under its number in /proc.",
        why="A shared pid namespace shows command lines and environments, where secrets are "
        "(Bishop Fox, Bad Pods, 2021: hostPID).",
        breach="/proc has the host's process.",
        quick=True,
    ),
    _probe(
        "signal_host",
        tries="Sends a harmless signal to a process of the host.",
        why="Whoever can signal the host's processes can end the supervisor that was to end him.",
        breach="The host's process has the signal pending.",
        witness=Witness.PID,
        quick=True,
    ),
    _probe(
        "trace_host",
        tries="Attaches to a process of the host as its tracer.",
        why="CAP_SYS_PTRACE and a shared pid namespace are code execution on the host.",
        breach="The kernel lets it trace.",
    ),
    _probe(
        "read_host",
        tries="Opens environment, memory map and memory of a process of the host.",
        why="Keys are in the memory and the environment of what the host runs; the 2026 "
        "intrusion read a password there.",
        breach="One of the files opens.",
        quick=True,
    ),
    _probe(
        "kernel_threads",
        tries="Looks whether process 2 is the kernel's kthreadd.",
        why="Kernel threads are seen from the machine's first pid namespace alone: it would be "
        "the host's.",
        breach="It is.",
        quick=True,
    ),
    _probe(
        "foreign",
        tries="Compares the pid namespace of every process it sees with its own.",
        why="A process of another namespace in sight means that this one is above it: the cell's "
        "walls are inside out.",
        breach="One differs.",
    ),
)
