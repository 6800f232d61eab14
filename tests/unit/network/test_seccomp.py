"""The filters of a gateway and of a supervisor, run by a small interpreter."""

from __future__ import annotations

import struct

import pytest

from belljar.network.syscalls import (
    ALLOWED,
    CALLS,
    KILLING,
    SUPERVISOR_ALLOWED,
    gateway_filter,
    supervisor_filter,
)

ALLOW, KILL, EPERM, ENOSYS = 0x7FFF0000, 0x80000000, 0x50001, 0x50026
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE3 = 435
# Of the gateway's filter: call, arguments, and what the kernel does.
JUDGED = [
    # No memory becomes code, with whatever else it is asked for
    *((name, (0, 4096, 3), ALLOW) for name in ("mmap", "mprotect")),
    *((name, (0, 4096, 7), EPERM) for name in ("mmap", "mprotect")),
    # Nothing is connected by sending (MSG_FASTOPEN), and no urgent byte goes to a unix stream
    *(("sendto", (3, 0, 1, flags), EPERM) for flags in (0x4001, 0x2000_4000)),
    ("sendto", (3, 0, 1, 0x4000), ALLOW),
    ("sendmsg", (3, 0, 0x4000), EPERM),
    # Its own processors only; of ioctls a few are left, and TIOCSTI is not among them
    ("sched_getaffinity", (0,), ALLOW),
    ("sched_getaffinity", (1,), EPERM),
    ("ioctl", (3, 0x5421), ALLOW),
    ("ioctl", (3, 0x5412), EPERM),
    # No signal by a descriptor: neither an owner (F_SETOWN, F_SETOWN_EX) nor a signal (F_SETSIG) can
    # be set, nor O_ASYNC with other flags
    *(("fcntl", (3, command), ALLOW) for command in (3, 1030)),
    *(("fcntl", (3, command, 1), EPERM) for command in (8, 10, 15)),
    ("fcntl", (3, 4, 0o4000), ALLOW),
    ("fcntl", (3, 4, 0o20000 | 0o4000), EPERM),
]
# Of the supervisor's: it opens for reading alone, makes no namespace, and sends SIGKILL alone.
SUPERVISORS = [
    ("openat", (0, 0, 0o2000000), ALLOW),
    *(("openat", (0, 0, flags), EPERM) for flags in (1, 2, 0o100, 0o20200000)),
    ("clone", (17,), ALLOW), *(("clone", (1 << bit | 17,), EPERM) for bit in (17, *range(25, 31))),
    ("kill", (1, 9), ALLOW), ("kill", (1, 15), EPERM), ("setns", (3, 0x4000_0000), KILL),
]  # fmt: skip
machines = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


def verdict(
    machine: str,
    number: int,
    *arguments: int,
    arch: int | None = None,
    program: bytes | None = None,
) -> int:
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


def number(name: str, machine: str) -> int:
    return CALLS[machine][name]


@machines
@pytest.mark.parametrize(
    "is_supervisors", [False, pytest.param(True, marks=pytest.mark.promise("2.6"))]
)
def test_the_list_is_allowed_and_all_else_is_not(machine: str, is_supervisors: bool) -> None:
    """Each number up to the newest call that is judged by no argument."""
    allowed, killing = (SUPERVISOR_ALLOWED, KILLING) if is_supervisors else (ALLOWED, ())
    by_argument = {"sendto", "mmap", "mprotect", "setsockopt", "fcntl", "ioctl"}
    by_argument |= {"sched_getaffinity"}
    by_argument |= {"openat", "socket", "clone", "kill", "setns"} if is_supervisors else set()
    assert not set(allowed) & set(killing)
    assert {*allowed, *killing} <= {*CALLS["x86_64"]}
    known = {found: name for name, found in CALLS[machine].items()}
    program = supervisor_filter(may_enter=False, machine=machine) if is_supervisors else None
    for asked in range(600):
        name = known.get(asked, "")
        if name in by_argument and name not in allowed:
            continue
        seen = verdict(machine, asked, 1, 1, program=program)
        if name in allowed:
            assert seen == ALLOW, name
        elif name in killing:
            assert seen == KILL, name
        else:
            assert seen == (ENOSYS if asked == CLONE3 else EPERM), asked


@machines
def test_calls_are_judged_by_their_arguments(machine: str) -> None:
    """Of a gateway."""
    for name, arguments, wanted in JUDGED:
        assert verdict(machine, number(name, machine), *arguments) == wanted, (name, arguments)


@machines
def test_a_socket_is_set_in_four_ways(machine: str) -> None:
    """Of every level and name: SO_LINGER, SO_OOBINLINE, TCP_NODELAY and TCP_QUICKACK, and nothing
    else.

    Not SO_ATTACH_BPF, SO_MARK, IP_TRANSPARENT, TCP_REPAIR, TCP_ULP, nftables' own.
    """
    seen = {
        (level, name)
        for level in (0, 1, 6, 17, 41, 255, 263, 270, 0x1_0001)
        for name in range(130)
        if verdict(machine, number("setsockopt", machine), 3, level, name) == ALLOW
    }
    assert seen == {(1, 13), (1, 10), (6, 1), (6, 12)}


def test_other_ways_in_kill() -> None:
    """Another architecture's calls, and x32's numbers."""
    assert verdict("x86_64", 1, arch=0x40000003) == KILL
    assert verdict("aarch64", 64, arch=0x40000028) == KILL
    assert verdict("x86_64", 0x40000001) == KILL


@pytest.mark.promise("2.6")
@machines
def test_the_supervisors_calls_are_judged_by_their_arguments(machine: str) -> None:
    """It has netlink and plain sockets, and enters network namespaces if it may."""
    program = supervisor_filter(may_enter=False, machine=machine)
    for name, arguments, wanted in SUPERVISORS:
        found = verdict(machine, number(name, machine), *arguments, program=program)
        assert found == wanted, (name, arguments)
    sockets = number("socket", machine)
    families = {n for n in range(50) if verdict(machine, sockets, n, program=program) == ALLOW}
    assert families == {2, 16}
    program = supervisor_filter(may_enter=True, machine=machine)
    enter = number("setns", machine)
    assert verdict(machine, enter, 3, 0x4000_0000, program=program) == ALLOW
    assert verdict(machine, enter, 3, 0x1000_0000, program=program) == KILL
