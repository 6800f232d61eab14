"""A Debian package repository.

Of a directory of `.deb` files, or of an existing repository tree (`dists/`, `pool/`) as it is.

Whatever suite and component apt asks for, the packages are in its `main`, signed by a key of the
range's own (`/key.asc`). Uploads by PUT or POST are put on record and never served. Not: source
packages, Contents and Translation indexes, diffs.

Source: DebianRepository/Format in the Debian wiki.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

from belljar.capture import Capture
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, App, StandInContext
from belljar.network.stand_ins.documents import Fault, Faults
from belljar.network.stand_ins.files import StoredFile, file_answer, open_file
from belljar.network.stand_ins.openpgp import SigningKey
from belljar.network.stand_ins.registry import (
    PackageFiles,
    check_directory,
    check_packages,
    page_answer,
    record_change,
)
from belljar.network.stand_ins.web import (
    Answer,
    CutOffError,
    Incoming,
    Request,
    streaming_app,
    text_answer,
    word,
)

MAX_CONTROL_BYTES: Final = 8 << 20  # Of a packed control archive.
MAX_STANZA_BYTES: Final = 256 << 10
_HEADER: Final = re.compile(rb"(.{16}).{32}([0-9 ]{10})`\n", re.DOTALL)
_FIELD: Final = re.compile(r"([!-,.-9;-~][!-9;-~]*):[ \t]*(.*)")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f]")
_PACKAGE: Final = re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII)
_VERSION: Final = re.compile(r"[0-9][A-Za-z0-9.+:~-]*", re.ASCII)
_ARCHITECTURE: Final = re.compile(r"[a-z0-9][a-z0-9-]*", re.ASCII)
_BROKEN: Final = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError)


class DebError(ValueError):
    """Why a file is no readable Debian package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A control stanza. `fields`: lower-case name → the field's lines."""

    package: str
    version: str
    architecture: str
    fields: Mapping[str, str]


def read_control(path: Path) -> Control:
    """Return the control data of a package file. Raises `DebError`, `OSError`."""
    with os.fdopen(open_file(path), "rb") as source:
        if source.read(8) != b"!<arch>\n":
            raise DebError("not an ar archive, which a .deb is")
        for _ in range(16):
            match = _HEADER.fullmatch(source.read(60))
            if match is None or not match[2].strip():
                break
            name, length = match[1].strip().rstrip(b"/"), int(match[2])
            if name == b"control.tar" or name.startswith(b"control.tar."):
                if length > MAX_CONTROL_BYTES:
                    raise DebError(f"its control archive is larger than {MAX_CONTROL_BYTES} bytes")
                packed = io.BytesIO(source.read(length))
                return parse_control(_control_in(packed, is_zstd=name.endswith(b".zst")))
            source.seek(length + length % 2, os.SEEK_CUR)
    raise DebError("it has no control archive")


def _control_in(packed: IO[bytes], *, is_zstd: bool) -> bytes:
    """Return the file `control` of a control archive. Raises `DebError`."""
    stream: Any = packed
    if is_zstd:
        try:
            import zstandard
        except ImportError:
            needed = "the Python package zstandard is needed; or repack it by dpkg-deb -Zxz"
            raise DebError(f"it is packed by zstd, for which {needed}") from None
        stream = zstandard.ZstdDecompressor().stream_reader(packed)
    content = b""
    try:
        with tarfile.open(fileobj=stream, mode="r|" if is_zstd else "r:*") as archive:
            for member in islice(archive, 1000):
                if member.isfile() and member.name.removeprefix("./") == "control":
                    opened = archive.extractfile(member)
                    content = opened.read(MAX_STANZA_BYTES + 1) if opened else b""
                    break
    except Exception as error:
        # What zstandard raises derives from nothing that has a name without it.
        if not isinstance(error, _BROKEN) and not is_zstd:
            raise
        raise DebError("its control archive can't be unpacked") from error
    if not content:
        raise DebError("its control archive has no file `control`")
    if len(content) > MAX_STANZA_BYTES:
        raise DebError(f"its control file is larger than {MAX_STANZA_BYTES} bytes")
    return content


def parse_control(content: bytes) -> Control:
    """One stanza with valid fields. Raises `DebError`."""
    try:
        lines = content.decode("utf-8").rstrip().split("\n")
    except UnicodeDecodeError:
        raise DebError("its control file is not UTF-8") from None
    fields: dict[str, str] = {}
    last = ""
    for number, line in enumerate(lines, 1):
        match = _FIELD.fullmatch(line.rstrip())
        if line[:1] in {" ", "\t"} and line.strip() and last:
            fields[last] += "\n" + line.rstrip()
        elif match is None or match[1].lower() in fields or _CONTROL.search(line.rstrip("\r")):
            raise DebError(f"its control file is broken in line {number}")
        else:
            last = match[1].lower()
            fields[last] = line.rstrip()
    identity = {"package": _PACKAGE, "version": _VERSION, "architecture": _ARCHITECTURE}
    values = {name: fields.get(name, "").partition(":")[2].lstrip(" \t") for name in identity}
    for name, pattern in identity.items():
        if pattern.fullmatch(values[name]) is None:
            raise DebError(f"its control file has no {name} that can be meant")
    return Control(fields=fields, **values)


