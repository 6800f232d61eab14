"""Files and directories that a task names below one root: listed, bounded, without following links.

The path to a source is looked up as `policy.regular` does it: in one step of the kernel, with links
followed only below the root. Inside of a directory nothing is followed: a link stays a link.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

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
        for entry in _entries(fd):
            if len(entries) >= max_entries:
                raise ValueError(f"more than {max_entries:,} files and directories")
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


def _entries(fd: int) -> Iterator[Entry]:
    found = os.fstat(fd)
    mode = stat.S_IMODE(found.st_mode) & 0o777
    if stat.S_ISREG(found.st_mode):
        yield Entry(path="", kind=EntryKind.FILE, mode=mode, size_bytes=found.st_size)
    elif stat.S_ISDIR(found.st_mode):
        yield Entry(path="", kind=EntryKind.DIRECTORY, mode=mode)
        yield from _below(fd, "", 1)
    else:
        raise ValueError("it is no regular file and no directory")


def _below(fd: int, path: str, depth: int) -> Iterator[Entry]:
    if depth > MAX_DEPTH:
        raise ValueError(f"more than {MAX_DEPTH} directories deep")
    for name in sorted(os.listdir(fd)):
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
                yield from _below(inner, at, depth + 1)
            finally:
                os.close(inner)
        elif stat.S_ISREG(found.st_mode):
            mode = stat.S_IMODE(found.st_mode) & 0o777
            yield Entry(path=at, kind=EntryKind.FILE, mode=mode, size_bytes=found.st_size)
        else:
            raise ValueError(f"{printable(at)} is no regular file, directory or link")


_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _link(fd: int, name: str, at: str) -> str:
    """A link's text, if it stays in the tree: what it says must not tell where the host keeps it."""
    link = os.readlink(name, dir_fd=fd)
    leads_to = posixpath.normpath(posixpath.join(posixpath.dirname(at), link))
    if link.startswith("/") or leads_to == ".." or leads_to.startswith("../"):
        raise ValueError(f"the link {printable(at)} leads out of its directory")
    return link
