"""Files of a directory over HTTP: GET and HEAD, conditional requests (RFC 9110, 13) and one range
(14).

The directory is listed once, when the range is made; a request is looked up in that list. So no
path that a guest writes ever reaches the file system, and links, devices and what was put there
later are not served.
"""

from __future__ import annotations

import mimetypes
import os
import stat
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from belljar.errors import PolicyError
from belljar.network.stand_ins.conditions import FIELDS, Stored, share_of
from belljar.network.stand_ins.web import Answer, Pairs, Request, plain_error

MAX_FILES: Final = 20_000
_CHUNK_BYTES: Final = 64 << 10
_TEXT: Final = ("text/", "application/javascript", "application/json", "image/svg+xml")


@dataclass(frozen=True, slots=True)
class Entry:
    """A regular file, as it was when it was listed."""

    path: Path
    size: int
    modified_s: int

    @property
    def etag(self) -> str:
        """A strong validator, without its quotes: the file doesn't change while a range lives."""
        return f"{self.modified_s:x}-{self.size:x}"

    @property
    def modified(self) -> str:
        """As `Last-Modified` has it."""
        return datetime.fromtimestamp(self.modified_s, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")


def list_files(directory: Path) -> dict[str, Entry]:
    """Regular files below a directory by path, `/` between.

    Raises `PolicyError` above `MAX_FILES`.
    """
    found: dict[str, Entry] = {}
    for folder, _, names in os.walk(directory, followlinks=False):
        for name in names:
            path = Path(folder) / name
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                found[path.relative_to(directory).as_posix()] = Entry(
                    path, status.st_size, int(status.st_mtime)
                )
            if len(found) > MAX_FILES:
                raise PolicyError(
                    f"more than {MAX_FILES} files", where=str(directory), hint="serve fewer files"
                )
    return found


def media_of(name: str) -> str:
    """The content type by the name's ending."""
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return f"{kind}; charset=utf-8" if kind.startswith(_TEXT) else kind


def find(files: Mapping[str, Entry], path: str) -> Entry | str | None:
    """The file for a decoded path below the directory; for a directory its `index.html`, or where
    to go on to (a path with `/` at its end).
    """
    if path == "" or path.endswith("/"):
        return files.get(f"{path}index.html")
    if path in files:
        return files[path]
    return f"{path}/" if f"{path}/index.html" in files else None


def serve(
    entry: Entry, request: Request, *, status: int = 200, media: str = "", headers: Pairs = ()
) -> Answer:
    """The answer for a file: 200, 206, 304, 412 or 416.

    Ranges and conditions count for status 200 alone.
    """
    kind = ("content-type", media or media_of(entry.path.name))
    if status != 200:
        return _whole(entry, status, (kind, *headers))
    common = (
        *headers,
        ("last-modified", entry.modified),
        ("etag", f'"{entry.etag}"'),
        ("accept-ranges", "bytes"),
    )
    asked = {name: request.header(name) for name in FIELDS if request.has_header(name)}
    stored = Stored(etag=entry.etag, modified_s=entry.modified_s, size_bytes=entry.size)
    share = share_of(request.method, asked, stored)
    if share.status == 304:
        return Answer(status=304, headers=common)
    if share.status not in (200, 206):
        return plain_error(
            share.status,
            (("content-range", f"bytes */{entry.size}"),) if share.status == 416 else (),
        )
    if share.status == 200:
        return _whole(entry, 200, (kind, *common))
    start, end = share.start, share.end
    place = ("content-range", f"bytes {start}-{end - 1}/{entry.size}")
    return Answer(
        status=206,
        headers=(kind, place, *common),
        stream=lambda: _read(entry, start, end),
        length=end - start,
    )


def _whole(entry: Entry, status: int, headers: Pairs) -> Answer:
    return Answer(
        status=status,
        headers=headers,
        stream=lambda: _read(entry, 0, entry.size),
        length=entry.size,
    )


async def _read(entry: Entry, start: int, end: int) -> AsyncIterator[bytes]:
    # Local, read-only, at most a chunk at a time: as cheap as a thread would be.
    with os.fdopen(os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as file:
        file.seek(start)
        left = end - start
        while left > 0 and (part := file.read(min(left, _CHUNK_BYTES))):
            left -= len(part)
            yield part
