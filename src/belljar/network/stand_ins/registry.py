"""What the package registries share.

Files of a directory, digests, faults and records.
"""

from __future__ import annotations

import hashlib
import lzma
import re
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Final

from belljar.events import Body, JsonValue
from belljar.network.gateway.context import MAX_BODY_BYTES, StandInContext
from belljar.network.stand_ins.files import (
    Fault,
    Faults,
    FilesError,
    StoredFile,
    list_files,
    pieces_of,
)
from belljar.network.stand_ins.web import Answer, App, Request, credentials, http_app, writes

# How broken archives end; `TypeError`: `tarfile`'s where a gzip header is cut.
_BROKEN: Final = (*(tarfile.TarError, zlib.error, lzma.LZMAError, EOFError), TypeError, ValueError)
# An archive of millions of empty files would be read for minutes before it says what it is.
_MAX_MEMBERS: Final = 50_000
MAX_MEMBER_BYTES: Final = 1 << 20


class PackageError(ValueError):
    """Why a file is no package of its kind."""


class Registry:
    """A registry: files with their digests, and a record of what clients change."""

    name = ""
    algorithms: tuple[str, ...] = ()  # hashlib's, of a file's digests

    def __init__(self, context: StandInContext) -> None:
        self.context = context
        self._digests: dict[str, Mapping[str, str]] = {}

    @classmethod
    def app(cls, context: StandInContext) -> App:
        """Return the application, of the packages in `context.files`."""
        return http_app(cls(context).handle, max_body_bytes=MAX_BODY_BYTES, waits=writes)

    async def handle(self, request: Request) -> Answer:
        """Answer a request; what it changes is recorded first."""
        raise NotImplementedError

    @cached_property
    def files(self) -> Sequence[StoredFile]:
        """Read the directory at the first request. Raises `FilesError`."""
        return list_files(self.context.files)

    async def digests(self, file: StoredFile) -> Mapping[str, str]:
        """Algorithm → lower-case hexadecimal digest. Raises `OSError`."""
        if file.name not in self._digests:
            hashes = {name: hashlib.new(name, usedforsecurity=False) for name in self.algorithms}
            async for chunk in pieces_of(file):
                for running in hashes.values():
                    running.update(chunk)
            self._digests[file.name] = {name: each.hexdigest() for name, each in hashes.items()}
        return self._digests[file.name]

    async def publish(self, request: Request, data: dict[str, JsonValue], content: Body) -> None:
        """Put an upload on record, and the file in it."""
        size: dict[str, JsonValue] = {"size_bytes": content.total_bytes, "sha256": content.sha256}
        await self.record(request, "publish", {**data, **size}, [content])

    async def record(
        self, request: Request, what: str, data: Mapping[str, JsonValue], bodies: Sequence[Body]
    ) -> None:
        """Put a change on record, before the client is answered."""
        common: dict[str, JsonValue] = {"registry": self.name, "cell": request.cell, "what": what}
        known = credentials(request.header("authorization"))
        await self.context.record("network.attempt", {**common, **known, **data}, bodies)


def tar_member(source: IO[bytes], pattern: str) -> bytes:
    """Return the first file of an archive whose name matches. Raises `PackageError`."""
    try:
        with tarfile.open(fileobj=source, mode="r|*") as stream:
            for entry in islice(stream, _MAX_MEMBERS):
                if entry.isfile() and re.fullmatch(pattern, entry.name):
                    opened = stream.extractfile(entry)
                    content = opened.read(MAX_MEMBER_BYTES + 1) if opened else b""
                    if len(content) > MAX_MEMBER_BYTES:
                        raise PackageError(f"a file of it is larger than {MAX_MEMBER_BYTES} bytes")
                    return content
    except PackageError:
        raise
    except (OSError, *_BROKEN) as error:
        raise PackageError(f"it can't be unpacked: {error}") from None
    raise PackageError("it lacks the file that describes it")


def check(_settings: Mapping[str, JsonValue], directory: Path) -> Faults:
    """Return what is wrong with a directory of packages. What is no package is left out of it."""
    try:
        is_empty = not list_files(directory)
    except (FilesError, OSError) as error:
        return (Fault(getattr(error, "what", str(error)), file=str(directory)),)
    return (Fault("empty, or no directory", file=str(directory)),) if is_empty else ()
