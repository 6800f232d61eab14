"""System-call filters of a range's processes. The assembler is pure; `syscalls` installs.

These are allow-lists. Other calls fail with EPERM, so that a library that merely tries goes on.
Another architecture's calls kill.
The gateway may serve the sockets it was given.
Arguments are limited where other uses make executable memory, sockets or device control.
The supervisor may also use netlink and run `nft`.
Calls that only a compromised process makes kill it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import signal
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_AT_LEAST: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
_ALLOW: Final = 0x7FFF_0000  # SECCOMP_RET_ALLOW
_KILL: Final = 0x8000_0000  # SECCOMP_RET_KILL_PROCESS: all threads, not only the caller's
_FAIL: Final = 0x0005_0000  # SECCOMP_RET_ERRNO; its low 16 bits are the error
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16  # In seccomp_data (linux/seccomp.h)
_X32_BIT: Final = 0x4000_0000  # __X32_SYSCALL_BIT (arch/x86/include/uapi/asm/unistd.h)
# linux/audit.h
_AUDIT_ARCH: Final = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
# Of `CALLS`.
_COLUMN: Final = {"x86_64": 0, "aarch64": 1}

_PROT_EXEC: Final = 4  # asm-generic/mman-common.h
# TCGETS, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_IOCTLS: Final = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Name, and number on x86-64 and on arm64 (Linux: arch/x86/entry/syscalls/syscall_64.tbl,
# include/uapi/asm-generic/unistd.h); `-` where there is no such call.
_NUMBERS: Final = """
    accept 43 202, accept4 288 242, access 21 -, add_key 248 217, arch_prctl 158 -, bind 49 200,
    bpf 321 280, brk 12 214, capset 126 91, chdir 80 49, chroot 161 51, clock_getres 229 114,
    clock_gettime 228 113, clock_nanosleep 230 115, clone 56 220, clone3 435 435, close 3 57,
    close_range 436 436, connect 42 203, delete_module 176 106, dup 32 23, dup2 33 -, dup3 292 24,
    epoll_ctl 233 21, epoll_pwait 281 22, epoll_pwait2 441 441, epoll_wait 232 -, execve 59 221,
    exit 60 93, exit_group 231 94, faccessat 269 48, faccessat2 439 439, fcntl 72 25,
    finit_module 313 273, fsopen 430 430, fstat 5 80, ftruncate 77 46, futex 202 98,
    getcwd 79 17, getdents64 217 61, getegid 108 177, geteuid 107 175, getgid 104 176,
    getpeername 52 205, getpid 39 172, getppid 110 173, getrandom 318 278, getrusage 98 165,
    getsockname 51 204, getsockopt 55 209, gettid 186 178, gettimeofday 96 169, getuid 102 174,
    init_module 175 105, io_uring_setup 425 425, ioctl 16 29, kexec_file_load 320 294,
    kexec_load 246 104, keyctl 250 219, kill 62 129, listen 50 201, lseek 8 62, lstat 6 -,
    madvise 28 233, membarrier 324 283, mknodat 259 33, mmap 9 222, mount 165 40,
    mount_setattr 442 442, move_mount 429 429, mprotect 10 226, mremap 25 216, munmap 11 215,
    nanosleep 35 101, newfstatat 262 79, open_by_handle_at 304 265, open_tree 428 428,
    openat 257 56, openat2 437 437, perf_event_open 298 241, pidfd_getfd 438 438, pipe2 293 59,
    pivot_root 155 41, poll 7 -, ppoll 271 73, pread64 17 67, prlimit64 302 261,
    process_vm_readv 310 270, process_vm_writev 311 271, pselect6 270 72, ptrace 101 117,
    read 0 63, readlink 89 -, readlinkat 267 78, readv 19 65, reboot 169 142, recvfrom 45 207,
    recvmsg 47 212, request_key 249 218, restart_syscall 219 128, rseq 334 293,
    rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, sched_getaffinity 204 123,
    sched_yield 24 124, select 23 -, sendmsg 46 211, sendto 44 206, set_robust_list 273 99,
    set_tid_address 218 96, setgid 106 144, setgroups 116 159, setns 308 268, setresgid 119 149,
    setresuid 117 147, setsockopt 54 208, setuid 105 146, shutdown 48 210, sigaltstack 131 132,
    socket 41 198, stat 4 -, statx 332 291, time 201 -, umount2 166 39, uname 63 160,
    unlink 87 -, unlinkat 263 35, unshare 272 97, userfaultfd 323 282, vfork 58 -, wait4 61 260,
    waitid 247 95, write 1 64, writev 20 66
