"""The files of a stand-in's directory: listed once, opened without following a link, hashed in
pieces.

A guest's words never become a path: what it asks for is looked up among the names that were listed.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from anyio.lowlevel import checkpoint

from belljar.network.stand_ins.faults import Fault, Faults

MAX_FILES: Final = 50_000
MAX_DEPTH: Final = 16
CHUNK_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ShelfFile:
    """A regular file of the directory.

    `name` is its path below it, with `/`. `content`: of one that lies in memory and has no path.
    """

    name: str
    path: Path
    size_bytes: int
    mtime_s: int
    content: bytes | None = field(default=None, repr=False)

    def open(self) -> BinaryIO:
        """To be read. Raises `OSError`."""
        return (
            os.fdopen(open_file(self.path), "rb")
            if self.content is None
            else io.BytesIO(self.content)
        )

    @property
    def base(self) -> str:
        """The last part of the name."""
        return self.name.rpartition("/")[2]


class ShelfError(ValueError):
    """The directory can't be served; the message says why and which file."""


def list_files(directory: Path) -> tuple[ShelfFile, ...]:
    """Every regular file below `directory`, sorted by name.

    Hidden files and symbolic links are left out; a missing directory is empty.

    Raises `ShelfError` beyond `MAX_FILES` files or `MAX_DEPTH` directories.
    """
    found: list[ShelfFile] = []
    for file in _walk(directory, "", 0):
        found.append(file)
        if len(found) > MAX_FILES:
            raise ShelfError(f"{directory}: more than {MAX_FILES} files")
    return tuple(sorted(found, key=lambda file: file.name))


def links_in(directory: Path) -> Iterator[str]:
    """The names of symbolic links below `directory`, which are not served."""
    for folder, folders, files in os.walk(directory):
        for name in sorted([*folders, *files]):
            path = Path(folder, name)
            if path.is_symlink():
                yield str(path.relative_to(directory))


def _walk(directory: Path, prefix: str, depth: int) -> Iterator[ShelfFile]:
    if depth > MAX_DEPTH:
        raise ShelfError(f"{directory}: more than {MAX_DEPTH} directories deep")
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(Path(entry.path), f"{prefix}{entry.name}/", depth + 1)
        elif entry.is_file(follow_symlinks=False):
            known = entry.stat(follow_symlinks=False)
            yield ShelfFile(
                name=prefix + entry.name,
                path=Path(entry.path),
                size_bytes=known.st_size,
                mtime_s=int(known.st_mtime),
            )


def open_file(path: Path) -> int:
    """A descriptor of a regular file, never of what a link leads to. Raises `OSError`."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} is not a regular file")
    return descriptor


async def chunks_of(path: Path, start: int, end: int) -> AsyncIterator[bytes]:
    """The bytes `[start, end)` of a file; other connections are served between two pieces.

    Short when the file is.
    """
    descriptor = open_file(path)
    try:
        while start < end:
            chunk = os.pread(descriptor, min(CHUNK_BYTES, end - start), start)
            if not chunk:
                return
            yield chunk
            start += len(chunk)
            await checkpoint()
    finally:
        os.close(descriptor)


async def pieces_of(file: ShelfFile, start: int, end: int) -> AsyncIterator[bytes]:
    """As `chunks_of`, also of a file in memory."""
    if file.content is None:
        async for chunk in chunks_of(file.path, start, end):
            yield chunk
        return
    for at in range(start, end, CHUNK_BYTES):
        yield file.content[at : min(at + CHUNK_BYTES, end)]
        await checkpoint()


class Digests:
    """Digests of files, each worked out once, when it is first asked for.

    `algorithms` are names of hashlib's.
    """

    def __init__(self, *algorithms: str) -> None:
        self._algorithms = algorithms
        self._known: dict[str, Mapping[str, str]] = {}

    async def of(self, file: ShelfFile) -> Mapping[str, str]:
        """Algorithm → lower-case hexadecimal digest. Raises `OSError`."""
        known = self._known.get(file.name)
        if known is None:
            hashes = {name: hashlib.new(name, usedforsecurity=False) for name in self._algorithms}
            async for chunk in pieces_of(file, 0, file.size_bytes):
                for running in hashes.values():
                    running.update(chunk)
            known = self._known[file.name] = {
                name: running.hexdigest() for name, running in hashes.items()
            }
        return known


class OneRead:
    """Reads a directory once, at the first question; what it holds then is what the range sees.

    `made`: files in memory, which are served instead of a directory's.
    """

    def __init__(self, directory: Path, made: Iterable[ShelfFile] = ()) -> None:
        self._directory = directory
        self._files: Mapping[str, ShelfFile] | None = {file.name: file for file in made} or None

    @property
    def files(self) -> Mapping[str, ShelfFile]:
        """Name → file. Raises `ShelfError`."""
        if self._files is None:
            self._files = {file.name: file for file in list_files(self._directory)}
        return self._files


def check_directory(directory: Path | None, what: str) -> Faults:
    """What is wrong with a stand-in's directory before any file of it is looked at: missing, not a
    directory, nothing in it, a link in it.
    """
    if directory is None:
        return (Fault(message=f"no directory of {what} is named: add `directory: PATH`"),)
    if not directory.is_dir():
        return (Fault(file=str(directory), message="no such directory"),)
    try:
        files = list_files(directory)
    except ShelfError as error:
        return (Fault(message=str(error)),)
    except OSError as error:
        return (Fault(file=str(directory), message=error.strerror or str(error)),)
    links = [
        Fault(
            file=str(directory / name),
            message="a symbolic link, which is not served; put the file itself there",
        )
        for name in links_in(directory)
    ]
    if files or links:
        return tuple(links)
    return (Fault(file=str(directory), message=f"empty; put {what} into it"),)
