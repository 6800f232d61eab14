"""System calls that Python lacks and several rooms need; a failure raises `OSError`."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Final

LIBC: Final = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long  # ctypes would cut it to an int
# The same on every architecture (Linux 5.6); glibc of Debian 12 has no function for it.
_OPENAT2: Final = 437
# From linux/openat2.h. Neither an absolute link nor `..` leads out: EXDEV, or the root stays below.
NO_MAGICLINKS, BENEATH, IN_ROOT = 0x02, 0x08, 0x10
# For EAGAIN: something is renamed meanwhile (openat2(2)), which a guest can do for ever.
_TRIES: Final = 16


def must(result: int, what: str | None = None) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result


def openat2(directory_fd: int, name: str, flags: int, resolve: int) -> int:
    # C would take the name to end there, and open another file than the one that was checked.
    if "\0" in name:
        raise ValueError("embedded null byte")
    how, path = struct.pack("=QQQ", flags, 0, resolve), os.fsencode(name)
    for _ in range(_TRIES):
        fd = int(LIBC.syscall(_OPENAT2, directory_fd, path, how, len(how)))
        if fd >= 0 or ctypes.get_errno() != errno.EAGAIN:
            break
    return must(fd, name)


def inotify_queue() -> int:
    return must(LIBC.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))


def inotify_add(queue: int, path: str, mask: int) -> int:
    """Return the watch's number."""
    return must(LIBC.inotify_add_watch(queue, os.fsencode(path), mask))


def enter_namespace(namespace_fd: int, kind: int) -> None:
    """Move this thread into it (setns(2))."""
    must(LIBC.setns(namespace_fd, kind), "setns")


def sync_file_system(fd: int) -> None:
    must(LIBC.syncfs(fd))