"""
CALLS: Final[Mapping[str, tuple[int | None, int | None]]] = {
    name: (int(x86) if x86 != "-" else None, int(arm) if arm != "-" else None)
    for name, x86, arm in (entry.split() for entry in _NUMBERS.replace("\n", " ").split(","))
}
ALLOWED: Final = _names("""
    read write readv writev pread64 close close_range lseek dup openat openat2 newfstatat fstat
    stat lstat statx getdents64 readlink readlinkat access faccessat faccessat2 unlink unlinkat
    getcwd munmap mremap madvise brk futex membarrier rseq set_robust_list recvfrom recvmsg
    accept accept4 getsockname getpeername getsockopt shutdown listen epoll_ctl epoll_wait
    epoll_pwait epoll_pwait2 poll ppoll clock_gettime clock_getres gettimeofday time
    clock_nanosleep nanosleep getrandom rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack
    getpid gettid getppid getuid geteuid getgid getegid getrusage sched_yield uname
    restart_syscall exit exit_group
""")
_MSG_FASTOPEN: Final = 0x2000_0000  # connects what is not connected: `connect` by another name
_IP_PKTINFO: Final = 8  # linux/in.h; not in Python's socket
# What the gateway sets on its sockets: a reset instead of an end, urgent bytes in their place in
# the stream, no waiting for more bytes or before an acknowledgement, and the address that a
# datagram was sent to. Nothing that attaches a program, sets a mark, joins a group or names a
# device.
OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_LINGER),
    (socket.SOL_SOCKET, socket.SO_OOBINLINE),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    (socket.IPPROTO_TCP, socket.TCP_QUICKACK),
    (socket.IPPROTO_IP, _IP_PKTINFO),
)
# Commands of fcntl that need no more looking at. Not among them: F_SETOWN and F_SETSIG, by which
# a signal is sent.
_FCNTLS: Final = (fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_DUPFD_CLOEXEC)


# The gateway opens for reading alone, removes nothing and takes no connections.
_NOT_SUPERVISORS: Final = frozenset(
    {"openat", "openat2", "unlink", "unlinkat", "accept", "accept4", "listen"}
)
_ONLY_SUPERVISORS: Final = _names("""
    select pselect6 mmap mprotect setsockopt sendto sendmsg bind connect ftruncate pipe2 dup2 dup3
    chdir vfork execve wait4 waitid arch_prctl set_tid_address prlimit64
""")
SUPERVISOR_ALLOWED: Final = (
    *(name for name in ALLOWED if name not in _NOT_SUPERVISORS),
    *_ONLY_SUPERVISORS,
)
KILLING: Final = _names("""
    ptrace process_vm_readv process_vm_writev pidfd_getfd mount umount2 pivot_root move_mount
    open_tree fsopen mount_setattr chroot unshare open_by_handle_at mknodat bpf perf_event_open
    userfaultfd io_uring_setup add_key request_key keyctl init_module finit_module delete_module
    kexec_load kexec_file_load reboot setuid setgid setresuid setresgid setgroups capset
