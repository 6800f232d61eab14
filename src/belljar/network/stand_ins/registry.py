"""What the package registries share.

Files of a directory or made in memory, digests, faults and records.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from time import gmtime
from typing import IO, Any, Final, TypeAlias

from anyio import Lock

from belljar.events import Body, JsonValue
from belljar.network.gateway.context import StandInContext
from belljar.network.stand_ins.faults import Fault, Faults
from belljar.network.stand_ins.files import (
    FilesError,
    StoredFile,
    links_in,
    list_files,
    pieces_of,
)
from belljar.network.stand_ins.web import Request, credentials

# How broken archives end; `TypeError`: `tarfile`'s where a gzip header is cut.
_BROKEN: Final = (*(tarfile.TarError, zlib.error, lzma.LZMAError, EOFError), TypeError, ValueError)
_MAX_MEMBERS: Final = 50_000
MAX_MEMBER_BYTES: Final = 1 << 20


class PackageError(ValueError):
    """Why a file is no package of its kind."""


class Registry:
    """What every registry is: files with their digests, and a record of what clients change.

    `made`: files in memory instead of those of the context's directory.
    """

    name = ""
    algorithms: tuple[str, ...] = ()  # hashlib's, of a file's digests

    def __init__(self, context: StandInContext, made: Iterable[StoredFile] = ()) -> None:
        self.context, self._made = context, tuple(made)
        self.token = str(context.settings.get("token", ""))
        self._digests: dict[str, Mapping[str, str]] = {}
        # One change at a time: a second client waits instead of doubling the memory.
        self.changing = Lock()

    @cached_property
    def by_name(self) -> Mapping[str, StoredFile]:
        """Name → file, read at the first request. Raises `FilesError`."""
        return {file.name: file for file in self._made or list_files(self.context.files)}

    async def digests(self, file: StoredFile) -> Mapping[str, str]:
        """Algorithm → lower-case hexadecimal digest. Raises `OSError`."""
        if file.name not in self._digests:
            hashes = {name: hashlib.new(name, usedforsecurity=False) for name in self.algorithms}
            async for chunk in pieces_of(file):
                for running in hashes.values():
                    running.update(chunk)
            self._digests[file.name] = {name: each.hexdigest() for name, each in hashes.items()}
        return self._digests[file.name]

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


def check_packages(
    directory: Path, what: str, identify: Callable[[StoredFile], Hashable], unique: str
) -> Faults:
    """Return what is wrong with a directory of packages.

    `identify` gives what must be `unique`; it raises `ValueError` or `OSError` for a wrong file.
    """
    if not directory.is_dir():
        return (Fault("no such directory", file=str(directory)),)
    try:
        files = list_files(directory)
    except (FilesError, OSError) as error:
        return (Fault(getattr(error, "what", str(error)), file=str(directory)),)
    message = "a symbolic link, which is not served; put the file itself there"
    found = [Fault(message, file=str(directory / name)) for name in links_in(directory)]
    if not found and not files:
        return (Fault(f"empty; put {what} into it", file=str(directory)),)
    seen = dict[Hashable, str]()
    for file in files:
        try:
            key = identify(file)
        except (ValueError, OSError) as error:
            found.append(Fault(str(error), file=str(file.path)))
            continue
        if key in seen:
            found.append(Fault(f"the same {unique} as {seen[key]}", file=str(file.path)))
        seen.setdefault(key, file.name)
    return tuple(found)


# File name and content of a package; the number is its time
Pack: TypeAlias = Callable[[Mapping[str, Any], int], tuple[str, bytes]]


def made_files(context: StandInContext, pack: Pack) -> Iterator[StoredFile]:
    """Give the files of the setting `packages`."""
    packages: Any = context.settings.get("packages") or ()
    for package in packages:
        mtime_s = int(context.clock() - package["age_s"])
        name, content = pack(package, mtime_s)
        size = len(content)
        yield StoredFile(name=name, path=Path(), size_bytes=size, mtime_s=mtime_s, content=content)


def npm_package(package: Mapping[str, Any], mtime_s: int) -> tuple[str, bytes]:
    """Return name and content of a package as `npm pack` makes it."""
    about = {"name": package["name"], "version": package["version"], "main": "index.js"}
    manifest = json.dumps({**about, "license": "UNLICENSED"}, indent=2) + "\n"
    files = {"package.json": manifest, **package["files"]}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"package/{path}")
            entry.size, entry.mtime, entry.mode = len(text.encode()), mtime_s, 0o644
            archive.addfile(entry, io.BytesIO(text.encode()))
    base = package["name"].removeprefix("@").replace("/", "-")
    return f"{base}-{package['version']}.tgz", gzip.compress(out.getvalue(), mtime=mtime_s)


def wheel(package: Mapping[str, Any], mtime_s: int) -> tuple[str, bytes]:
    """Return name and content of a pure Python wheel (PEP 427)."""
    name, version = package["name"], package["version"]
    base = f"{name.replace('-', '_')}-{version}"
    about = f"{base}.dist-info"
    files = {
        **package["files"],
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        "Requires-Python: >=3.9\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: hatchling 1.21.1\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode()
        lines.append(f"{path},sha256={digest.rstrip('=')},{len(text.encode())}")
    record = f"{about}/RECORD"
    files[record] = "\n".join((*lines, f"{record},,")) + "\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in files.items():
            entry = zipfile.ZipInfo(path, gmtime(mtime_s)[:6])
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o100644 << 16
            archive.writestr(entry, text)
    return f"{base}-py3-none-any.whl", out.getvalue()
