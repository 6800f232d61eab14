"""System calls that Python lacks, and filters of calls; failures raise `OSError`."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import resource
import signal
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from belljar.libc import LIBC, must

# linux/sched.h
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x0002_0000, 0x0400_0000, 0x0800_0000
CLONE_NEWUSER, CLONE_NEWNET = 0x1000_0000, 0x4000_0000

# linux/capability.h
CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN = 12, 13, 21
# The most that two words hold; a kernel's own last one is lower, and found by its EINVAL.
CAP_LAST: Final = 63

# linux/mount.h; the first four have the same bits as MOUNT_ATTR_*.
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MNT_DETACH: Final = 2  # A busy mount goes too, as its last user ends.

# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_SECCOMP = 1, 4, 8, 22
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE = 24, 38, 47, 2
_SECCOMP_MODE_FILTER: Final = 2  # linux/seccomp.h
_CAPABILITY_VERSION_3: Final = 0x2008_0522  # Two words for each set (capget(2))
# Numbers of calls that a C library may have no function for.
_PIVOT_ROOT: Final = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR: Final = 442
_CLOSE_RANGE: Final = 436
_SO_RCVBUFFORCE: Final = 33  # asm-generic/socket.h; not in Python's socket
# Of supervisor and gateway. A core of 1 byte: none is written, nor piped (as in plan.jail).
_LIMITS: Final = {resource.RLIMIT_CORE: 1, resource.RLIMIT_MEMLOCK: 0}


def unshare(flags: int) -> None:
    must(LIBC.unshare(flags), "unshare")


def die_with_parent(parent: int) -> None:
    """Send SIGKILL when the parent's thread ends. A change of ids clears it."""
    _prctl("parent-death signal", _PR_SET_PDEATHSIG, 9)
    if os.getppid() != parent:  # It may have ended before the kernel was asked.
        os._exit(1)


def no_new_privileges() -> None:
    _prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable(yes: bool) -> None:  # noqa: FBT001 - the call's own argument
    """Set PR_SET_DUMPABLE: off, this uid's processes can't trace it."""
    _prctl("dumpable", _PR_SET_DUMPABLE, int(yes))


def become(uid: int | None, kept: tuple[int, ...] = (), *, ambient: bool = False) -> None:
    """Take the uid (None: stay) and only `kept` capabilities; `ambient`: its programs too."""
    # First: it needs CAP_SETPCAP, which is gone with the uid.
    for number in range(CAP_LAST + 1):
        if number not in kept and LIBC.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            if ctypes.get_errno() == errno.EINVAL:  # the kernel has no more
                break
            must(-1, "bounding set")
    if uid is not None:
        # Else the kernel clears all capabilities when the uid is no longer 0.
        _prctl("keep capabilities", _PR_SET_KEEPCAPS, int(bool(kept)))
        # Groups first: with the uid goes the right to change them.
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    bits = sum(1 << number for number in kept)
    halves = [(bits & 0xFFFF_FFFF), bits >> 32]
    # Only what is permitted and inheritable can be made ambient (capabilities(7)).
    inheritable = halves if ambient else [0, 0]
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    data = b"".join(
        struct.pack("=III", half, half, inherited)
        for half, inherited in zip(halves, inheritable, strict=True)
    )
    must(LIBC.capset(header, data), "capset")
    for number in kept if ambient else ():
        _prctl("ambient capabilities", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number)


def install_filter(program: bytes) -> None:
    rules = ctypes.create_string_buffer(program, len(program))
    # `struct sock_fprog`: the number of instructions, of 8 bytes each, and where they are.
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(rules))
    buffer = ctypes.create_string_buffer(head, len(head))
    result = LIBC.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(buffer), 0, 0)
    must(result, "seccomp")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    paths = os.fsencode(source), os.fsencode(target)
    result = LIBC.mount(*paths, kind.encode(), ctypes.c_ulong(flags), options.encode())
    must(result, f"mount {target}")


