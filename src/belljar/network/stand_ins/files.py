"""The files of a stand-in's directory, and answers with them.

Listed once, opened without following a link, hashed in pieces. A guest's text never becomes a
path: it is looked up among the listed names. So links, devices and later files are not served.
"""

from __future__ import annotations

import mimetypes
import os
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Final

from anyio.lowlevel import checkpoint

from belljar.descriptors import open_plain_file
from belljar.errors import PolicyError
from belljar.network.stand_ins.web import Answer, Pairs

MAX_FILES: Final = 50_000
MAX_DEPTH: Final = 16
# So long may one answer keep the others waiting: a millisecond of reading.
CHUNK_BYTES: Final = 256 << 10
_TEXT: Final = ("text/", "application/javascript", "application/json", "image/svg+xml")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """`name`: below the directory."""

    name: str
    path: Path
    size_bytes: int
    mtime_s: int

    def open(self) -> BinaryIO:
        """Open it to be read. Raises `OSError`."""
        return open_plain_file(self.path)

    @property
    def base(self) -> str:
        """Return the last part of the name."""
        return self.name.rpartition("/")[2]


class FilesError(PolicyError):
    """The directory can't be served."""


def list_files(
    directory: Path, *, hidden: bool = False, max_files: int = MAX_FILES, max_depth: int = MAX_DEPTH
) -> tuple[StoredFile, ...]:
    """Return regular files sorted by name, and no links. Raises `FilesError` beyond the bounds."""
    found = list(islice(_walk(directory, "", max_depth, hidden=hidden), max_files + 1))
    if len(found) > max_files:
        what = f"more than {max_files} files"
        raise FilesError(what, where=str(directory), hint="serve fewer files")
    return tuple(sorted(found, key=lambda file: file.name))


def _walk(directory: Path, prefix: str, max_depth: int, *, hidden: bool) -> Iterator[StoredFile]:
    if prefix.count("/") > max_depth:
        raise FilesError(f"more than {max_depth} directories deep", where=str(directory))
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        if entry.name.startswith(".") and not hidden:
            continue
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(path, f"{prefix}{entry.name}/", max_depth, hidden=hidden)
        elif entry.is_file(follow_symlinks=False):
            yield stored_file(path, prefix + entry.name)


def stored_file(path: Path, name: str) -> StoredFile:
    """Return a file by its path. Raises `OSError`."""
    known = path.lstat()
    return StoredFile(name=name, path=path, size_bytes=known.st_size, mtime_s=int(known.st_mtime))


async def pieces_of(file: StoredFile) -> AsyncGenerator[bytes]:
    """Give a file's bytes, as many as were listed; others are served in between."""
    left = file.size_bytes
    with file.open() as source:
        while chunk := source.read(min(CHUNK_BYTES, left)):
            yield chunk
            left -= len(chunk)
            await checkpoint()


def media_of(name: str) -> str:
    """Return the content type by the name's ending."""
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith(_TEXT) else kind


def file_answer(
    file: StoredFile, *, status: int = 200, media: str = "", headers: Pairs = ()
) -> Answer:
    """Return the whole file: a server may pass over ranges and conditions (RFC 9110, 13 and 14)."""
    return Answer(
        status=status,
        headers=(("content-type", media or media_of(file.base)), *headers),
        stream=lambda: pieces_of(file),
        length=file.size_bytes,
    )