_DEBIAN: Final = ("main", "contrib", "non-free", "non-free-firmware")
_COMPONENTS: Final = (*_DEBIAN, "restricted", "universe", "multiverse")
_OURS: Final = {"filename", "size", "md5sum", "sha1", "sha256", "sha512", "status"}
_ALWAYS: Final = frozenset({"amd64", "arm64"})
_SUITE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9+._~-]{0,62}(?:/updates)?", re.ASCII)
_MAX_SUITES: Final = 100
_DAY_S: Final = 86_400


class Repository:
    """A directory's `.deb` files; others are left out."""

    def __init__(self, directory: Path, now_s: int) -> None:
        """The Release file is dated a day before `now_s`.

        So a guest's clock may be somewhat behind.
        """
        self._files = PackageFiles(directory, "md5", "sha256")
        self.made_s = now_s - _DAY_S
        self._indexes: dict[str, bytes] | None = None
        self._pool: dict[str, StoredFile] = {}
        self._releases: dict[str, str] = {}
        self._by_hash: dict[str, bytes] = {}

    @cached_property
    def key(self) -> SigningKey:
        """The repository's key, made when it is first needed."""
        return SigningKey.new("Archive Automatic Signing Key <ftpmaster@localhost>", self.made_s)

    async def pool_file(self, name: str) -> tuple[StoredFile, str] | None:
        """A package file by its path from `pool/` on, and its SHA-256."""
        await self._indexed()
        file = self._pool.get(name)
        return (file, (await self._files.digests(file))["sha256"]) if file else None

    async def index(self, name: str) -> bytes | None:
        """By its path below a suite or `flat/`, or by its hash."""
        indexes = await self._indexed()
        if "/by-hash/SHA256/" in name:
            return self._by_hash.get(name.rpartition("/")[2])
        return indexes.get(name)

    async def release(self, suite: str) -> str | None:
        """A suite's Release file ("": a flat repository's). `None` for an impossible name."""
        if suite and _SUITE.fullmatch(suite) is None:
            return None
        known = self._releases.get(suite)
        if known is None:
            known = self._render_release(suite, await self._indexed())
            if len(self._releases) < _MAX_SUITES:
                self._releases[suite] = known
        return known

    async def _indexed(self) -> Mapping[str, bytes]:
        if self._indexes is not None:
            return self._indexes
        stanzas = []
        for file in self._files.by_name.values():
            if file.name.endswith(".deb"):
                with suppress(DebError, OSError):
                    stanzas.append((read_control(file.path), file))
        stanzas.sort(key=lambda pair: (pair[0].package, pair[0].version))
        texts_of = [(one.architecture, await self._stanza(file, one)) for one, file in stanzas]
        texts = {"flat/Packages": "\n".join(text for _, text in texts_of)}
        for arch in _ALWAYS | {arch for arch, _ in texts_of if arch != "all"}:
            own = "\n".join(text for each, text in texts_of if each in {arch, "all"})
            texts |= {f"{other}/binary-{arch}/Packages": "" for other in _COMPONENTS}
            texts[f"main/binary-{arch}/Packages"] = own
        packed = {
            text: {
                "": text.encode(),
                ".gz": gzip.compress(text.encode(), mtime=0),
                ".xz": lzma.compress(text.encode(), preset=1),
            }
            for text in set(texts.values())
        }
        indexes = {
            name + ending: content
            for name, text in texts.items()
            for ending, content in packed[text].items()
        }
        self._by_hash = {hashlib.sha256(each).hexdigest(): each for each in indexes.values()}
        self._indexes = indexes
        return indexes

    async def _stanza(self, file: StoredFile, control: Control) -> str:
        """Of an index, with our place and digests."""
        digests = await self._files.digests(file)
        version = control.version.partition(":")[2] or control.version
        start = control.package[:4] if control.package.startswith("lib") else control.package[0]
        base = f"{control.package}_{version}_{control.architecture}.deb"
        name = f"pool/main/{start}/{control.package}/{base}"
        self._pool.setdefault(name, file)
        kept = [lines for field, lines in control.fields.items() if field not in _OURS]
        ours = [f"Filename: {name}", f"Size: {file.size_bytes}"]
        ours += [f"MD5sum: {digests['md5']}", f"SHA256: {digests['sha256']}"]
        return "\n".join((*kept, *ours)) + "\n"

    def _render_release(self, suite: str, indexes: Mapping[str, bytes]) -> str:
        is_flat = not suite
        files = {
            name.removeprefix("flat/"): content
            for name, content in sorted(indexes.items())
            if name.startswith("flat/") == is_flat
        }
        found = (re.search(r"/binary-([^/]+)/", name) for name in indexes)
        architectures = sorted({match[1] for match in found if match})
        date = datetime.fromtimestamp(self.made_s, UTC).strftime("%a, %d %b %Y %H:%M:%S UTC")
        codename, components = suite.partition("/")[0], " ".join(_COMPONENTS)
        lines = ["Origin: Debian", "Label: Debian"]
        lines += [] if is_flat else [f"Suite: {suite}", f"Codename: {codename}"]
        lines += [f"Date: {date}", *([] if is_flat else ["Acquire-By-Hash: yes"])]
        lines += [f"Architectures: {' '.join(architectures)}"]
        lines += ["SHA256:"] if is_flat else [f"Components: {components}", "SHA256:"]
        for name, content in files.items():
            lines.append(f" {hashlib.sha256(content).hexdigest()} {len(content)} {name}")
        return "\n".join(lines) + "\n"


