"""Mounts: new ones, those that cover something, those that lead out of the cell or outlive it."""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.catalogue._entry import entry

_probe = partial(entry, "mounts")

PROBES: Final = (
    _probe(
        "memory",
        tries="Mounts a tmpfs on a directory of its own.",
        why="Whoever may mount is unbounded in memory and can cover what others read; "
        "CAP_SYS_ADMIN is most of root.",
        breach="It is mounted.",
        quick=True,
    ),
    _probe(
        "processes",
        tries="Mounts a new proc.",
        why="A fresh proc has none of the covers: CVE-2019-19921 and CVE-2025-52881 are about "
        "what proc gives without them.",
        breach="It is mounted.",
    ),
    _probe(
        "kernel",
        tries="Mounts a new sysfs.",
        why="A fresh sysfs is writable, and writing there steers the machine.",
        breach="It is mounted.",
    ),
    _probe(
        "devices",
        tries="Mounts devtmpfs and a new devpts.",
        why="devtmpfs is one for the whole machine: all its device nodes, the host's disks among "
        "them.",
        breach="One is mounted.",
    ),
    _probe(
        "again",
        tries="Binds the root to a directory of its own.",
        why="A bind mount shows what is under a cover, and turns read-only into writable where "
        "it is not locked (CVE-2014-5206, CVE-2014-5207).",
        breach="It is mounted.",
        quick=True,
    ),
    _probe(
        "new_calls",
        tries="Calls fsopen, open_tree and fspick.",
        why="The newer calls for mounts were missing in many filters and had CVE-2022-0185, an "
        "escape from containers.",
        breach="One gives a descriptor.",
        quick=True,
    ),
    _probe(
        "uncover",
        tries="Asks to unmount a directory that is no mount.",
        why="Masks are mounts: where unmounting is allowed they are gone (CVE-2014-7975).",
        breach="The permission check is passed.",
        quick=True,
    ),
    _probe(
        "pivot",
        tries="Calls pivot_root with a place that can't be.",
        why="It exchanges the root of every process of the mount namespace (CVE-2014-7970).",
        breach="The permission check is passed.",
        quick=True,
    ),
    _probe(
        "shared",
        tries="Looks in its mount table for mounts that are shared with another mount namespace.",
        why="What is mounted in a shared place appears on the host, with the cell's contents: "
        "bidirectional propagation.",
        breach="A mount is marked as shared.",
        quick=True,
    ),
    _probe(
        "lasting",
        tries="Looks in its mount table for writable file systems of a disk.",
        why="What is written there outlives the cell and meets the next one, as files in a "
        "shared cache did in the 2026 incidents.",
        breach="There is one.",
        quick=True,
    ),
    _probe(
        "served",
        tries="Looks in its mount table for file systems that somebody outside serves: 9p, "
        "virtiofs, NFS, CIFS, FUSE.",
        why="The server is a program of the host that takes orders from the guest: "
        "CVE-2020-35517 in virtiofsd, CVE-2023-2861 in 9p.",
        breach="There is one, other than gVisor's own for its root and /tmp.",
        quick=True,
    ),
)
