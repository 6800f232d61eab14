"""Marks on a container's files, from outside: fanotify as root, else inotify.

Marks follow the inode, so links and new names too. The container neither sees nor waits. The kernel
merges equal entries, and drops beyond 16,384.

For files only the cell's root may read, a helper process enters the cell's user namespace and
passes the queue back.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from belljar.dataclass import dataclass
from belljar.isolation.touches import Operation

# 64 fanotify events: each brings a descriptor.
READ_BYTES: Final = 64 * 24
# linux/fanotify.h and linux/inotify.h have the same numbers for these.
_ACCESS: Final = 0x01
_OPEN: Final = 0x20
# The kernel's queue was full: something was not told, and that is on record.
_OVERFLOW: Final = 0x4000
# FAN_CLOEXEC and FAN_NONBLOCK (linux/fanotify.h); without a class the queue only reports.
_FAN_CLOEXEC_NONBLOCK: Final = 0x3
# FAN_MARK_ADD of linux/fanotify.h.
_FAN_MARK_ADD: Final = 0x1
# AT_FDCWD of linux/fcntl.h, which Python's `os` lacks; the path given along is absolute.
_AT_FDCWD: Final = -100
# glibc of Debian 12 has no function for it.
_OPENAT2: Final = 437
# RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS: a guest's links can't lead out of its tree.
_IN_ROOT_NO_MAGIC: Final = 0x10 | 0x02
# openat2 gives EAGAIN while something is renamed on the path, which a guest can do for ever.
_TRIES: Final = 16
# struct fanotify_event_metadata (fanotify(7)).
_FANOTIFY: Final = struct.Struct("<IBBHQii")
# struct inotify_event without its name (inotify(7)).
_INOTIFY: Final = struct.Struct("<iIII")
_libc: Final = ctypes.CDLL(None, use_errno=True)

Mechanism: TypeAlias = Literal["fanotify", "inotify"]


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """One queue; `files`: given paths by inode or watch number."""

    mechanism: Mechanism
    fd: int
    files: Mapping[tuple[int, int], str]
    missing: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A queue entry; `file` None: lost some. `pid` 0: unknown."""

    file: tuple[int, int] | None
    operations: tuple[Operation, ...]
    pid: int = 0


