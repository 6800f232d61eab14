"""The gateway's filter, run by a small interpreter of its own: what is allowed, on both
machines."""

from __future__ import annotations

import struct

import pytest

from belljar.network.seccomp import (
    ALLOWED,
    CALLS,
    KILLING,
    SUPERVISOR_ALLOWED,
    gateway_filter,
    supervisor_filter,
)

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x50001, 0x50026
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}


def verdict(
    machine: str,
    number: int,
    *arguments: int,
    arch: int | None = None,
    program: bytes | None = None,
) -> int:
    """What the kernel would do (Documentation/networking/filter.rst: the four instructions that are
    used)."""
    program = program or gateway_filter(machine)
    words = (*arguments, *[0] * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, ARCH[machine] if arch is None else arch, 0, *words)
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (loaded,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            return int(value)
        else:
            holds = {0x15: loaded == value, 0x35: loaded >= value, 0x45: loaded & value != 0}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_list_is_allowed_and_all_else_is_not(machine: str) -> None:
    """Each number up to the newest call: allowed when it is on the list, else refused."""
    allowed = {CALLS[name][COLUMN[machine]] for name in ALLOWED}
    by_argument = {"x86_64": {9, 10, 54, 44, 46, 72}, "aarch64": {222, 226, 208, 206, 211, 25}}[
        machine
    ]
    setsockopt = {"x86_64": 54, "aarch64": 208}[machine]
    for number in range(600):
        seen = verdict(machine, number, 1, 1, 13 if number == setsockopt else 0)
        if number in allowed or number in by_argument:
            assert seen == ALLOW, number
        else:
            assert seen == (ENOSYS if number == 435 else EPERM), number


@pytest.mark.parametrize(
    ("machine", "mmap", "mprotect"), [("x86_64", 9, 10), ("aarch64", 222, 226)]
)
def test_no_memory_becomes_code(machine: str, mmap: int, mprotect: int) -> None:
    """PROT_EXEC is refused, with whatever else."""
    for call in (mmap, mprotect):
        assert verdict(machine, call, 0, 4096, 3) == ALLOW
        assert verdict(machine, call, 0, 4096, 7) == EPERM


@pytest.mark.parametrize(
    ("machine", "sendto", "sendmsg"), [("x86_64", 44, 46), ("aarch64", 206, 211)]
)
def test_nothing_is_connected_by_sending(machine: str, sendto: int, sendmsg: int) -> None:
    """MSG_FASTOPEN and MSG_OOB are refused, with whatever else; other flags are not."""
    assert verdict(machine, sendto, 3, 0, 1, 0x4001) == EPERM
    assert verdict(machine, sendmsg, 3, 0, 1) == EPERM
    assert verdict(machine, sendto, 3, 0, 1, 0x4000) == ALLOW
    assert verdict(machine, sendto, 3, 0, 1, 0x2000_4000) == EPERM
    assert verdict(machine, sendmsg, 3, 0, 0x4000) == ALLOW
    assert verdict(machine, sendmsg, 3, 0, 0x2000_4000) == EPERM


@pytest.mark.parametrize(
    ("machine", "affinity", "ioctl"), [("x86_64", 204, 16), ("aarch64", 123, 29)]
)
def test_calls_by_their_arguments(machine: str, affinity: int, ioctl: int) -> None:
    """Its own processors only; of ioctls a few are left, and TIOCSTI is not among them."""
    assert verdict(machine, affinity, 0) == ALLOW
    assert verdict(machine, affinity, 1) == EPERM
    assert verdict(machine, ioctl, 3, 0x5421) == ALLOW
    assert verdict(machine, ioctl, 3, 0x5412) == EPERM


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_nothing_is_made_that_holds_the_kernels_memory(machine: str) -> None:
    """Pairs of sockets, pipes, epolls, eventfds, memfds: what they hold counts for no limit of the
    process."""
    calls = {"x86_64": (53, 22, 293, 213, 291, 284, 290, 319), "aarch64": (199, 59, 20, 19, 279)}[
        machine
    ]
    assert {verdict(machine, call, 1) for call in calls} == {EPERM}


@pytest.mark.parametrize(("machine", "fcntl"), [("x86_64", 72), ("aarch64", 25)])
def test_no_signal_is_sent_by_a_descriptor(machine: str, fcntl: int) -> None:
    """Neither an owner nor a signal can be set, nor O_ASYNC with other flags: an ordinary user's
    gateway could end that user's other processes."""
    f_getfl, f_setfl, f_setown, f_setsig, f_setown_ex, f_dupfd_cloexec = 3, 4, 8, 10, 15, 1030
    for command in (f_getfl, f_dupfd_cloexec):
        assert verdict(machine, fcntl, 3, command) == ALLOW
    for command in (f_setown, f_setsig, f_setown_ex):
        assert verdict(machine, fcntl, 3, command, 1) == EPERM
    assert verdict(machine, fcntl, 3, f_setfl, 0o4000) == ALLOW
    assert verdict(machine, fcntl, 3, f_setfl, 0o20000 | 0o4000) == EPERM


@pytest.mark.parametrize(("machine", "setsockopt"), [("x86_64", 54), ("aarch64", 208)])
def test_a_socket_is_set_in_five_ways(machine: str, setsockopt: int) -> None:
    """Of every level and name: SO_LINGER, SO_OOBINLINE, TCP_NODELAY, TCP_QUICKACK and IP_PKTINFO,
    and nothing else.

    Not SO_ATTACH_BPF, SO_MARK, IP_TRANSPARENT, TCP_REPAIR, TCP_ULP, nftables' own.
    """
    allowed = {(1, 13), (1, 10), (6, 1), (6, 12), (0, 8)}
    seen = {
        (level, name)
        for level in (0, 1, 6, 17, 41, 255, 263, 270, 0x1_0001)
        for name in range(130)
        if verdict(machine, setsockopt, 3, level, name) == ALLOW
    }
    assert seen == allowed


def test_other_ways_in_kill() -> None:
    """Another architecture's calls, and x32's numbers."""
    assert verdict("x86_64", 1, arch=0x40000003) == KILL
    assert verdict("aarch64", 64, arch=0x40000028) == KILL
    assert verdict("x86_64", 0x40000001) == KILL


@pytest.mark.promise("2.6")
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("may_enter", [False, True])
def test_the_supervisor_s_calls(machine: str, may_enter: bool) -> None:
    """Those on its list; those that only a compromised process makes kill it; all others are
    refused."""
    program = supervisor_filter(may_enter=may_enter, machine=machine)
    column = COLUMN[machine]
    allowed = {CALLS[name][column] for name in SUPERVISOR_ALLOWED}
    killing = {CALLS[name][column] for name in KILLING}
    by_argument = {
        "x86_64": {16, 41, 56, 62, 72, 204, 257, 308},
        "aarch64": {25, 29, 56, 123, 129, 198, 220, 268},
    }
    assert not allowed & killing
    for number in set(range(600)) - by_argument[machine]:
        seen = verdict(machine, number, 1, 1, program=program)
        if number in allowed:
            assert seen == ALLOW, number
        elif number in killing:
            assert seen == KILL, number
        else:
            assert seen == (ENOSYS if number == 435 else EPERM), number


@pytest.mark.promise("2.6")
@pytest.mark.parametrize(
    ("machine", "openat", "sockets", "clone", "kill", "setns"),
    [("x86_64", 257, 41, 56, 62, 308), ("aarch64", 56, 198, 220, 129, 268)],
)
def test_the_supervisor_s_calls_by_their_arguments(
    machine: str, openat: int, sockets: int, clone: int, kill: int, setns: int
) -> None:
    """It opens for reading alone, has netlink and plain sockets, makes no namespace, sends SIGKILL
    alone, and enters network namespaces if it may."""
    program = supervisor_filter(may_enter=False, machine=machine)
    for flags, seen in (
        (0o2000000, ALLOW),
        (1, EPERM),
        (2, EPERM),
        (0o100, EPERM),
        (0o20200000, EPERM),
    ):
        assert verdict(machine, openat, 0, 0, flags, program=program) == seen, flags
    families = {
        number
        for number in range(50)
        if verdict(machine, sockets, number, program=program) == ALLOW
    }
    assert families == {2, 16}
    assert verdict(machine, clone, 17, program=program) == ALLOW
    assert {
        verdict(machine, clone, 1 << bit | 17, program=program) for bit in (17, *range(25, 31))
    } == {EPERM}
    assert [verdict(machine, kill, 1, number, program=program) for number in (9, 15)] == [
        ALLOW,
        EPERM,
    ]
    assert verdict(machine, setns, 3, 0x4000_0000, program=program) == KILL
    program = supervisor_filter(may_enter=True, machine=machine)
    assert verdict(machine, setns, 3, 0x4000_0000, program=program) == ALLOW
    assert verdict(machine, setns, 3, 0x1000_0000, program=program) == KILL
