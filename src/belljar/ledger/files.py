"""Reads and writes files and bodies of a run directory safely.

An attacker may have made what is read: no symlink is followed, nothing is unbounded.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader, FileIO
from pathlib import Path
from typing import Any, BinaryIO, Final

from belljar.descriptors import open_fd
from belljar.errors import LedgerError
from belljar.ledger.schema import MAX_LINE_BYTES
from belljar.units import printable

# Two files: signing, with its fsync, must not take turns with recording.
LEDGER: Final = "ledger.jsonl"
CHECKPOINTS: Final = "checkpoints.jsonl"
# O_NONBLOCK: a pipe in a file's place must not make us wait.
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
# A link in place of a directory is refused, in a run directory that others may have written.
_DIRECTORY: Final = _READ | os.O_DIRECTORY
# `walk_files` calls itself, and holds a descriptor a level.
_MAX_DEPTH: Final = 16


def write_all(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]


def write_file(path: Path, content: bytes) -> None:
    """Make a new file, 0600, synced. Raises `OSError`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with open_fd(os.open(path, flags, 0o600)) as fd:
        write_all(fd, content)
        os.fsync(fd)


@contextmanager
def open_directory(path: Path) -> Iterator[int]:
    """Yield a directory's descriptor; `path` may be a link. Raises `OSError`."""
    # The operator named this path; only what lies below it may be an attacker's.
    with open_fd(os.open(path, _DIRECTORY & ~os.O_NOFOLLOW)) as fd:
        yield fd


def open_beneath(directory: int, path: str) -> BufferedReader:
    """Open a regular file by a relative path without symlinks.

    Raises `FileNotFoundError`, or `LedgerError` for a link or special file.
    """
    *folders, name = path.split("/")
    with ExitStack() as opened:
        try:
            for folder in folders:
                directory = os.open(folder, _DIRECTORY, dir_fd=directory)
                opened.callback(os.close, directory)
            fd = os.open(name, _READ, dir_fd=directory)
        except OSError as error:
            # A link, which is ENOTDIR where a directory is due; a socket; a device without a
            # driver (open(2)).
            if error.errno in {errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENODEV}:
                what = "a link or special file where a plain file belongs"
                raise LedgerError(what, where=path) from error
            raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LedgerError("not a plain file", where=path)
    return BufferedReader(FileIO(fd), 1 << 18)


def read_beneath(directory: int, path: str, *, max_bytes: int) -> bytes:
    """Read a file. Raises `ValueError` over `max_bytes`, and as `open_beneath`."""
    with open_beneath(directory, path) as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise ValueError(f"longer than {max_bytes} bytes")
    return content


def exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def digest_file(file: BufferedReader) -> tuple[str, int]:
    """Return SHA-256 (hex) and size of the file's rest."""
    begin = file.tell()
    return hashlib.file_digest(file, "sha256").hexdigest(), file.tell() - begin


def has_digest(file: BufferedReader, sha256: str, size_bytes: int) -> bool:
    size = os.fstat(file.fileno()).st_size
    # An attacker's file may be of any size.
    return size == size_bytes and digest_file(file) == (sha256, size_bytes)


def raw_lines(file: BinaryIO, *, max_bytes: int, name: str) -> Iterator[tuple[int, bytes, bool]]:
    """Yield line number, bytes without newline, and whether there was one.

    Raises `LedgerError` over `max_bytes`.
    """
    number = 0
    while raw := file.readline(max_bytes + 1):
        number += 1
        if len(raw) > max_bytes:
            raise LedgerError(f"longer than {max_bytes} bytes", where=f"{name}:{number}")
        yield number, raw.removesuffix(b"\n"), raw.endswith(b"\n")


def read_raw(run_dir: Path) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the ledger's lines as `raw_lines`. Raises `OSError`, `LedgerError`."""
    with open_directory(run_dir) as root, open_beneath(root, LEDGER) as file:
        yield from raw_lines(file, max_bytes=MAX_LINE_BYTES, name=LEDGER)


def is_being_written(run_dir: Path) -> bool:
    """Return True if the run's writer lives. Raises `OSError` without a ledger."""
    with open_fd(os.open(run_dir / LEDGER, _READ)) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def walk_files(directory: int, prefix: str = "") -> Iterator[str]:
    """Yield the relative path of every file below, sorted by folder.

    Raises `LedgerError` for a link, special file, unprintable name, or nesting over 16.
    """
    if prefix.count("/") > _MAX_DEPTH:
        raise LedgerError(f"folders nested more than {_MAX_DEPTH} deep", where=prefix)
    with os.scandir(directory) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        path = prefix + entry.name
        # It would be shown in messages, where it could act on a terminal or look like another name.
        if not path.isprintable():
            raise LedgerError("a file's name that can't be shown as text", where=printable(path))
        if entry.is_dir(follow_symlinks=False):
            with open_fd(os.open(entry.name, _DIRECTORY, dir_fd=directory)) as child:
                yield from walk_files(child, f"{path}/")
        elif entry.is_file(follow_symlinks=False):
            yield path
        else:
            raise LedgerError("a link or special file", where=path)


# Named by their digests: equal ones are one file.
BODIES: Final = "bodies"


def body_path(digest: str) -> str:
    return f"{BODIES}/{digest[:2]}/{digest}"


MANIFEST: Final = "manifest.json"
MANIFEST_PART: Final = "manifest.json.new"  # until the final checkpoint is on the disk


def digests_of(run_dir: Path) -> dict[str, dict[str, Any]]:
    """Sync every listed file, and return its digest and size.

    Raises `OSError`, and `LedgerError` at a link or special file.
    """
    digests = {}
    with open_directory(run_dir) as root:
        for path in walk_files(root):
            # The final checkpoint, which is yet to come, holds the manifest's digest; bodies are
            # named by theirs.
            if path in {MANIFEST, MANIFEST_PART, CHECKPOINTS} or path.startswith(f"{BODIES}/"):
                continue
            with open_beneath(root, path) as file:
                os.fsync(file.fileno())
                sha256, size = digest_file(file)
            digests[path] = {"sha256": sha256, "bytes": size}
    return digests
