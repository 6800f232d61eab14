"""A stand-in's files: a guest's text never becomes a path."""

from __future__ import annotations

import hashlib
import lzma
import mimetypes
import os
import re
import stat
import tarfile
import zlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Final, NamedTuple, TypeAlias

from anyio.lowlevel import checkpoint

from belljar.dataclass import dataclass
from belljar.descriptors import open_plain_file
from belljar.events import JsonValue
from belljar.network.stand_ins import web
from belljar.policy.files import read_regular
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.policy.yaml_tree import field_name
from belljar.units import format_size, printable, quoted

MAX_FILES: Final = 50_000
MAX_DEPTH: Final = 64  # `os.walk` calls itself for each.
# So long may one answer keep the others waiting: a millisecond of reading.
CHUNK_BYTES: Final = 256 << 10
_TEXT: Final = ("text/", "application/javascript", "application/json", "image/svg+xml")


class StoredFile(NamedTuple):
    name: str
    path: Path
    size_bytes: int

    def open(self) -> BinaryIO:
        return open_plain_file(self.path)


def list_files(directory: Path) -> tuple[StoredFile, ...]:
    """Return regular files by name. Raises `ValueError` beyond the bounds."""
    found, is_deep = list[StoredFile](), False
    for place, folders, names in os.walk(directory):  # which follows no link
        below = Path(place).relative_to(directory)
        is_deep |= len(below.parts) > MAX_DEPTH
        folders[:] = [name for name in folders if not (is_deep or name.startswith("."))]
        for name in names:
            if not name.startswith(".") and stat.S_ISREG((Path(place) / name).lstat().st_mode):
                found.append(stored_file(Path(place) / name, str(below / name)))
        if len(found) > MAX_FILES:
            raise ValueError(f"more than {MAX_FILES} files")
    if is_deep:
        raise ValueError(f"more than {MAX_DEPTH} directories deep")
    return tuple(sorted(found, key=lambda file: file.name))


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
) -> web.Answer:
    """Return it whole: ranges are optional (RFC 9110, 14)."""
    kind = mimetypes.guess_type(file.path.name)[0] or "application/octet-stream"
    kind = f"{kind}; charset=utf-8" if kind.startswith(_TEXT) else kind
    return web.Answer(
        status=status,
        headers=(("content-type", media or kind), *headers),
        stream=lambda: pieces_of(file),
        length=file.size_bytes,
    )


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
    """Return a file's bytes; with `max_bytes` None one is enough. Raises `ValueError`."""
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


# How broken archives end; `TypeError`: `tarfile`'s where a gzip header is cut.
_BROKEN: Final = (*(tarfile.TarError, zlib.error, lzma.LZMAError, EOFError), TypeError, ValueError)
# An archive of millions of empty files would be read for minutes before it says what it is.
_MAX_MEMBERS: Final = 50_000
MAX_MEMBER_BYTES: Final = 1 << 20


class Registry(web.Service):
    name = ""
    algorithms: tuple[str, ...] = ()  # hashlib's, of a file's digests
    max_body_bytes, writes_wait = web.MAX_BODY_BYTES, True

    def __init__(self, context: web.StandInContext) -> None:
        super().__init__(context)
        self._digests: dict[str, Mapping[str, str]] = {}

    @cached_property
    def files(self) -> Sequence[StoredFile]:
        return list_files(self.context.files)

    async def digests(self, file: StoredFile) -> Mapping[str, str]:
        """Return hexadecimal digests by algorithm. Raises `OSError`."""
        if file.name not in self._digests:
            hashes = {name: hashlib.new(name, usedforsecurity=False) for name in self.algorithms}
            async for chunk in pieces_of(file):
                for running in hashes.values():
                    running.update(chunk)
            self._digests[file.name] = {name: each.hexdigest() for name, each in hashes.items()}
        return self._digests[file.name]

    async def record(self, request: web.Request, what: str, content: bytes, **words: str) -> None:
        is_upload = what == "publish"
        body = web.kept_body("file-0" if is_upload else "request", content)
        data: dict[str, JsonValue] = {"registry": self.name, "cell": request.cell, "what": what}
        data |= web.credentials(request.header("authorization"))
        data |= {name: web.word(text) for name, text in words.items()}
        if is_upload:
            data |= {"size_bytes": body.total_bytes, "sha256": body.sha256}
        await self.context.record(data, *([body] if content else ()))


def tar_member(source: IO[bytes], pattern: str) -> bytes:
    """Return the first file of matching name. Raises `ValueError`."""
    try:
        with tarfile.open(fileobj=source, mode="r|*") as stream:
            for entry in islice(stream, _MAX_MEMBERS):
                if entry.isfile() and re.fullmatch(pattern, entry.name):
                    opened = stream.extractfile(entry)
                    content = opened.read(MAX_MEMBER_BYTES + 1) if opened else b""
                    if len(content) <= MAX_MEMBER_BYTES:
                        return content
    except (OSError, *_BROKEN) as error:
        raise ValueError(str(error)) from None
    raise ValueError("no such file of at most a MiB")


def check(_settings: Mapping[str, JsonValue], directory: Path) -> Faults:
    try:
        what = "" if list_files(directory) else "empty, or no directory"
    except (ValueError, OSError) as error:
        what = str(error)
    return (Fault(what, file=str(directory)),) if what else ()
