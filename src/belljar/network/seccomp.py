"""The gateway's system-call filter: what a program needs that answers on sockets it was given, and nothing else. The assembler is pure; `syscalls` installs.

An allow-list: what is not on it fails with EPERM, so that a library that merely asks goes on; another architecture's calls kill. The few calls that are allowed
with some arguments alone are those whose other uses make executable memory, sockets or devices' doings.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import socket
import struct
from collections.abc import Iterator
from typing import Final

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_ALLOW: Final = 0x7FFF_0000
_KILL: Final = 0x8000_0000
_FAIL: Final = 0x0005_0000
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16
_X32_BIT: Final = 0x4000_0000
_AUDIT_ARCH: Final = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_COLUMN: Final = {"x86_64": 0, "aarch64": 1}
MAX_INSTRUCTIONS: Final = 4096

_PROT_EXEC: Final = 4
_IOCTLS: Final = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX

# Number on x86-64 and on arm64 (Linux: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h); None where there is no such call.
ALLOWED: Final[dict[str, tuple[int | None, int | None]]] = {
    "read": (0, 63),
    "write": (1, 64),
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "close": (3, 57),
    "close_range": (436, 436),
    "lseek": (8, 62),
    "dup": (32, 23),
    "openat": (257, 56),
    "openat2": (437, 437),
    "newfstatat": (262, 79),
    "fstat": (5, 80),
    "stat": (4, None),
    "lstat": (6, None),
    "statx": (332, 291),
    "getdents64": (217, 61),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "getcwd": (79, 17),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "brk": (12, 214),
    "futex": (202, 98),
    "membarrier": (324, 283),
    "rseq": (334, 293),
    "set_robust_list": (273, 99),
    "recvfrom": (45, 207),
    "recvmsg": (47, 212),
    "accept": (43, 202),
    "accept4": (288, 242),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
    "getsockopt": (55, 209),
    "shutdown": (48, 210),
    "listen": (50, 201),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441),
    "poll": (7, None),
    "ppoll": (271, 73),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "getrandom": (318, 278),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sigaltstack": (131, 132),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getppid": (110, 173),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getrusage": (98, 165),
    "sched_yield": (24, 124),
    "uname": (63, 160),
    "restart_syscall": (219, 128),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
_MMAP: Final = (9, 222)
_MPROTECT: Final = (10, 226)
_SENDTO: Final = (44, 206)
_SENDMSG: Final = (46, 211)
_MSG_FASTOPEN: Final = 0x2000_0000  # connects what is not connected: `connect` by another name
_SETSOCKOPT: Final = (54, 208)
_IP_PKTINFO: Final = 8  # linux/in.h; not in Python's socket
OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_LINGER),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    (socket.IPPROTO_IP, _IP_PKTINFO),
)
"""What the gateway sets on its sockets: a reset instead of an end, no waiting for more, and the address that a datagram was sent to. Nothing that attaches a program,
sets a mark, joins a group or names a device."""
_AFFINITY: Final = (204, 123)
_IOCTL: Final = (16, 29)
_CLONE3: Final = (435, 435)
_FCNTL: Final = (72, 25)
_FCNTLS: Final = (fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_DUPFD_CLOEXEC)
"""Commands of fcntl that need no more looking at. Not among them: F_SETOWN and F_SETSIG, by which a signal is sent."""


def gateway_filter(machine: str | None = None) -> bytes:
    """The filter for this machine (or the one named: `x86_64`, `aarch64`), as the kernel takes it. Raises `KeyError` for another."""
    machine = machine or platform.machine()
    program = list(_program(machine))
    if len(program) > MAX_INSTRUCTIONS:
        raise ValueError("the filter is too long")
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


_Instruction = tuple[int, int, int, int]


def _program(machine: str) -> Iterator[_Instruction]:
    column = _COLUMN[machine]
    yield (_LOAD, 0, 0, _ARCH_AT)
    yield (_EQUAL, 1, 0, _AUDIT_ARCH[machine])
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _NUMBER_AT)
    if machine == "x86_64":  # x32's numbers would walk around the list
        yield (_AT_LEAST, 0, 1, _X32_BIT)
        yield (_RETURN, 0, 0, _KILL)
    for numbers in ALLOWED.values():
        number = numbers[column]
        if number is not None:
            yield (_EQUAL, 0, 1, number)
            yield (_RETURN, 0, 0, _ALLOW)
    for number in (_MMAP[column], _MPROTECT[column]):
        yield from _when(number, _argument(2), (_ANY_BIT, 1, 0, _PROT_EXEC))
    for number, flags in ((_SENDTO[column], 3), (_SENDMSG[column], 2)):
        yield from _when(number, _argument(flags), (_ANY_BIT, 1, 0, _MSG_FASTOPEN))
    for command in _FCNTLS:
        yield from _when(_FCNTL[column], _argument(1), (_EQUAL, 0, 1, command))
    yield from _set_flags(_FCNTL[column])
    for level, name in OPTIONS:
        yield from _set_option(_SETSOCKOPT[column], level, name)
    yield from _when(
        _AFFINITY[column], _argument(0), (_EQUAL, 0, 1, 0)
    )  # of another process it would say whether there is one
    for request in _IOCTLS:
        yield from _when(_IOCTL[column], _argument(1), (_EQUAL, 0, 1, request))
    yield (_EQUAL, 0, 1, _CLONE3[column])
    yield (_RETURN, 0, 0, _FAIL | errno.ENOSYS)
    yield (_RETURN, 0, 0, _FAIL | errno.EPERM)


def _set_flags(number: int) -> Iterator[_Instruction]:
    """F_SETFL, but not O_ASYNC: with an owner set (which is refused as well) it sends signals to whoever the process names, past kill's own checks of the moment."""
    yield (_EQUAL, 0, 6, number)
    yield (_LOAD, 0, 0, _argument(1))
    yield (_EQUAL, 0, 3, fcntl.F_SETFL)
    yield (_LOAD, 0, 0, _argument(2))
    yield (_ANY_BIT, 1, 0, os.O_ASYNC)
    yield (_RETURN, 0, 0, _ALLOW)
    yield (_LOAD, 0, 0, _NUMBER_AT)


def _set_option(number: int, level: int, name: int) -> Iterator[_Instruction]:
    """setsockopt, of this level and name."""
    yield (_EQUAL, 0, 6, number)
    yield (_LOAD, 0, 0, _argument(1))
    yield (_EQUAL, 0, 3, level)
    yield (_LOAD, 0, 0, _argument(2))
    yield (_EQUAL, 0, 1, name)
    yield (_RETURN, 0, 0, _ALLOW)
    yield (_LOAD, 0, 0, _NUMBER_AT)


def _argument(index: int) -> int:
    """Where the lower half of an argument stands."""
    return _ARGUMENTS_AT + 8 * index


def _when(number: int, at: int, test: _Instruction) -> Iterator[_Instruction]:
    """Allow the call when the test of its argument passes; leaves the argument loaded when it is that call, so the number is loaded again."""
    yield (_EQUAL, 0, 4, number)
    yield (_LOAD, 0, 0, at)
    yield test
    yield (_RETURN, 0, 0, _ALLOW)
    yield (_LOAD, 0, 0, _NUMBER_AT)
