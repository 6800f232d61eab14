"""The way the host speaks with the cell.

Whoever gets at it can say what the record will believe.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.catalogue._entry import entry

_probe = partial(entry, "channel")

_OTHERS_PIPES: Final = (
    "gVisor lets a process open, through /proc, the pipes of a command that runs beside it: not "
    "the channel, a socket; at a sample's end no other runs"
)

PROBES: Final = (
    _probe(
        "descriptors",
        tries="Looks for open descriptors beyond the first three.",
        why="CVE-2016-9962 and CVE-2024-21626: a descriptor that the runtime forgot to close led "
        "to the host.",
        breach="There is one.",
        quick=True,
    ),
    _probe(
        "streams",
        tries="Looks what its three standard descriptors are.",
        why="A socket or a file of the host's in their place is a road that no mount table shows.",
        breach="One is neither a pipe nor a terminal nor the null device.",
        quick=True,
    ),
    _probe(
        "trace_holder",
        tries="Attaches to process 1 and to its own parent as their tracer.",
        why="They hold the channel: their tracer forges exit codes and outputs, and so the "
        "evaluation's result (CVE-2016-9962).",
        breach="The kernel lets it trace.",
    ),
    _probe(
        "read_holder",
        tries="Reads the memory of process 1 and of its own parent.",
        why="It has what is on the channel: files of the harness, the seed of the machine's "
        "randomness.",
        breach="The kernel lets it read.",
        quick=True,
    ),
    _probe(
        "open_descriptors",
        tries="Opens the descriptors of process 1 and of its own parent for writing, through "
        "/proc.",
        why="The channel is among them, and what they say to the host besides (CVE-2016-9962).",
        breach="A pipe, a socket or a device of theirs opens.",
        quick=True,
        expected={"gvisor": _OTHERS_PIPES},
    ),
    _probe(
        "borrow_descriptors",
        tries="Takes a descriptor of process 1 and of its own parent with pidfd_getfd.",
        why="A copy of the channel's descriptor is the channel.",
        breach="The permission check is passed.",
        quick=True,
    ),
    _probe(
        "limit_holder",
        tries="Sets a limit of process 1 and of its own parent to what it is.",
        why="prlimit asks for the same user only: with RLIMIT_CPU or RLIMIT_FSIZE root of a "
        "container ends its agent, or cuts what it says.",
        breach="The call succeeds.",
        quick=True,
    ),
    _probe(
        "signal_holder",
        tries="Makes process 1 the owner of a socket (F_SETOWN, F_SETOWN_EX, FIOSETOWN, "
        "SIOCSPGRP); nothing is sent.",
        why="The owner of a descriptor gets the signal that its holder chose (F_SETSIG), SIGKILL "
        "too: in gVisor that ended the cell.",
        breach="It is the owner.",
        quick=True,
    ),
    _probe(
        "port",
        tries="Opens the machine's virtio ports and hypervisor consoles for writing.",
        why="A forged frame on the port is a forged result.",
        breach="One opens.",
        quick=True,
    ),
)
