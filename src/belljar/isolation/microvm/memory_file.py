"""The file that is a guest's RAM: allotted whole, so that a full disk is known before the guest is;
made sparse again and digested when it is a template.

The digest is of the contents, not of how a file system happens to lay them out: blocks of zeros
count as not there.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from belljar.errors import HostError
from belljar.units import format_size

_BLOCK_BYTES: Final = 64 << 10
_ZEROS: Final = bytes(_BLOCK_BYTES)
_PUNCH_AND_KEEP_SIZE: Final = 0x02 | 0x01
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def allot(path: Path, size_bytes: int) -> None:
    """A new file of that size with all its blocks. Raises `HostError` when the disk is too full."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size_bytes)
    except OSError as exc:
        if exc.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            raise
        raise HostError(
            f"no space for a template: its memory takes {format_size(size_bytes)} while it is made",
            where=str(path.parent),
            hint="free some space, put BELLJAR_HOME on a larger file system, "
            "or ask for less memory and disk in the policy",
        ) from exc
    finally:
        os.close(fd)


def make_sparse(path: Path) -> None:
    """Give back the blocks that are all zeros, allotted ones that were never written included.

    A file system that can't keeps them.
    """
    with path.open("r+b") as file:
        kept_to = 0
        for offset, block in _blocks(file.fileno()):
            if block == _ZEROS[: len(block)]:
                continue
            if not _punch(file.fileno(), kept_to, offset - kept_to):
                return
            kept_to = offset + len(block)
        _punch(file.fileno(), kept_to, os.fstat(file.fileno()).st_size - kept_to)


def _punch(fd: int, offset: int, length: int) -> bool:
    if length <= 0:
        return True
    start, count = ctypes.c_int64(offset), ctypes.c_int64(length)
    return int(_LIBC.fallocate(fd, _PUNCH_AND_KEEP_SIZE, start, count)) == 0


def digest(path: Path) -> str:
    """SHA-256 over the size and each 64 KiB block that is not all zeros, with its number."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        hasher.update(os.fstat(file.fileno()).st_size.to_bytes(8, "little"))
        for offset, block in _blocks(file.fileno()):
            if block != _ZEROS[: len(block)]:
                hasher.update((offset // _BLOCK_BYTES).to_bytes(8, "little"))
                hasher.update(block)
    return hasher.hexdigest()


def _blocks(fd: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of every block that may hold data; holes are skipped."""
    size = os.fstat(fd).st_size
    offset = 0
    while offset < size:
        try:
            data = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                return
            raise
        offset = data // _BLOCK_BYTES * _BLOCK_BYTES
        hole = os.lseek(fd, data, os.SEEK_HOLE)
        while offset < min(hole, size):
            block = os.pread(fd, _BLOCK_BYTES, offset)
            if not block:
                return
            yield offset, block
            offset += _BLOCK_BYTES