""")
_WRITING: Final = (
    # O_TMPFILE contains O_DIRECTORY's bit, which a directory's reader sets too.
    os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | (os.O_TMPFILE & ~os.O_DIRECTORY)
)
# AF_INET for ioctl(2) of a device, and to dial target cells: the rules let nothing else leave.
_FAMILIES: Final = (socket.AF_NETLINK, socket.AF_INET)
# Every CLONE_NEW… that clone(2) takes; only clone3 and unshare make a time namespace.
_NEW_NAMESPACES: Final = 0x7E02_0000
_CLONE_NEWNET: Final = 0x4000_0000
# SIOCGIFNAME (by which Python says where a frame came from), SIOCGIFINDEX, SIOCETHTOOL.
_SUPERVISORS_IOCTLS: Final = (*_IOCTLS, 0x8910, 0x8933, 0x8946)


_Instruction = tuple[int, int, int, int]


def gateway_filter(machine: str | None = None) -> bytes:
    """The filter for `machine`, else this one. Raises `KeyError`."""
    machine = machine or platform.machine()
    column = _COLUMN[machine]
    program = [*_head(machine), *_each(ALLOWED, column, _ALLOW)]
    for name in ("mmap", "mprotect"):
        program += _when(_number(name, column), _argument(2), (_ANY_BIT, 1, 0, _PROT_EXEC))
    for name, flags in (("sendto", 3), ("sendmsg", 2)):
        # Urgent bytes of a unix stream are code of the kernel's that nothing here needs.
        test = (_ANY_BIT, 1, 0, int(_MSG_FASTOPEN | socket.MSG_OOB))
        program += _when(_number(name, column), _argument(flags), test)
    for level, option in OPTIONS:
        test = (_EQUAL, 0, 1, option)
        program += _when(_number("setsockopt", column), _argument(2), test, second=level)
    return _packed(program, column, _IOCTLS)


def supervisor_filter(*, may_enter: bool, machine: str | None = None) -> bytes:
    """The supervisor's; `may_enter`: network namespaces, by itself."""
    machine = machine or platform.machine()
    column = _COLUMN[machine]
    program = [*_head(machine), *_each(SUPERVISOR_ALLOWED, column, _ALLOW)]
    program += _each(KILLING, column, _KILL)
    program += _when(_number("openat", column), _argument(2), (_ANY_BIT, 1, 0, _WRITING))
    for family in _FAMILIES:
        program += _when(_number("socket", column), _argument(0), (_EQUAL, 0, 1, family))
    program += _when(_number("clone", column), _argument(0), (_ANY_BIT, 1, 0, _NEW_NAMESPACES))
    program += _when(_number("kill", column), _argument(1), (_EQUAL, 0, 1, signal.SIGKILL))
    if may_enter:
        program += _when(_number("setns", column), _argument(1), (_EQUAL, 0, 1, _CLONE_NEWNET))
    # Behind the exception: the first rule that matches decides.
    program += _each(["setns"], column, _KILL)
    return _packed(program, column, _SUPERVISORS_IOCTLS)


def _packed(program: list[_Instruction], column: int, ioctls: tuple[int, ...]) -> bytes:
    whole = (*program, *_tail(column, ioctls))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in whole)


def _head(machine: str) -> Iterator[_Instruction]:
    # First, as a number is another call on another architecture (seccomp(2)).
    yield (_LOAD, 0, 0, _ARCH_AT)
    yield (_EQUAL, 1, 0, _AUDIT_ARCH[machine])
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _NUMBER_AT)
    if machine == "x86_64":  # x32's numbers would walk around the list
        yield (_AT_LEAST, 0, 1, _X32_BIT)
        yield (_RETURN, 0, 0, _KILL)


def _number(name: str, column: int) -> int:
    found = CALLS[name][column]
    if found is None:
        raise KeyError(name)
    return found


def _each(names: Iterable[str], column: int, result: int) -> Iterator[_Instruction]:
    for name in names:
        if (number := CALLS[name][column]) is not None:
            yield (_EQUAL, 0, 1, number)
            yield (_RETURN, 0, 0, result)


def _tail(column: int, ioctls: tuple[int, ...]) -> Iterator[_Instruction]:
    """What both filters allow, and the refusal of all else."""
    for command in _FCNTLS:
        yield from _when(_number("fcntl", column), _argument(1), (_EQUAL, 0, 1, command))
    # F_SETFL without O_ASYNC: with an owner set (refused as well) it sends signals past kill's
    # checks.
    test = (_ANY_BIT, 1, 0, os.O_ASYNC)
    yield from _when(_number("fcntl", column), _argument(2), test, second=fcntl.F_SETFL)
    # Of another process it would show whether there is one
    yield from _when(_number("sched_getaffinity", column), _argument(0), (_EQUAL, 0, 1, 0))
    for request in ioctls:
        yield from _when(_number("ioctl", column), _argument(1), (_EQUAL, 0, 1, request))
    # Its flags are in memory, where no filter can look: told that there is none, a C library takes
    # clone.
    yield (_EQUAL, 0, 1, _number("clone3", column))
    yield (_RETURN, 0, 0, _FAIL | errno.ENOSYS)
    yield (_RETURN, 0, 0, _FAIL | errno.EPERM)


def _argument(index: int) -> int:
    # The low half of the 64 bits: both machines are little-endian.
    return _ARGUMENTS_AT + 8 * index


def _when(
    number: int, at: int, test: _Instruction, *, second: int | None = None
) -> Iterator[_Instruction]:
    # Allow the call if its argument's test passes, and if the second argument is `second`; loads
    # the number again after it.
    yield (_EQUAL, 0, 4 if second is None else 6, number)
    if second is not None:
        yield (_LOAD, 0, 0, _argument(1))
        yield (_EQUAL, 0, 3, second)
    yield (_LOAD, 0, 0, at)
    yield test
    yield (_RETURN, 0, 0, _ALLOW)
    yield (_LOAD, 0, 0, _NUMBER_AT)
