"""Files that an author names, opened below one directory."""

from __future__ import annotations

import errno
import os
import posixpath
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, Literal

from belljar.dataclass import dataclass
from belljar.errors import PolicyError
from belljar.units import printable

MAX_DEPTH: Final = 32  # of directories; each level holds a descriptor
_CHUNK_BYTES: Final = 1 << 20  # a file may grow while it is read: it is read in pieces
_OPENAT2: Final = 437  # the same on every architecture (Linux 5.6)
_RESOLVE_NO_MAGICLINKS: Final = 0x02  # from linux/openat2.h: Python has no names for them
_RESOLVE_BENEATH: Final = 0x08  # neither absolute links nor `..` lead out: EXDEV (openat2(2))
_TRIES: Final = 16  # for EAGAIN: something is renamed meanwhile (openat2(2))
# Opening a FIFO would wait for ever, and opening a terminal could make it ours.
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
# A link in place of a directory is refused, not followed.
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class OutsideError(ValueError):
    """A path or link leads out of its directory."""


@contextmanager
def open_beneath(directory: Path, name: str) -> Iterator[int]:
    """Raises `OSError`, `OutsideError`; `ValueError`: a null byte."""
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
    """Raises as `open_beneath`, and `ValueError`."""
    with open_beneath(directory, name) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError("it is not a regular file")
        yield fd


def read_regular(directory: Path, name: str, max_bytes: int) -> bytes:
    """Return at most `max_bytes`. Raises as `open_regular`."""
    parts, left = [], max_bytes
    with open_regular(directory, name) as fd:
        while left > 0 and (part := os.read(fd, min(left, _CHUNK_BYTES))):
            parts.append(part)
            left -= len(part)
    return b"".join(parts)


def _opened(at: int, name: str) -> int:
    import ctypes  # late: few policies name files

    # C would take the name to end there, and open another file than the one that was checked.
    if "\0" in name:
        raise ValueError("embedded null byte")
    libc, path = ctypes.CDLL(None, use_errno=True), os.fsencode(name)
    how = struct.pack("=QQQ", _READ, 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    number = errno.EAGAIN
    for _ in range(_TRIES):
        fd = int(libc.syscall(_OPENAT2, at, path, how, len(how)))
        if fd >= 0:
            return fd
        if (number := ctypes.get_errno()) != errno.EAGAIN:
            break
    if number == errno.EXDEV:
        raise OutsideError("a link leads out of its directory")
    raise OSError(number, os.strerror(number), name)


def check_below(path: Path, directory: Path) -> None:
    """Raises `PolicyError` for a link out of the task."""
    home = os.path.realpath(directory)
    written = os.path.normpath(path)
    is_named_below = any(Path(written).is_relative_to(at) for at in (directory.absolute(), home))
    if is_named_below and not Path(os.path.realpath(path.parent)).is_relative_to(home):
        what = "a link on the way to it leads out of the task's directory"
        hint = "put the file itself there, or name it where it is"
        raise PolicyError(what, where=printable(str(path)), hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """`path` is below the source, "" for itself."""

    path: str
    kind: Literal["file", "directory", "link"]
    mode: int = 0
    size_bytes: int = 0
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A file, or a directory and its contents, sorted."""

    root: Path
    source: str
    entries: tuple[Entry, ...]

    @property
    def is_directory(self) -> bool:
        return self.entries[0].kind == "directory"

    @property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


def list_tree(root: Path, source: str, *, max_entries: int) -> Tree:
    """Raises `OSError`; `ValueError`: a way out, or too much."""
    entries: list[Entry] = []
    with open_beneath(root, source) as fd:
        for entry in _entries(fd, "", os.fstat(fd), max_entries):
            entries.append(entry)
            if len(entries) > max_entries:
                raise ValueError(f"more than {max_entries:,} files and directories")
    return Tree(root=root, source=source, entries=tuple(entries))


def read_entry(tree: Tree, entry: Entry) -> bytes:
    """Raises `OSError`, and `ValueError` if it has grown."""
    name = posixpath.join(tree.source, entry.path) if entry.path else tree.source
    # One byte more than was listed, so that a file that grew is noticed, not cut.
    contents = read_regular(tree.root, name, entry.size_bytes + 1)
    if len(contents) > entry.size_bytes:
        raise ValueError("it has grown meanwhile")
    return contents


def _entries(fd: int, path: str, found: os.stat_result, max_entries: int) -> Iterator[Entry]:
    mode = stat.S_IMODE(found.st_mode) & 0o777
    if stat.S_ISREG(found.st_mode):
        yield Entry(path=path, kind="file", mode=mode, size_bytes=found.st_size)
        return
    if not stat.S_ISDIR(found.st_mode):
        raise ValueError(f"{printable(path) or 'it'} is not a regular file, directory or link")
    if path.count("/") >= MAX_DEPTH - 1:
        raise ValueError(f"more than {MAX_DEPTH} directories deep")
    yield Entry(path=path, kind="directory", mode=mode)
    with os.scandir(fd) as listed:  # no more names are read than are allowed, and one
        names = sorted(entry.name for entry in islice(listed, max_entries + 1))
    if len(names) > max_entries:
        raise ValueError(f"more than {max_entries:,} files and directories")
    for name in names:
        at = f"{path}/{name}" if path else name
        # Bytes that are no UTF-8 come as surrogates, which neither JSON nor the cell's files can
        # hold.
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise ValueError(f"{printable(at)} is not a name in UTF-8")
        # A link is kept as a link: what it leads to is the cell's own, never the host's.
        below = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if stat.S_ISLNK(below.st_mode):
            link = os.readlink(name, dir_fd=fd)
            if not link_stays(at, link):  # it must not tell where the host keeps the tree
                raise ValueError(f"the link {printable(at)} leads out of its directory")
            yield Entry(path=at, kind="link", link=link)
        elif stat.S_ISDIR(below.st_mode):
            inner = os.open(name, _DIRECTORY, dir_fd=fd)
            try:
                yield from _entries(inner, at, below, max_entries)
            finally:
                os.close(inner)
        else:
            yield from _entries(fd, at, below, max_entries)


def link_stays(path: str, link: str) -> bool:
    """`..` behind a name might lead out by another link."""
    parts = [part for part in link.split("/") if part not in ("", ".")]
    ups = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return not link.startswith("/") and ".." not in parts[ups:] and ups <= path.count("/")


def reason(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return str(error)