def restrict_mount(target: str) -> None:
    """Make it read-only, nosuid, nodev, noexec: mount_setattr (Linux 5.12)."""
    bits = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC  # the same as MOUNT_ATTR_*
    # -100 below is AT_FDCWD, without a meaning for an absolute path.
    attributes = struct.pack("=QQQQ", bits, 0, 0, 0)
    result = LIBC.syscall(
        _MOUNT_SETATTR, -100, os.fsencode(target), 0, attributes, ctypes.c_size_t(len(attributes))
    )
    must(result, f"mount_setattr {target}")


def enter_root(directory: str) -> None:
    os.chdir(directory)
    # The old root is put on top of the new one (pivot_root(2)): it needs no directory there.
    must(LIBC.syscall(_PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    must(LIBC.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")


def close_all_but(kept: tuple[int, ...]) -> None:
    start = 0
    # The last is above any descriptor: it closes what is behind the last one that is kept.
    for fd in (*sorted(set(kept)), 1 << 31):
        if start < fd:
            last = min(fd - 1, (1 << 32) - 1)
            result = LIBC.syscall(_CLOSE_RANGE, ctypes.c_uint(start), ctypes.c_uint(last), 0)
            must(result, "close_range")
        start = fd + 1


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def limit_resources(limits: Mapping[int, int]) -> None:
    for limit, value in {**_LIMITS, **limits}.items():
        resource.setrlimit(limit, (value, value))


def set_receive_buffer(end: socket.socket, size_bytes: int) -> None:
    try:
        end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size_bytes)
    except PermissionError:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)


def _prctl(what: str, *words: int) -> None:
    # Some operations fail unless the arguments without a use are 0 (prctl(2)).
    padded = (*words, 0, 0, 0, 0)[:5]
    must(LIBC.prctl(padded[0], *(ctypes.c_ulong(word) for word in padded[1:])), what)


# ---- system-call filters of a range's processes. The assembler is pure.
#
# Allow-lists: other calls fail with EPERM, so that a library that merely tries goes on. Another
# architecture's calls kill, and those that only a compromised process makes.

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
_ENTRIES: Final = [entry.split() for entry in _NUMBERS.split(",")]
CALLS: Final[Mapping[str, Mapping[str, int]]] = {
    machine: {words[0]: int(words[column]) for words in _ENTRIES if words[column] != "-"}
    for machine, column in (("x86_64", 1), ("aarch64", 2))
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
# What the gateway sets on its sockets: a reset instead of an end, urgent bytes in their place in
# the stream, no waiting for more bytes or before an acknowledgement. Nothing that attaches a
# program, sets a mark, joins a group or names a device.
OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_LINGER),
    (socket.SOL_SOCKET, socket.SO_OOBINLINE),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    (socket.IPPROTO_TCP, socket.TCP_QUICKACK),
)
# Not among them: F_SETOWN and F_SETSIG, by which a signal is sent.
_FCNTLS: Final = (fcntl.F_GETFD, fcntl.F_SETFD, fcntl.F_GETFL, fcntl.F_DUPFD_CLOEXEC)
# The gateway opens for reading alone, removes nothing and takes no connections.
_NOT_SUPERVISORS: Final = _names("openat openat2 unlink unlinkat accept accept4 listen")
_ONLY_SUPERVISORS: Final = _names("""
    select pselect6 mmap mprotect setsockopt sendto sendmsg bind connect ftruncate pipe2 dup2 dup3
    chdir vfork execve wait4 waitid arch_prctl set_tid_address prlimit64
""")
SUPERVISOR_ALLOWED: Final = (*_ONLY_SUPERVISORS, *sorted({*ALLOWED} - {*_NOT_SUPERVISORS}))
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
# SIOCGIFNAME (by which Python says where a frame came from), SIOCGIFINDEX, SIOCETHTOOL.
_SUPERVISORS_IOCTLS: Final = (*_IOCTLS, 0x8910, 0x8933, 0x8946)

