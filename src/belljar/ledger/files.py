"""Small file actions: writing completely, and reading what an attacker may have laid out (no
symlink followed, nothing unbounded).
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from belljar.errors import LedgerError
from belljar.units import printable

_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
_MAX_DEPTH: Final = 16


def write_all(fd: int, content: bytes) -> None:
    """Write with as many calls as it takes. Raises `OSError`."""
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def write_file(path: Path, content: bytes) -> None:
    """Make a new file, 0600, and force it to the disk.

    Raises `OSError`; `FileExistsError` when there is one.
    """
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write_all(fd, content)
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Force a directory's entries to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def open_beneath(dir_fd: int, path: str) -> BinaryIO:
    """Open a regular file by a relative path of which no part is a symlink.

    Raises:
        FileNotFoundError: a part is missing.
        LedgerError: a part is a symlink or not what it should be (a device, a pipe, a directory).
    """
    *folders, name = path.split("/")
    opened: list[int] = []
    try:
        for folder in folders:
            opened.append(
                os.open(folder, _READ | os.O_DIRECTORY, dir_fd=opened[-1] if opened else dir_fd)
            )
        # O_NONBLOCK: a pipe in a file's place must not make us wait.
        fd = os.open(name, _READ | os.O_NONBLOCK, dir_fd=opened[-1] if opened else dir_fd)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV}:
            raise LedgerError(
                "a link or special file where a plain file belongs", where=path
            ) from error
        raise
    finally:
        for folder_fd in opened:
            os.close(folder_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LedgerError("not a plain file", where=path)
    return os.fdopen(fd, "rb", buffering=1 << 18)


def read_beneath(dir_fd: int, path: str, *, max_bytes: int) -> bytes:
    """All of a file, opened as `open_beneath` does.

    Raises `ValueError` when it is longer than `max_bytes`.
    """
    with open_beneath(dir_fd, path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"longer than {max_bytes} bytes")
    return content


def exists(dir_fd: int, path: str) -> bool:
    """Whether there is an entry of that name, whatever it is."""
    try:
        os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def digest_file(file: BinaryIO) -> tuple[str, int]:
    """The SHA-256 (hex) and the size of the rest of the file, read in pieces."""
    digest, size = hashlib.sha256(), 0
    while piece := file.read(1 << 20):
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def has_digest(file: BinaryIO, sha256: str, size_bytes: int) -> bool:
    """Whether the file is of this size and digest.

    Another size is noticed without reading it, however large it is.
    """
    return os.fstat(file.fileno()).st_size == size_bytes and digest_file(file) == (
        sha256,
        size_bytes,
    )


def raw_lines(file: BinaryIO, *, max_bytes: int, name: str) -> Iterator[tuple[int, bytes, bool]]:
    """(line number from 1, its bytes without the newline, whether it had one).

    Raises `LedgerError` at a line over `max_bytes`.
    """
    number = 0
    while raw := file.readline(max_bytes + 1):
        number += 1
        if len(raw) > max_bytes:
            raise LedgerError(f"longer than {max_bytes} bytes", where=f"{name}:{number}")
        yield number, raw.removesuffix(b"\n"), raw.endswith(b"\n")


def walk_files(dir_fd: int, prefix: str = "") -> Iterator[str]:
    """The relative path of every file beneath a directory, sorted within each folder.

    Raises:
        LedgerError: a symlink, a special file or an unprintable name anywhere, or folders nested
            more than 16 deep.
    """
    if prefix.count("/") > _MAX_DEPTH:
        raise LedgerError(f"folders nested more than {_MAX_DEPTH} deep", where=prefix)
    with os.scandir(dir_fd) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        if not path.isprintable():
            raise LedgerError("a file's name that can't be shown as text", where=printable(path))
        if entry.is_dir(follow_symlinks=False):
            child = os.open(entry.name, _READ | os.O_DIRECTORY, dir_fd=dir_fd)
            try:
                yield from walk_files(child, f"{path}/")
            finally:
                os.close(child)
        elif entry.is_file(follow_symlinks=False):
            yield path
        else:
            raise LedgerError("a link or special file", where=path)
