"""Files and directories that a task names below one root: listed, bounded, without following links.

The path to a source is looked up as `policy.regular` does it: in one step of the kernel, with links
followed only below the root. Inside of a directory nothing is followed: a link stays a link.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Final

from belljar.dataclass import dataclass
from belljar.policy.regular import open_beneath, read_regular
from belljar.units import printable

MAX_DEPTH: Final = 32
"""Of directories below a source; each level holds a descriptor open while it is listed."""


class EntryKind(Enum):
    """What an entry is; others are refused."""

    FILE = "file"
    DIRECTORY = "directory"
    LINK = "link"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One thing of a tree. `path`: below the source, "" for the source itself; `link`: its text."""

    path: str
    kind: EntryKind
    mode: int = 0
    size_bytes: int = 0
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A file, or a directory with all that is in it, parents first, in the order of their names."""

    source: str
    entries: tuple[Entry, ...]

    @property
    def is_directory(self) -> bool:
        """Whether the source is one."""
        return self.entries[0].kind is EntryKind.DIRECTORY

    @property
    def total_bytes(self) -> int:
        """Of all files together."""
        return sum(entry.size_bytes for entry in self.entries)


def list_tree(root: Path, source: str, *, max_entries: int) -> Tree:
    """What `source` is, and holds.

    Raises:
        FileNotFoundError: it is not there. OSError: it can't be read.
        ValueError: it, or a link in it, leads out; it holds a socket, pipe or device; it has more
            than `max_entries` entries, or more than `MAX_DEPTH` levels.
    """
    entries: list[Entry] = []
    with open_beneath(root, source) as fd:
        for entry in _entries(fd, max_entries):
            if len(entries) >= max_entries:
                raise _too_many(max_entries)
            entries.append(entry)
    return Tree(source=source, entries=tuple(entries))


def read_entry(root: Path, tree: Tree, entry: Entry) -> bytes:
    """The contents of a file of the tree, at most as many bytes as it had when it was listed.

    Raises `OSError` and `ValueError` where it has become something else meanwhile.
    """
    name = posixpath.join(tree.source, entry.path) if entry.path else tree.source
    contents = read_regular(root, name, entry.size_bytes + 1)
    if len(contents) > entry.size_bytes:
        raise ValueError("it has grown meanwhile")
    return contents


def _entries(fd: int, max_entries: int) -> Iterator[Entry]:
    found = os.fstat(fd)
    mode = stat.S_IMODE(found.st_mode) & 0o777
    if stat.S_ISREG(found.st_mode):
        yield Entry(path="", kind=EntryKind.FILE, mode=mode, size_bytes=found.st_size)
    elif stat.S_ISDIR(found.st_mode):
        yield Entry(path="", kind=EntryKind.DIRECTORY, mode=mode)
        yield from _below(fd, "", 1, max_entries)
    else:
        raise ValueError("it is no regular file and no directory")


def _below(fd: int, path: str, depth: int, max_entries: int) -> Iterator[Entry]:
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} directories deep")
    for name in _names(fd, max_entries):
        at = f"{path}/{name}" if path else name
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if any("\ud800" <= character <= "\udfff" for character in name):
            raise ValueError(f"{printable(at)} is no name in UTF-8")
        if stat.S_ISLNK(found.st_mode):
            yield Entry(path=at, kind=EntryKind.LINK, link=_link(fd, name, at))
        elif stat.S_ISDIR(found.st_mode):
            mode = stat.S_IMODE(found.st_mode) & 0o777
            yield Entry(path=at, kind=EntryKind.DIRECTORY, mode=mode)
            inner = os.open(name, _DIRECTORY, dir_fd=fd)
            try:
                yield from _below(inner, at, depth + 1, max_entries)
            finally:
                os.close(inner)
        elif stat.S_ISREG(found.st_mode):
            mode = stat.S_IMODE(found.st_mode) & 0o777
            yield Entry(path=at, kind=EntryKind.FILE, mode=mode, size_bytes=found.st_size)
        else:
            raise ValueError(f"{printable(at)} is no regular file, directory or link")


_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _names(fd: int, max_entries: int) -> list[str]:
    """The names in a directory, in order; no more are read than are allowed, and one."""
    with os.scandir(fd) as found:
        names = [entry.name for entry in islice(found, max_entries + 1)]
    if len(names) > max_entries:
        raise _too_many(max_entries)
    return sorted(names)


def _too_many(max_entries: int) -> ValueError:
    return ValueError(f"more than {max_entries:,} files and directories")


def _link(fd: int, name: str, at: str) -> str:
    """A link's text, if it stays in the tree: what it says must not tell where the host
    keeps it.
    """
    link = os.readlink(name, dir_fd=fd)
    if not link_stays(at, link):
        raise ValueError(f"the link {printable(at)} leads out of its directory")
    return link


def link_stays(path: str, link: str) -> bool:
    """Whether a link at `path` below a root can't lead out of it, wherever other links lead.

    `..` may only begin the text: after a name it would go up from where that name leads, which
    another link may have put anywhere. `path` goes through directories only.
    """
    parts = [part for part in link.split("/") if part not in ("", ".")]
    ups = next((at for at, part in enumerate(parts) if part != ".."), len(parts))
    return not link.startswith("/") and ".." not in parts[ups:] and ups <= path.count("/")
