"""Namespaces, credentials, mounts, and limits tried a little over what was given."""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.model import Witness, entry

_mounts = partial(entry, "mounts")

MOUNTS: Final = (
    _mounts(
        "memory",
        tries="Mounts a tmpfs on a directory of its own.",
        why="A process that may mount is unbounded in memory and can cover what others read; "
        "CAP_SYS_ADMIN is most of root.",
        breach="It is mounted.",
    ),
    _mounts(
        "processes",
        tries="Mounts a new proc.",
        why="A fresh proc has none of the covers: CVE-2019-19921 and CVE-2025-52881 are about "
        "what proc gives without them.",
        breach="It is mounted.",
        quick=False,
    ),
    _mounts(
        "kernel",
        tries="Mounts a new sysfs.",
        why="A fresh sysfs is writable, and writing there steers the machine.",
        breach="It is mounted.",
        quick=False,
    ),
    _mounts(
        "devices",
        tries="Mounts devtmpfs and a new devpts.",
        why="devtmpfs is one for the whole machine: all its device nodes, the host's disks among "
        "them.",
        breach="One is mounted.",
        quick=False,
    ),
    _mounts(
        "again",
        tries="Binds the root to a directory of its own.",
        why="A bind mount shows what is under a cover, and turns read-only into writable where "
        "it is not locked (CVE-2014-5206, CVE-2014-5207).",
        breach="It is mounted.",
    ),
    _mounts(
        "new_calls",
        tries="Calls fsopen, open_tree and fspick.",
        why="The newer calls for mounts were missing in many filters and had CVE-2022-0185, an "
        "escape from containers.",
        breach="One gives a descriptor.",
    ),
    _mounts(
        "uncover",
        tries="Asks to unmount a directory that is no mount.",
        why="Masks are mounts: where unmounting is allowed they are gone (CVE-2014-7975).",
        breach="The permission check is passed.",
    ),
    _mounts(
        "pivot",
        tries="Calls pivot_root with a place that can't be.",
        why="It exchanges the root of every process of the mount namespace (CVE-2014-7970).",
        breach="The permission check is passed.",
    ),
    _mounts(
        "shared",
        tries="Looks in its mount table for mounts that are shared with another mount namespace.",
        why="What is mounted in a shared place appears on the host, with the cell's contents: "
        "bidirectional propagation.",
        breach="A mount is marked as shared.",
    ),
    _mounts(
        "lasting",
        tries="Looks in its mount table for writable file systems of a disk.",
        why="What is written there outlives the cell and meets the next one, as files in a "
        "shared cache did in the 2026 incidents.",
        breach="There is one.",
    ),
    _mounts(
        "served",
        tries="Looks in its mount table for file systems that are served from outside: 9p, "
        "virtiofs, NFS, CIFS, FUSE.",
        why="The server is a program of the host that takes orders from the guest: "
        "CVE-2020-35517 in virtiofsd, CVE-2023-2861 in 9p.",
        breach="There is one, other than gVisor's own for its root, /tmp and a model cell's "
        "weights; or a model cell's weights can be written or run.",
    ),
)


_namespaces = partial(entry, "namespaces")

