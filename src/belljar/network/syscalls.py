"""The kernel's calls that Python has no name for; a failure raises `OSError`."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import socket
import struct
from typing import Final

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

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long  # ctypes would cut it to an int


def _must(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    """unshare(2)."""
    _must(_libc.unshare(flags), "unshare")


def enter(namespace_fd: int, kind: int) -> None:
    """setns(2): moves this thread."""
    _must(_libc.setns(namespace_fd, kind), "setns")


def die_with_parent(parent: int) -> None:
    """SIGKILL when the parent's thread ends. Id changes clear it."""
    _prctl("parent-death signal", _PR_SET_PDEATHSIG, 9)
    if os.getppid() != parent:  # It may have ended before the kernel was asked.
        os._exit(1)


def no_new_privileges() -> None:
    """PR_SET_NO_NEW_PRIVS."""
    _prctl("no new privileges", _PR_SET_NO_NEW_PRIVS, 1)


def set_dumpable(yes: bool) -> None:  # noqa: FBT001 - the call's own argument
    """PR_SET_DUMPABLE: off, this uid's processes can't trace it."""
    _prctl("dumpable", _PR_SET_DUMPABLE, int(yes))


def become(uid: int | None, kept: tuple[int, ...] = (), *, ambient: bool = False) -> None:
    """Take the uid (None: stay) and `kept` capabilities alone; `ambient`: its programs too."""
    # First: it needs CAP_SETPCAP, which is gone with the uid.
    for number in range(CAP_LAST + 1):
        if number not in kept and _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) < 0:
            if ctypes.get_errno() == errno.EINVAL:  # the kernel has no more
                break
            _must(-1, "bounding set")
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
    _must(_libc.capset(header, data), "capset")
    for number in kept if ambient else ():
        _prctl("ambient capabilities", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number)


def install_filter(program: bytes) -> None:
    """A seccomp filter (`struct sock_filter[]`). Needs no_new_privs."""
    rules = ctypes.create_string_buffer(program, len(program))
    # `struct sock_fprog`: the number of instructions, of 8 bytes each, and where they are.
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(rules))
    buffer = ctypes.create_string_buffer(head, len(head))
    result = _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(buffer), 0, 0)
    _must(result, "seccomp")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2)."""
    paths = os.fsencode(source), os.fsencode(target)
    result = _libc.mount(*paths, kind.encode(), ctypes.c_ulong(flags), options.encode())
    _must(result, f"mount {target}")


def restrict_mount(target: str) -> None:
    """Read-only, nosuid, nodev, noexec: mount_setattr (Linux 5.12)."""
    bits = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC  # the same as MOUNT_ATTR_*
    # -100 below is AT_FDCWD, without a meaning for an absolute path.
    attributes = struct.pack("=QQQQ", bits, 0, 0, 0)
    result = _libc.syscall(
        _MOUNT_SETATTR, -100, os.fsencode(target), 0, attributes, ctypes.c_size_t(len(attributes))
    )
    _must(result, f"mount_setattr {target}")


def enter_root(directory: str) -> None:
    """Make `directory` the root, and unmount the old."""
    os.chdir(directory)
    # The old root is put on top of the new one (pivot_root(2)): it needs no directory there.
    _must(_libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    _must(_libc.umount2(b".", MNT_DETACH), "umount")
    os.chdir("/")


def close_all_but(kept: tuple[int, ...]) -> None:
    """Close every descriptor that is not listed."""
    start = 0
    # The last is above any descriptor: it closes what is behind the last one that is kept.
    for fd in (*sorted(set(kept)), 1 << 31):
        if start < fd:
            last = min(fd - 1, (1 << 32) - 1)
            result = _libc.syscall(_CLOSE_RANGE, ctypes.c_uint(start), ctypes.c_uint(last), 0)
            _must(result, "close_range")
        start = fd + 1


def set_receive_buffer(end: socket.socket, size_bytes: int) -> None:
    """Beyond `net.core.rmem_max` with a capability over the whole host, else up to it."""
    try:
        end.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, size_bytes)
    except PermissionError:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size_bytes)


def _prctl(what: str, *words: int) -> None:
    # Some operations fail unless the arguments without a use are 0 (prctl(2)).
    padded = (*words, 0, 0, 0, 0)[:5]
    _must(_libc.prctl(padded[0], *(ctypes.c_ulong(word) for word in padded[1:])), what)
