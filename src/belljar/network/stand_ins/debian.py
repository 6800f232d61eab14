"""A Debian repository of a directory's `.deb` files, for any suite."""

from __future__ import annotations

import hashlib
import io
import re
from asyncio import Lock
from contextlib import suppress
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from typing import Final

from belljar.network.stand_ins import files, web

MAX_CONTROL_BYTES: Final = 8 << 20  # Of a packed control archive.
# ar(5): name, times and owners, size, end
_HEADER: Final = re.compile(rb"(.{16}).{32}([0-9 ]{10})`\n", re.DOTALL)
# A source may name any: apt complains of one that the Release file lacks, so all are there, empty.
_COMPONENTS: Final = (
    *("main", "contrib", "non-free", "non-free-firmware", "restricted", "universe", "multiverse"),
)
_OURS: Final = {"filename", "size", "md5sum", "sha1", "sha256", "sha512", "status"}
_SUITE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._~-]{0,62}", re.ASCII)
_DAY_S: Final = 86_400
_BELOW: Final = re.compile(r"(?:.*/)?((?:dists|pool)/.+)", re.DOTALL)
_TEXT: Final = (("content-type", "text/plain; charset=utf-8"),)


def read_control(file: files.StoredFile) -> Message:
    """Return a package file's control data. Raises `ValueError`, `OSError`."""
    with file.open() as source:
        if source.read(8) != b"!<arch>\n":
            raise ValueError("no ar archive")
        # A package has three members (deb(5)); a later version's may stand among them.
        for _ in range(16):
            match = _HEADER.fullmatch(source.read(60))
            if match is None or not match[2].strip():
                break
            name, length = match[1].strip().rstrip(b"/"), int(match[2])
            packed = io.BytesIO(source.read(min(length + length % 2, MAX_CONTROL_BYTES)))
            if name.startswith(b"control.tar"):
                member = files.tar_member(packed, r"(?:\./)?control")
                control = HeaderParser().parsestr(member.decode("utf-8", "replace").strip())
                if all(control[key] for key in ("Package", "Version", "Architecture")):
                    return control
    raise ValueError("no control file")


class _Debian(files.Registry):
    name, algorithms = "debian", ("md5", "sha256")

    def __init__(self, context: web.StandInContext) -> None:
        super().__init__(context)
        # The Release file is dated a day before, so a guest's clock may be somewhat behind.
        self._made_s = int(context.clock()) - _DAY_S
        self._reading = Lock()
        self._pool: dict[str, files.StoredFile] = {}
        self._indexes: dict[str, bytes] = {}  # By the name below a suite.
        self._architectures: list[str] = []

    async def handle(self, request: web.Request) -> web.Answer:
        if request.method in {"PUT", "POST"}:
            about = {"path": request.path, "name": request.path.rpartition("/")[2], "refused": ""}
            await self.record(request, "publish", request.body, **about)
            return web.text_answer("", 201)
        if web.writes(request):
            return web.text_answer("Method Not Allowed", 405, (("allow", "GET, HEAD, PUT"),))
        match = _BELOW.fullmatch(request.path)
        below = match[1] if match else ""
        async with self._reading:
            if not self._indexes:
                await self._read_packages()
        suite, _, name = below.partition("/")[2].partition("/")
        if name == "Release" and _SUITE.fullmatch(suite):
            return web.Answer(headers=_TEXT, body=self._release(suite).encode())
        if name in self._indexes:
            return web.Answer(headers=_TEXT, body=self._indexes[name])
        if (file := self._pool.get(below)) is None:
            return web.text_answer("404 Not Found", 404)
        return files.file_answer(file, media="application/vnd.debian.binary-package")

    async def _read_packages(self) -> None:
        stanzas, texts = [], list[tuple[str, str]]()
        for file in self.files:
            with suppress(ValueError, OSError):
                stanzas.append((read_control(file), file))
        stanzas.sort(key=lambda pair: (pair[0]["Package"], pair[0]["Version"]))
        for control, file in stanzas:
            # A package's part of an index, with our place and digests.
            digests, package = await self.digests(file), control["Package"]
            start = package[:4] if package.startswith("lib") else package[0]
            version = control["Version"].rpartition(":")[2]
            base = f"{package}_{version}_{control['Architecture']}.deb"
            place = f"pool/main/{start}/{package}/{base}"
            self._pool.setdefault(place, file)
            lines = [
                f"{name}: {text}" for name, text in control.items() if name.lower() not in _OURS
            ]
            lines += [f"Filename: {place}", f"Size: {file.size_bytes}"]
            lines += [f"MD5sum: {digests['md5']}", f"SHA256: {digests['sha256']}"]
            texts.append((control["Architecture"], "\n".join(lines) + "\n"))
        self._architectures = sorted({"amd64", "arm64"} | {arch for arch, _ in texts} - {"all"})
        for arch in self._architectures:
            own = "\n".join(text for each, text in texts if each in {arch, "all"})
            for component in _COMPONENTS:
                content = own.encode() if component == "main" else b""
                self._indexes[f"{component}/binary-{arch}/Packages"] = content

    def _release(self, suite: str) -> str:
        date = datetime.fromtimestamp(self._made_s, UTC).strftime("%a, %d %b %Y %H:%M:%S UTC")
        lines = [
            f"Origin: Debian\nLabel: Debian\nSuite: {suite}\nCodename: {suite}\nDate: {date}",
            f"Architectures: {' '.join(self._architectures)}",
            f"Components: {' '.join(_COMPONENTS)}\nSHA256:",
        ]
        lines += (
            f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}"
            for name, content in sorted(self._indexes.items())
        )
        return "\n".join(lines) + "\n"


check, make = files.check, _Debian
