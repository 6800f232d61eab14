"""Namespaces and credentials: the host's, new ones, and what a process may still become."""

from __future__ import annotations

from functools import partial
from typing import Final

from belljar.probe.catalogue._entry import entry
from belljar.probe.model import Witness

_probe = partial(entry, "namespaces")

PROBES: Final = (
    _probe(
        "shared",
        tries="Compares its namespaces with the host's, by number, where the kernel is the host's.",
        why="One forgotten namespace is a missing wall: with the host's network came "
        "CVE-2020-15257.",
        breach="A process of the cell is in a namespace of the host's.",
        witness=Witness.NAMESPACES,
        quick=True,
    ),
    _probe(
        "make_user",
        tries="Makes a user namespace with unshare.",
        why="In it everybody is root towards the kernel: CVE-2022-0185, CVE-2023-32233 and "
        "CVE-2024-1086 all begin there.",
        breach="The call succeeds.",
    ),
    _probe(
        "make_others",
        tries="Makes mount, pid, network, IPC, UTS and control group namespaces with unshare.",
        why="Each opens kernel code that was written for root; CVE-2022-0492 needs a new control "
        "group namespace.",
        breach="A call succeeds.",
    ),
    _probe(
        "clone_user",
        tries="Makes a user namespace with clone.",
        why="A filter on unshare alone leaves the other door open.",
        breach="A process is born.",
        quick=True,
    ),
    _probe(
        "clone3_user",
        tries="Makes a user namespace with clone3.",
        why="clone3 hides its flags in memory, where a filter can't look: it must not exist.",
        breach="A process is born.",
        quick=True,
    ),
    _probe(
        "enter_first",
        tries="Enters the namespaces of process 1 with setns.",
        why="nsenter to process 1 is how administrators, and escapes with hostPID, become the "
        "host.",
        breach="One is entered.",
    ),
    _probe(
        "host_ids",
        tries="Looks whether id 0 inside is id 0 of the host, where the kernel is the host's.",
        why="Without a private range root of the cell is root of the host once a wall falls: it "
        "made CVE-2019-5736 and CVE-2024-21626 fatal.",
        breach="It is.",
        witness=Witness.NAMESPACES,
        quick=True,
    ),
    _probe(
        "capabilities",
        tries="Looks whether any of its capability sets has more than a container's usual fourteen"
        " and what the plan grants.",
        why="CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_SYS_MODULE, CAP_DAC_READ_SEARCH are each an "
        "escape; CVE-2022-24769 and CVE-2022-29162 left some behind.",
        breach="One has.",
        quick=True,
    ),
    _probe(
        "new_privileges",
        tries="Looks whether set-user-id programs could give it rights.",
        why="CVE-2021-4034 (PwnKit) and CVE-2023-0386 (OverlayFS) turn such a program into root.",
        breach="no_new_privs is not set.",
        quick=True,
    ),
    _probe(
        "filter",
        tries="Looks whether its system calls are filtered.",
        why="Most kernel exploits need a call that no ordinary program makes; the filter is what "
        "stands before the unknown ones.",
        breach="There is no filter.",
        quick=True,
    ),
    _probe(
        "regain",
        tries="Becomes user 0, group 0, or takes CAP_SYS_ADMIN.",
        why="An identity that was only set aside can be taken back (Chen, Wagner, Dean: Setuid "
        "Demystified, 2002).",
        breach="A call succeeds.",
    ),
)
