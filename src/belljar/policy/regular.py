"""Reading a file that an author names: a regular one, below one directory, and no more of it than
is asked for. Every such file is opened here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_CHUNK_BYTES: Final = 1 << 20
_OPENAT2: Final = 437
"""The system call's number, the same on every architecture (Linux 5.6)."""
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_BENEATH: Final = 0x08
_TRIES: Final = 16
"""The kernel answers EAGAIN when something is renamed while it looks (openat2(2))."""
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_libc: Final = ctypes.CDLL(None, use_errno=True)


class OutsideError(ValueError):
    """A path, or a link in it, leads out of the directory that it has to stay in."""

    def __init__(self) -> None:
        super().__init__("a link leads out of its directory")


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


@contextmanager
def open_beneath(directory: Path, name: str) -> Iterator[int]:
    """A descriptor of whatever `name` is below `directory`, for reading; a pipe is not waited for.

    The kernel looks the whole path up in one step, so nothing can be exchanged between a check and
    the opening. Links that stay below `directory` are followed; `directory` itself may be one.

    Raises:
        OSError: it can't be opened; `ELOOP` for a loop of links.
        OutsideError: the path or a link in it leads out. ValueError: a null byte in a name.
    """
    at = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = _opened(at, name)
    finally:
        os.close(at)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def open_regular(directory: Path, name: str) -> Iterator[int]:
    """As `open_beneath`, for a regular file; another kind is a `ValueError`."""
    with open_beneath(directory, name) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is no regular file")
        yield fd


def read_regular(directory: Path, name: str, max_bytes: int) -> bytes:
    """The first `max_bytes` of a regular file: ask for one more than are allowed to see that there
    are too many. Raises as `open_regular`.

    Takes memory for what is there, not for what could be: a gateway has less than the largest file
    may have.
    """
    parts, left = [], max_bytes
    with open_regular(directory, name) as fd:
        while left > 0 and (part := os.read(fd, min(left, _CHUNK_BYTES))):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def _opened(at: int, name: str) -> int:
    if "\0" in name:
        raise ValueError("embedded null byte")
    path = os.fsencode(name)
    how = _OpenHow(_READ, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    number = errno.EAGAIN
    for _ in range(_TRIES):
        fd = int(_libc.syscall(_OPENAT2, at, path, ctypes.byref(how), ctypes.sizeof(how)))
        if fd >= 0:
            return fd
        if (number := ctypes.get_errno()) != errno.EAGAIN:
            break
    if number == errno.EXDEV:
        raise OutsideError
    if number in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a filter around this process
        return _without_links(at, name)
    raise OSError(number, os.strerror(number), name)


def _without_links(at: int, name: str) -> int:
    """The same where the kernel has no openat2: part by part, and no link is followed at all."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or not parts:
        raise OutsideError
    held = os.dup(at)
    try:
        for part in parts[:-1]:
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            deeper = os.open(part, flags, dir_fd=held)
            os.close(held)
            held = deeper
        return os.open(parts[-1], _READ | os.O_NOFOLLOW, dir_fd=held)
    finally:
        os.close(held)
