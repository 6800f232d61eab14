"""Side doors: roads that were found once, in runtimes or in the kernel, to a file or a program of
the host.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.catalogue._entry import entry
from belljar.probe.model import Witness

_probe = partial(entry, "doors")

PROBES: Final = (
    _probe(
        "roots",
        tries="Opens the host's file through /proc/PID/root of every process it sees.",
        why="The link leads into the root of a process of the host, past every mount of the cell.",
        breach="It opens, or the host sees it opened.",
        witness=Witness.CANARY,
        quick=True,
    ),
    _probe(
        "working_directories",
        tries="Opens the host's file through /proc/PID/cwd of every process it sees, and upwards.",
        why="CVE-2024-21626: runc's process in the container had a working directory on the host.",
        breach="It opens, or the host sees it opened.",
        witness=Witness.CANARY,
        quick=True,
    ),
    _probe(
        "open_directories",
        tries="Opens the host's file upwards from every directory among its descriptors.",
        why="CVE-2024-21626: a descriptor of the host's /sys/fs/cgroup was left open, and openat "
        "goes up from there.",
        breach="It opens, or the host sees it opened.",
        witness=Witness.CANARY,
        quick=True,
    ),
    _probe(
        "handles",
        tries="Opens inode 2, the root of the whole file system, and its own files by their "
        "numbers.",
        why="The shocker exploit of 2014: open_by_handle_at with CAP_DAC_READ_SEARCH read any "
        "file of Docker's host.",
        breach="The permission check is passed.",
        quick=True,
    ),
    _probe(
        "overwrite_program",
        tries="Opens its own program, process 1's and its parent's for writing, through "
        "/proc/PID/exe.",
        why="CVE-2019-5736: the container overwrote the host's runc, which root started next.",
        breach="One opens, or is refused only because it runs.",
        quick=True,
    ),
    _probe(
        "release_agent",
        tries="Makes new namespaces and mounts control groups of the first version.",
        why="CVE-2022-0492: the program in release_agent is started by the kernel as the host's "
        "root.",
        breach="A hierarchy is mounted.",
    ),
    _probe(
        "root_twice",
        tries="Takes a second root below its own and climbs out of both.",
        why="The oldest way out of chroot (Bucsay, chw00t, 2015): it is why a root must be "
        "pivoted, not changed.",
        breach="It stands above its own root.",
    ),
    _probe(
        "page_frames",
        tries="Reads the physical address of one of its pages.",
        why="Rowhammer (Seaborn and Dullien, 2015) aims with it.",
        breach="The address is not zero.",
    ),
)
