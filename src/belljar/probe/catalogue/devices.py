"""Devices that are there, and devices that could be made."""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.catalogue._entry import entry

_probe = partial(entry, "devices")

PROBES: Final = (
    _probe(
        "block_present",
        tries="Opens every block device in /dev for reading.",
        why="A disk under the file system has no permissions: privileged containers read and "
        "write the host's with debugfs.",
        breach="One opens.",
        quick=True,
    ),
    _probe(
        "block_made",
        tries="Makes nodes for the machine's disks and opens them.",
        why="CAP_MKNOD without a device filter is the host's disk; containers hold CAP_MKNOD by "
        "default.",
        breach="A node that was made opens.",
    ),
    _probe(
        "memory_present",
        tries="Opens /dev/mem, /dev/kmem, /dev/port, /proc/kcore, /dev/nvram and the processor's "
        "registers.",
        why="Physical memory holds every other cell and the host; /proc/kcore is among what "
        "runtimes must mask (CVE-2025-31133).",
        breach="One opens.",
        quick=True,
    ),
    _probe(
        "character_made",
        tries="Makes nodes for memory, ports, the kernel's log, tun, FUSE and KVM, and opens them.",
        why="A node is a number: where no device filter and no nodev stands in the way, every "
        "driver can be reached.",
        breach="A node that was made opens.",
    ),
    _probe(
        "unusual",
        tries="Looks for character devices in /dev beyond null, zero, full, random, urandom, tty "
        "and terminals.",
        why="KVM, vhost, vfio, FUSE and GPU drivers are kernel code with a history "
        "(CVE-2021-29657 in KVM, CVE-2024-0132 at the GPU's toolkit).",
        breach="There is one that may be read or written.",
        quick=True,
    ),
    _probe(
        "tunnel",
        tries="Opens /dev/net/tun.",
        why="The agents of the 2026 intrusion brought a VPN with them; a tunnel needs a device "
        "or a user-space stack.",
        breach="It opens.",
        quick=True,
    ),
    _probe(
        "terminal_input",
        tries="Types a character into a terminal of its own with TIOCSTI.",
        why="With a terminal of the host's, that is a command in the operator's shell: "
        "CVE-2017-5226, CVE-2019-10063.",
        breach="The call succeeds.",
    ),
    _probe(
        "consoles",
        tries="Opens the machine's consoles for writing: console, tty0, tty1, serial ports, "
        "hvc0, screen memory.",
        why="What is written there is read by people and by log collectors; /dev/console was a "
        "road in runc (CVE-2025-52565).",
        breach="One opens.",
        quick=True,
    ),
)