_Instruction = tuple[int, int, int, int]
# An argument's number, how it is tested, and with what; `_ANY_BIT` passes if none is set.
_Test = tuple[int, int, int]
# A call, what the kernel does with it, and tests that all pass; the first that matches decides.
_Rule = tuple[str, int, Sequence[_Test]]


def gateway_filter(machine: str | None = None) -> bytes:
    # Urgent bytes of a unix stream are code of the kernel's that nothing here needs. No `sendmsg`:
    # it has options where no filter can look (UDP_SEGMENT: many datagrams in one frame).
    flags = int(_MSG_FASTOPEN | socket.MSG_OOB)
    rules: list[_Rule] = [
        *((name, _ALLOW, ()) for name in ALLOWED),
        *((name, _ALLOW, [(2, _ANY_BIT, _PROT_EXEC)]) for name in ("mmap", "mprotect")),
        ("sendto", _ALLOW, [(3, _ANY_BIT, flags)]),
        *(("setsockopt", _ALLOW, [(1, _EQUAL, at), (2, _EQUAL, option)]) for at, option in OPTIONS),
    ]
    return _assembled(rules, _IOCTLS, machine or platform.machine())


def supervisor_filter(*, may_enter: bool, machine: str | None = None) -> bytes:
    rules: list[_Rule] = [
        *((name, _ALLOW, ()) for name in SUPERVISOR_ALLOWED),
        *((name, _KILL, ()) for name in KILLING),
        ("openat", _ALLOW, [(2, _ANY_BIT, _WRITING)]),
        *(("socket", _ALLOW, [(0, _EQUAL, family)]) for family in _FAMILIES),
        ("clone", _ALLOW, [(0, _ANY_BIT, _NEW_NAMESPACES)]),
        ("kill", _ALLOW, [(1, _EQUAL, signal.SIGKILL)]),
        *([("setns", _ALLOW, [(1, _EQUAL, CLONE_NEWNET)])] if may_enter else ()),
        ("setns", _KILL, ()),
    ]
    return _assembled(rules, _SUPERVISORS_IOCTLS, machine or platform.machine())


def _assembled(rules: list[_Rule], ioctls: Sequence[int], machine: str) -> bytes:
    program: list[_Instruction] = [
        # First, as a number is another call on another architecture (seccomp(2)).
        (_LOAD, 0, 0, _ARCH_AT),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_AT),
    ]
    if machine == "x86_64":  # x32's numbers would walk around the list
        program += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, _KILL)]
    rules = [
        *rules,
        *(("fcntl", _ALLOW, [(1, _EQUAL, command)]) for command in _FCNTLS),
        # F_SETFL without O_ASYNC, which sends signals past kill's checks.
        ("fcntl", _ALLOW, [(1, _EQUAL, fcntl.F_SETFL), (2, _ANY_BIT, os.O_ASYNC)]),
        # Of another process it would show whether there is one
        ("sched_getaffinity", _ALLOW, [(0, _EQUAL, 0)]),
        *(("ioctl", _ALLOW, [(1, _EQUAL, request)]) for request in ioctls),
        # Its flags are in memory, where no filter can look: a C library takes clone then.
        ("clone3", _FAIL | errno.ENOSYS, ()),
    ]
    for name, result, tests in rules:
        if name in CALLS[machine]:
            program += _instructions(CALLS[machine][name], result, tests)
    program.append((_RETURN, 0, 0, _FAIL | errno.EPERM))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _instructions(number: int, result: int, tests: Sequence[_Test]) -> Iterator[_Instruction]:
    # The instructions between a jump and the rule's end, where the number is loaded again.
    left = 2 * len(tests) + 1
    yield (_EQUAL, 0, left + bool(tests), number)
    for argument, test, value in tests:
        left -= 2
        # The low half of the 64 bits: both machines are little-endian.
        yield (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument)
        yield (test, 0, left, value) if test == _EQUAL else (test, left, 0, value)
    yield (_RETURN, 0, 0, result)
    if tests:
        yield (_LOAD, 0, 0, _NUMBER_AT)