NAMESPACES: Final = (
    _namespaces(
        "shared",
        tries="Compares its namespaces with the host's, by number, where the kernel is the host's.",
        why="One forgotten namespace is a missing layer: with the host's network came "
        "CVE-2020-15257.",
        breach="A process of the cell is in a namespace of the host's.",
        witness=Witness.NAMESPACES,
    ),
    _namespaces(
        "make_user",
        tries="Makes a user namespace with unshare.",
        why="In it everybody is root towards the kernel: CVE-2022-0185, CVE-2023-32233 and "
        "CVE-2024-1086 all begin there.",
        breach="The call succeeds.",
        quick=False,
    ),
    _namespaces(
        "make_others",
        tries="Makes mount, pid, network, IPC, UTS and control group namespaces with unshare.",
        why="Each opens kernel code that was written for root; CVE-2022-0492 needs a new control "
        "group namespace.",
        breach="A call succeeds.",
        quick=False,
    ),
    _namespaces(
        "clone_user",
        tries="Makes a user namespace with clone.",
        why="A filter on unshare alone leaves the other way open.",
        breach="A process is born.",
    ),
    _namespaces(
        "clone3_user",
        tries="Makes a user namespace with clone3.",
        why="clone3 hides its flags in memory, where a filter can't look: it must not exist.",
        breach="A process is born.",
    ),
    _namespaces(
        "enter_first",
        tries="Enters the namespaces of process 1 with setns.",
        why="nsenter to process 1 is how administrators, and escapes with hostPID, become the "
        "host.",
        breach="One is entered.",
        quick=False,
    ),
    _namespaces(
        "host_ids",
        tries="Looks whether id 0 inside is id 0 of the host, where the kernel is the host's.",
        why="Without a private range root of the cell is root of the host once a layer fails: it "
        "made CVE-2019-5736 and CVE-2024-21626 fatal.",
        breach="It is.",
        witness=Witness.NAMESPACES,
    ),
    _namespaces(
        "capabilities",
        tries="Looks whether any of its capability sets has more than a container's usual fourteen"
        " and what the plan grants.",
        why="CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYS_MODULE, CAP_DAC_READ_SEARCH are each an "
        "escape; CVE-2022-24769 and CVE-2022-29162 left some behind.",
        breach="One has.",
    ),
    _namespaces(
        "new_privileges",
        tries="Looks whether set-user-id programs could give it rights.",
        why="CVE-2021-4034 (PwnKit) and CVE-2023-0386 (OverlayFS) turn such a program into root.",
        breach="no_new_privs is not set.",
    ),
    _namespaces(
        "filter",
        tries="Looks whether its system calls are filtered.",
        why="Most kernel exploits need a call that no ordinary program makes; the filter is what "
        "stands before the unknown ones.",
        breach="There is no filter.",
    ),
    _namespaces(
        "regain",
        tries="Becomes user 0, group 0, or takes CAP_SYS_ADMIN.",
        why="An identity that was only set aside can be taken back (Chen, Wagner, Dean: Setuid "
        "Demystified, 2002).",
        breach="A call succeeds.",
        quick=False,
    ),
)


_resources = partial(entry, "resources")

RESOURCES: Final = (
    _resources(
        "open_files",
        tries="Opens a descriptor numbered as the limit.",
        why="Open files are the kernel's memory; one workload that held them all kept this "
        "project's own cells from starting commands.",
        breach="It opens.",
        quick=False,
    ),
    _resources(
        "raise_limits",
        tries="Raises its hard limits of open files, processes and locked memory by one.",
        why="A limit that its subject can raise is none: CAP_SYS_RESOURCE.",
        breach="A call succeeds.",
        quick=False,
    ),
    _resources(
        "processes",
        tries="Starts 64 processes more than are allowed.",
        why="A fork bomb takes the host's process table, and with it every other cell.",
        breach="All of them live at once.",
        quick=False,
    ),
    _resources(
        "disk",
        tries="Allocates a file one mebibyte larger than all that may be written.",
        why="A full disk ends the host's record before the host's services.",
        breach="The file is allocated.",
        quick=False,
    ),
    _resources(
        "terminals",
        tries="Opens one terminal more than a cell may have, on the host's kernel.",
        why="Terminals are counted for the whole host (kernel.pty.max, 4,096): three cells with "
        "1,024 each took all that containers may have.",
        breach="It opens.",
        quick=False,
    ),
    _resources(
        "device_files",
        tries="Writes two mebibytes into a file in /dev.",
        why="gVisor's runtime makes /dev without a bound: files there were memory of the sentry, "
        "outside of what the disk may hold.",
        breach="They are written.",
        quick=False,
    ),
    _resources(
        "core_files",
        tries="Looks whether a crash may leave a core, and lowers the limit that says so from 1 "
        "to 0, by both system calls.",
        why="Cores go where the host's core_pattern says: to a program that runs as the host's "
        "root on the cell's data (CVE-2022-0811, CVE-2025-4598). "
        "A limit of 1 keeps the kernel from starting it; one of 0 does not.",
        breach="The hard limit is more than one byte, or can be lowered while the kernel has a "
        "pattern for cores.",
    ),
    _resources(
        "priority",
        tries="Gives itself a better priority.",
        why="CAP_SYS_NICE starves the neighbours and the supervisor.",
        breach="It has it.",
        expected={
            "gvisor": "gVisor keeps the number to itself; the host's scheduler does not get it."
        },
        quick=False,
    ),
    _resources(
        "real_time",
        tries="Asks to be scheduled in real time.",
        why="A real-time process runs before everything that would stop it.",
        breach="The call succeeds.",
        quick=False,
    ),
    _resources(
        "killed_last",
        tries="Lowers its score for the out-of-memory killer below the ordinary.",
        why="Then others are killed for this cell's memory.",
        breach="The score is written.",
        expected={"gvisor": "gVisor keeps the score to itself; the host's killer goes by its own."},
        quick=False,
    ),
)