def mark_files(mechanism: Mechanism, root: int, paths: Sequence[str]) -> Marked:
    """Mark regular files below `root`, which a hostile process may own.

    Raises `OSError`: the kernel gives no queue; files that can't be marked are in `missing`.
    """
    if mechanism == "fanotify":
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_LARGEFILE
        fd = _checked(_libc.fanotify_init(_FAN_CLOEXEC_NONBLOCK, flags))
    else:
        fd = _checked(_libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    files, missing = dict[tuple[int, int], str](), dict[str, str]()
    for path in paths:
        try:
            files[_mark(mechanism, fd, root, path)] = path
        except OSError as error:
            missing[path] = error.strerror or "unknown"
    return Marked(mechanism=mechanism, fd=fd, files=files, missing=missing)


def _mark(mechanism: Mechanism, fd: int, root: int, path: str) -> tuple[int, int]:
    held = open_in_root(root, path)
    try:
        found = os.fstat(held)
        # A guest may put a device or FIFO in the file's place.
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        name = f"/proc/self/fd/{held}".encode()  # that very file, whatever happens to its name
        if mechanism == "inotify":
            return _checked(_libc.inotify_add_watch(fd, name, _ACCESS | _OPEN)), 0
        mask = ctypes.c_uint64(_ACCESS | _OPEN)
        _checked(_libc.fanotify_mark(fd, _FAN_MARK_ADD, mask, _AT_FDCWD, name))
        return found.st_dev, found.st_ino
    finally:
        os.close(held)


def open_in_root(root: int, path: str) -> int:
    """`O_PATH` descriptor within that root. Raises `OSError`."""
    how = _OpenHow(os.O_PATH | os.O_CLOEXEC, 0, _IN_ROOT_NO_MAGIC)
    for _ in range(_TRIES):
        fd = _libc.syscall(_OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if fd >= 0 or ctypes.get_errno() != errno.EAGAIN:  # renamed meanwhile
            break
    return _checked(fd)


def read_queue(mechanism: Mechanism, fd: int) -> list[Seen]:
    """At most 64 entries; empty: none. Raises `OSError`."""
    try:
        data = os.read(fd, READ_BYTES)
    except BlockingIOError:
        return []
    return list(_fanotify(data) if mechanism == "fanotify" else _inotify(data))


def _fanotify(data: bytes) -> Iterator[Seen]:
    at = 0
    while at + _FANOTIFY.size <= len(data):
        length, _, _, _, mask, fd, pid = _FANOTIFY.unpack_from(data, at)
        # Always onwards: a record of length 0 would be read for ever.
        at += max(length, _FANOTIFY.size)
        if fd < 0:  # the queue was full, or this process may open no more files
            yield Seen(file=None, operations=())
            continue
        with suppress(OSError):
            found = os.fstat(fd)
            file = (found.st_dev, found.st_ino)
            yield Seen(file=file, operations=_operations(mask), pid=pid)
        os.close(fd)


def _inotify(data: bytes) -> Iterator[Seen]:
    at = 0
    while at + _INOTIFY.size <= len(data):
        watch, mask, _, name_bytes = _INOTIFY.unpack_from(data, at)
        at += _INOTIFY.size + name_bytes
        if mask & _OVERFLOW:
            yield Seen(file=None, operations=())
        elif operations := _operations(mask):
            yield Seen(file=(watch, 0), operations=operations)


def _operations(mask: int) -> tuple[Operation, ...]:
    opened: tuple[Operation, ...] = ("open",) if mask & _OPEN else ()
    return (*opened, "read") if mask & _ACCESS else opened


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


# To enter the cell's user namespace, whose root may look at all of its files.
_CLONE_NEWUSER: Final = 0x1000_0000
# The helper reports each file that it couldn't mark.
_MAX_ANSWER: Final = 1 << 20
# A guest's file system that hangs must not hang the cell's start.
_TIMEOUT_S: Final = 20.0
# With -I and -S the helper's sys.path is bare: this process's own comes along.
_BOOT: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from belljar.isolation.oci.marks import main; main()"
)


def mark_from_within(agent: int, paths: Sequence[str]) -> Marked:
    """Mark as the container's root. Blocking. Raises `OSError`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        ours.settimeout(_TIMEOUT_S)
        arguments = (json.dumps(sys.path), str(theirs.fileno()), str(agent))
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _BOOT, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={},
        ) as helper:
            theirs.close()
            try:
                helper.communicate(json.dumps(list(paths)).encode(), timeout=_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                helper.kill()
                raise OSError(None, "its helper did not end in time") from None
        message, fds, _, _ = socket.recv_fds(ours, _MAX_ANSWER, 1, socket.MSG_CMSG_CLOEXEC)
    answer: dict[str, Any] = json.loads(message or b'{"error": "its helper gave no answer"}')
    if "error" in answer or not fds:
        for fd in fds:
            os.close(fd)
        raise OSError(answer.get("errno"), str(answer.get("error", "no queue came")))
    files = {(int(watch), 0): path for watch, path in answer["files"]}
    return Marked(mechanism="inotify", fd=fds[0], files=files, missing=answer["missing"])


def main() -> None:
    """The helper: descriptor and pid arguments, paths on stdin."""
    channel = socket.socket(fileno=int(sys.argv[2]))
    paths = json.load(sys.stdin)
    try:
        agent = int(sys.argv[3])
        with Path(f"/proc/{agent}/ns/user").open("rb") as namespace:
            _checked(_libc.setns(namespace.fileno(), _CLONE_NEWUSER))
        root = os.open(f"/proc/{agent}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        marked = mark_files("inotify", root, paths)
    except OSError as error:
        answer = {"errno": error.errno, "error": error.strerror or str(error)}
        channel.send(json.dumps(answer).encode())
        return
    files = [[watch, path] for (watch, _), path in marked.files.items()]
    found = json.dumps({"files": files, "missing": dict(marked.missing)}).encode()
    socket.send_fds(channel, [found], [marked.fd])
