"""A stand-in's files, and an author's faults."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncGenerator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final, NamedTuple, TypeAlias

from anyio.lowlevel import checkpoint

from belljar.dataclass import dataclass
from belljar.descriptors import open_plain_file
from belljar.network.stand_ins import web
from belljar.policy.files import list_tree, read_regular
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.policy.yaml_tree import field_name
from belljar.units import format_size, printable, quoted

MAX_FILES: Final = 50_000
CHUNK_BYTES: Final = 256 << 10  # A millisecond of reading, while others wait.
_TEXT: Final = ("text/", "application/javascript", "application/json", "image/svg+xml")


class StoredFile(NamedTuple):
    name: str
    path: Path
    size_bytes: int

    def open(self) -> BinaryIO:
        return open_plain_file(self.path)


def list_files(directory: Path) -> tuple[StoredFile, ...]:
    """Return regular files, but for hidden ones. Raises `ValueError`, `OSError`."""
    tree = list_tree(directory, ".", max_entries=MAX_FILES)
    return tuple(
        StoredFile(name=entry.path, path=directory / entry.path, size_bytes=entry.size_bytes)
        for entry in tree.entries
        if entry.kind == "file" and not any(part[:1] == "." for part in entry.path.split("/"))
    )


def stored_file(path: Path, name: str) -> StoredFile:
    return StoredFile(name=name, path=path, size_bytes=path.lstat().st_size)


async def pieces_of(file: StoredFile) -> AsyncGenerator[bytes]:
    left = file.size_bytes
    with file.open() as source:
        while chunk := source.read(min(CHUNK_BYTES, left)):
            yield chunk
            left -= len(chunk)
            await checkpoint()


def file_answer(
    file: StoredFile, *, status: int = 200, media: str = "", headers: web.Pairs = ()
) -> web.HttpAnswer:
    kind = mimetypes.guess_type(file.path.name)[0] or "application/octet-stream"
    kind = f"{kind}; charset=utf-8" if kind.startswith(_TEXT) else kind
    fields = (("content-type", media or kind), *headers)
    size, stream = file.size_bytes, lambda: pieces_of(file)
    return web.HttpAnswer(status=status, headers=fields, stream=stream, length=size)


@dataclass(frozen=True, slots=True)
class Fault:
    message: str
    path: FieldPath = ()
    file: str = ""

    def __str__(self) -> str:
        parts = (printable(self.file), field_name(self.path), self.message)
        return ": ".join(part for part in parts if part)


Faults: TypeAlias = tuple[Fault, ...]


def read_file(directory: Path | None, name: object, max_bytes: int | None) -> bytes:
    """Return a file's first bytes. Raises `ValueError`."""
    relative = PurePosixPath(name if isinstance(name, str) else "")
    if directory is None or relative.is_absolute() or ".." in relative.parts:
        raise ValueError(f"{quoted(name)} is not below the stand-in's directory")
    most = 0 if max_bytes is None else max_bytes
    try:
        data = read_regular(directory, str(relative), most + 1)
    except (ValueError, OSError) as exc:  # a link that leads out is one
        raise ValueError(f"can't be read: {getattr(exc, 'strerror', None) or exc}") from None
    if max_bytes is not None and len(data) > most:
        raise ValueError(f"larger than {format_size(most)}")
    return data
