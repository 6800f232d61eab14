"""The files of a stand-in's directory, answers with them, and faults of what an author wrote.

Listed once, opened without following a link, hashed in pieces. A guest's text never becomes a
path: it is looked up among the listed names. So links, devices and later files are not served.
"""

from __future__ import annotations

import mimetypes
import os
import stat
from collections.abc import AsyncGenerator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, NamedTuple, TypeAlias

from anyio.lowlevel import checkpoint

from belljar.dataclass import dataclass
from belljar.descriptors import open_plain_file
from belljar.errors import PolicyError
from belljar.network.stand_ins.web import Answer, Pairs
from belljar.policy.files import read_regular
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.policy.yaml_tree import field_name
from belljar.units import format_size, printable, quoted

MAX_FILES: Final = 50_000
MAX_DEPTH: Final = 16
# So long may one answer keep the others waiting: a millisecond of reading.
CHUNK_BYTES: Final = 256 << 10
_TEXT: Final = ("text/", "application/javascript", "application/json", "image/svg+xml")


class StoredFile(NamedTuple):
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
        return self.path.name


class FilesError(PolicyError):
    """The directory can't be served."""


def list_files(directory: Path) -> tuple[StoredFile, ...]:
    """Return regular files sorted by name, and no links. Raises `FilesError` beyond the bounds."""
    found = list[StoredFile]()
    for place, folders, names in os.walk(directory):  # which follows no link
        folders[:] = [name for name in folders if not name.startswith(".")]
        below = Path(place).relative_to(directory)
        if len(below.parts) > MAX_DEPTH:
            what = f"more than {MAX_DEPTH} directories deep"
            raise FilesError(what, where=str(directory))
        for name in names:
            if not name.startswith(".") and stat.S_ISREG((Path(place) / name).lstat().st_mode):
                found.append(stored_file(Path(place) / name, str(below / name)))
        if len(found) > MAX_FILES:
            what = f"more than {MAX_FILES} files"
            raise FilesError(what, where=str(directory), hint="serve fewer files")
    return tuple(sorted(found, key=lambda file: file.name))


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


def file_answer(
    file: StoredFile, *, status: int = 200, media: str = "", headers: Pairs = ()
) -> Answer:
    """Return the whole file: a server may pass over ranges and conditions (RFC 9110, 13 and 14)."""
    kind = mimetypes.guess_type(file.base)[0] or "application/octet-stream"
    kind = f"{kind}; charset=utf-8" if kind.startswith(_TEXT) else kind
    return Answer(
        status=status,
        headers=(("content-type", media or kind), *headers),
        stream=lambda: pieces_of(file),
        length=file.size_bytes,
    )


@dataclass(frozen=True, slots=True)
class Fault:
    """`path`: below the settings, or the root of `file`."""

    message: str
    path: FieldPath = ()
    file: str = ""

    def __str__(self) -> str:
        """Return `file: field: message`, without the parts that are empty."""
        parts = (printable(self.file), field_name(self.path), self.message)
        return ": ".join(part for part in parts if part)


Faults: TypeAlias = tuple[Fault, ...]


def read_file(directory: Path | None, name: object, max_bytes: int | None) -> bytes | Fault:
    """Return a file's bytes, or why it can't be read. Links that lead out are refused.

    `max_bytes` None: it may have any size, and its first byte is enough.
    """
    relative = PurePosixPath(name if isinstance(name, str) else "")
    if directory is None or relative.is_absolute() or ".." in relative.parts:
        return Fault(f"{quoted(name)} is not below the stand-in's directory")
    most = 0 if max_bytes is None else max_bytes
    try:
        data = read_regular(directory, str(relative), most + 1)
    except (ValueError, OSError) as exc:  # a link that leads out is one
        return Fault(f"can't be read: {getattr(exc, 'strerror', None) or exc}", file=str(relative))
    if max_bytes is not None and len(data) > most:
        return Fault(f"larger than {format_size(most)}", file=str(relative))
    return data