# ---- answers

_PACKAGES: Final = "Debian packages (.deb)"
_BELOW: Final = re.compile(r"(?:.*/)?((?:dists|pool)/.+)", re.DOTALL)
_TYPES: Final = {
    ".deb": "application/vnd.debian.binary-package",
    ".gz": "application/gzip",
    ".xz": "application/x-xz",
}


def make(context: StandInContext) -> App:
    """Of the tree in `context.files`, or of its `.deb` files."""
    return streaming_app(_Debian(context).handle)


def check(_settings: Mapping[str, JsonValue], directory: Path) -> Faults:
    """Faults of a directory of packages or a tree."""
    if not (directory / "dists").is_dir():

        def identify(file: StoredFile) -> tuple[str, str, str]:
            if not file.name.endswith(".deb"):
                raise DebError("not a Debian package (.deb)")
            control = read_control(file.path)
            return control.package, control.version, control.architecture

        unique = "package, version and architecture"
        return check_packages(directory, _PACKAGES, identify, unique)
    wrong, files = check_directory(directory, _PACKAGES)
    suites = (file for file in files if file.name.startswith("dists/"))
    if any(file.base in {"Release", "InRelease"} for file in suites):
        return wrong
    missing = "no suite in it has a Release or InRelease file"
    return (*wrong, Fault(missing, file=str(directory / "dists")))


class _Debian:
    def __init__(self, context: StandInContext) -> None:
        self._context = context
        self._tree = PackageFiles(context.files) if (context.files / "dists").is_dir() else None
        self._repository = Repository(context.files, int(context.clock()))

    async def handle(self, request: Request, incoming: Incoming) -> Answer | None:
        if request.method in {"PUT", "POST"}:
            return await self._upload(request, incoming)
        if request.method not in {"GET", "HEAD"}:
            return text_answer("Method Not Allowed", 405, (("allow", "GET, HEAD, PUT"),))
        match = _BELOW.fullmatch(request.path)
        below = match[1] if match else ""
        if self._tree is not None:
            file = self._tree.by_name.get(request.path.lstrip("/")) or self._tree.by_name.get(below)
            if file is None:
                return text_answer("404 Not Found", 404)
            etag = f"{file.size_bytes:x}-{file.mtime_s:x}"
            return file_answer(file, request, media=_type_of(file.base), etag=etag)
        if below.startswith("pool/"):
            found = await self._repository.pool_file(below)
            if found is None:
                return text_answer("404 Not Found", 404)
            return file_answer(found[0], request, media=_TYPES[".deb"], etag=found[1])
        content = await self._page(below.split("/")[1:], request.path.rpartition("/")[2])
        if content is None:
            return text_answer("404 Not Found", 404)
        headers = (("content-type", _type_of(request.path)),)
        return page_answer(request, content, headers, self._repository.made_s)

    async def _page(self, below_dists: list[str], base: str) -> bytes | None:
        """A file below `dists/`, or of a flat repository."""
        repository = self._repository
        if base == "key.asc" and not below_dists:
            return repository.key.certificate().encode()
        # Old security suites have two parts (`buster/updates`).
        size = 2 if below_dists[1:2] == ["updates"] else 1
        suite, rest = "/".join(below_dists[:size]), below_dists[size:]
        if base in {"Release", "InRelease", "Release.gpg"} and rest in ([], [base]):
            text = await repository.release(suite)
            if text is None:
                return None
            if base == "InRelease":
                return repository.key.clear_signed(text).encode()
            return (text if base == "Release" else repository.key.detached(text.encode())).encode()
        if not below_dists:
            return await repository.index(f"flat/{base}")
        return await repository.index("/".join(rest))

    async def _upload(self, request: Request, incoming: Incoming) -> Answer | None:
        content = Capture(max_kept_bytes=MAX_KEPT_BODY_BYTES)
        refused = ""
        try:
            async for piece in incoming.pieces():
                content.feed(piece)
        except CutOffError:
            refused = "it broke off"
        data: dict[str, JsonValue] = {
            "what": "publish",
            "method": request.method,
            "path": word(request.path),
            "name": word(request.path.rpartition("/")[2]),
            "size_bytes": content.total_bytes,
            "sha256": content.sha256,
            "refused": refused,
        }
        await record_change(self._context, request, "debian", data, [content.body("file-0")])
        return None if refused else text_answer("", 201)


def _type_of(name: str) -> str:
    known = (kind for ending, kind in _TYPES.items() if name.endswith(ending))
    return next(known, "text/plain; charset=utf-8")
