"""A Debian package repository, made of a directory of `.deb` files.

Whatever suite and component apt asks for, the packages are in its `main`. Uploads by PUT or POST
are put on record and never served. Not: signatures (a source says `trusted=yes`), source packages,
Contents and Translation indexes, diffs, flat repositories, indexes by hash.

Source: DebianRepository/Format in the Debian wiki.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from asyncio import Lock
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Final

from belljar.capture import body_of
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_BODY_BYTES, MAX_KEPT_BODY_BYTES, App, StandInContext
from belljar.network.stand_ins.faults import Fault, Faults
from belljar.network.stand_ins.files import StoredFile, file_answer, open_file
from belljar.network.stand_ins.registry import (
    PackageError,
    Registry,
    check_packages,
    tar_member,
)
from belljar.network.stand_ins.web import (
    Answer,
    Request,
    http_app,
    text_answer,
    word,
    writes,
)

MAX_CONTROL_BYTES: Final = 8 << 20  # Of a packed control archive.
# ar(5): name, times and owners, size, end
_HEADER: Final = re.compile(rb"(.{16}).{32}([0-9 ]{10})`\n", re.DOTALL)
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f]|^\s*$", re.MULTILINE)
_IDENTITY: Final = {
    "Package": re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII),
    "Version": re.compile(r"[0-9][A-Za-z0-9.+:~-]*", re.ASCII),
    "Architecture": re.compile(r"[a-z0-9][a-z0-9-]*", re.ASCII),
}
_DEBIAN: Final = ("main", "contrib", "non-free", "non-free-firmware")
# A source may name any: apt complains of one that the Release file lacks, so all are there, empty.
_COMPONENTS: Final = (*_DEBIAN, "restricted", "universe", "multiverse")
_OURS: Final = {"filename", "size", "md5sum", "sha1", "sha256", "sha512", "status"}
_SUITE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._~-]{0,62}", re.ASCII)
_DAY_S: Final = 86_400
_PACKAGES: Final = "Debian packages (.deb)"
_BELOW: Final = re.compile(r"(?:.*/)?((?:dists|pool)/.+)", re.DOTALL)
_DEB: Final = "application/vnd.debian.binary-package"
_TEXT: Final = (("content-type", "text/plain; charset=utf-8"),)


def read_control(path: Path) -> Message:
    """Return the control data of a package file. Raises `PackageError`, `OSError`."""
    with os.fdopen(open_file(path), "rb") as source:
        if source.read(8) != b"!<arch>\n":
            raise PackageError("not a Debian package (.deb), which is an ar archive")
        # A package has three members (deb(5)); a later version's may stand among them.
        for _ in range(16):
            match = _HEADER.fullmatch(source.read(60))
            if match is None or not match[2].strip():
                break
            name, length = match[1].strip().rstrip(b"/"), int(match[2])
            if name == b"control.tar" or name.startswith(b"control.tar."):
                if length > MAX_CONTROL_BYTES:
                    raise PackageError(f"its control data is over {MAX_CONTROL_BYTES} bytes")
                if name.endswith(b".zst"):
                    raise PackageError("it is packed by zstd; repack it by dpkg-deb -Zxz")
                packed = io.BytesIO(source.read(length))
                return parse_control(tar_member(packed, r"(?:\./)?control"))
            source.seek(length + length % 2, os.SEEK_CUR)  # Members begin at even offsets
    raise PackageError("it has no control archive")


def parse_control(content: bytes) -> Message:
    """Return one stanza with valid fields. Raises `PackageError`."""
    try:
        text = content.decode().rstrip()
    except UnicodeDecodeError:
        raise PackageError("its control file is not UTF-8") from None
    message = HeaderParser().parsestr(text)
    names = {name.lower() for name in message}
    # An empty line would begin a second package in the index.
    if message.defects or len(names) < len(message.keys()) or _CONTROL.search(text):
        raise PackageError("its control file is not one stanza of fields")
    for name, pattern in _IDENTITY.items():
        if pattern.fullmatch(message.get(name, "")) is None:
            raise PackageError(f"its control file has no valid {name}")
    return message


def make(context: StandInContext) -> App:
    """Return the ASGI app, of the `.deb` files in `context.files`."""
    return http_app(_Debian(context).handle, max_body_bytes=MAX_BODY_BYTES, waits=writes)


def check(_settings: Mapping[str, JsonValue], directory: Path) -> Faults:
    """Return what is wrong with a directory of packages."""
    if (directory / "dists").is_dir():
        what = "a tree with `dists/` is not served: write the directory of its `.deb` files"
        return (Fault(what, file=str(directory / "dists")),)
    return check_packages(directory, _PACKAGES, lambda file: read_control(file.path))


class _Debian(Registry):
    name, algorithms = "debian", ("md5", "sha256")

    def __init__(self, context: StandInContext) -> None:
        super().__init__(context)
        # The Release file is dated a day before, so a guest's clock may be somewhat behind.
        self._made_s = int(context.clock()) - _DAY_S
        self._reading = Lock()
        self._pool: dict[str, StoredFile] = {}
        self._indexes: dict[str, bytes] = {}  # By the name below a suite.
        self._architectures: list[str] = []

    async def handle(self, request: Request) -> Answer:
        if request.method in {"PUT", "POST"}:
            await self._record_upload(request)
            return text_answer("", 201)
        if writes(request):
            return text_answer("Method Not Allowed", 405, (("allow", "GET, HEAD, PUT"),))
        match = _BELOW.fullmatch(request.path)
        below = match[1] if match else ""
        async with self._reading:
            if not self._indexes:
                await self._read_packages()
        content = self._page(below)
        if content is not None:
            return Answer(headers=_TEXT, body=content)
        file = self._pool.get(below)
        if file is None:
            return text_answer("404 Not Found", 404)
        return file_answer(file, media=_DEB)

    def _page(self, below: str) -> bytes | None:
        """Return a file below `dists/`."""
        suite, _, name = below.partition("/")[2].partition("/")
        if name == "Release" and _SUITE.fullmatch(suite):
            return self._release(suite).encode()
        return self._indexes.get(name)

    async def _read_packages(self) -> None:
        """Make the indexes of the directory's `.deb` files; others are left out."""
        stanzas = []
        for file in self.by_name.values():
            with suppress(PackageError, OSError):
                stanzas.append((read_control(file.path), file))
        stanzas.sort(key=lambda pair: (pair[0]["Package"], pair[0]["Version"]))
        texts = [(one["Architecture"], await self._stanza(file, one)) for one, file in stanzas]
        self._architectures = sorted({"amd64", "arm64"} | {arch for arch, _ in texts} - {"all"})
        for arch in self._architectures:
            own = "\n".join(text for each, text in texts if each in {arch, "all"})
            for component in _COMPONENTS:
                content = own.encode() if component == "main" else b""
                self._indexes[f"{component}/binary-{arch}/Packages"] = content

    async def _stanza(self, file: StoredFile, control: Message) -> str:
        """Return a package's part of an index, with our place and digests."""
        digests = await self.digests(file)
        package, version = control["Package"], control["Version"].rpartition(":")[2]
        start = package[:4] if package.startswith("lib") else package[0]
        base = f"{package}_{version}_{control['Architecture']}.deb"
        place = f"pool/main/{start}/{package}/{base}"
        self._pool.setdefault(place, file)
        kept = [f"{name}: {text}" for name, text in control.items() if name.lower() not in _OURS]
        ours = [f"Filename: {place}", f"Size: {file.size_bytes}"]
        ours += [f"MD5sum: {digests['md5']}", f"SHA256: {digests['sha256']}"]
        return "\n".join((*kept, *ours)) + "\n"

    def _release(self, suite: str) -> str:
        date = datetime.fromtimestamp(self._made_s, UTC).strftime("%a, %d %b %Y %H:%M:%S UTC")
        lines = ["Origin: Debian", "Label: Debian", f"Suite: {suite}"]
        lines += [f"Codename: {suite}", f"Date: {date}"]
        lines += [f"Architectures: {' '.join(self._architectures)}"]
        lines += [f"Components: {' '.join(_COMPONENTS)}", "SHA256:"]
        for name, content in sorted(self._indexes.items()):
            lines.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}")
        return "\n".join(lines) + "\n"

    async def _record_upload(self, request: Request) -> None:
        content = body_of("file-0", request.body, MAX_KEPT_BODY_BYTES)
        data: dict[str, JsonValue] = {
            "method": request.method,
            "path": word(request.path),
            "name": word(request.path.rpartition("/")[2]),
            "size_bytes": content.total_bytes,
            "sha256": content.sha256,
            "refused": "",
        }
        await self.record(request, "publish", data, [content])
