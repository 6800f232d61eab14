"""A repository made in memory from `.deb` files.

Source: DebianRepository/Format in the Debian wiki.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from belljar.image.layers import LayerError
from belljar.image.layers.headers import EntryKind, read_entries
from belljar.network.stand_ins.debian.openpgp import SigningKey
from belljar.network.stand_ins.files import StoredFile, open_file
from belljar.network.stand_ins.registry import PackageFiles
from belljar.units import printable

MAX_CONTROL_BYTES: Final = 8 << 20  # The control archive, packed and unpacked
MAX_STANZA_BYTES: Final = 256 << 10
_XZ_MEMORY_BYTES: Final = 128 << 20
_MAGIC: Final = b"!<arch>\n"
_HEADER: Final = re.compile(
    rb"(.{16})([0-9 ]{12})([0-9 ]{6})([0-9 ]{6})([0-7 ]{8})([0-9 ]{10})`\n", re.DOTALL
)
_FIELD: Final = re.compile(r"([!-,.-9;-~][!-9;-~]*):[ \t]*(.*)")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f]")
_PACKAGE: Final = re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII)
_VERSION: Final = re.compile(r"[0-9][A-Za-z0-9.+:~-]*", re.ASCII)
_ARCHITECTURE: Final = re.compile(r"[a-z0-9][a-z0-9-]*", re.ASCII)


class DebError(ValueError):
    """Why a file is no readable Debian package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """A control stanza. `fields`: lower-case name → the field's lines."""

    package: str
    version: str
    architecture: str
    fields: Mapping[str, str]


class _Bytes:
    def __init__(self, content: bytes) -> None:
        self._content = content

    def pread(self, count: int, offset: int) -> bytes:
        return self._content[offset : offset + count]


def read_control(path: Path) -> Control:
    """The control data of a package file. Raises `DebError`, `OSError`."""
    descriptor = open_file(path)
    try:
        size = os.fstat(descriptor).st_size
        for name, offset, length in ar_members(descriptor, size):
            if name == "control.tar" or name.startswith("control.tar."):
                if length > MAX_CONTROL_BYTES:
                    raise DebError(f"its control archive is larger than {MAX_CONTROL_BYTES} bytes")
                packed, ending = os.pread(descriptor, length, offset), name[len("control.tar") :]
                return parse_control(control_file(unpacked(packed, ending)))
    finally:
        os.close(descriptor)
    raise DebError("it has no control archive")


def ar_members(descriptor: int, size_bytes: int) -> Iterator[tuple[str, int, int]]:
    """Name, offset, length of an ar's first 16 members. Raises `DebError`."""
    if os.pread(descriptor, len(_MAGIC), 0) != _MAGIC:
        raise DebError("not an ar archive, which a .deb is")
    offset = len(_MAGIC)
    for _ in range(16):
        header = os.pread(descriptor, 60, offset)
        if not header:
            return
        match = _HEADER.fullmatch(header)
        if match is None or not match[6].strip().isdigit():
            raise DebError(f"a broken member header at byte {offset}")
        length, start = int(match[6]), offset + 60
        if start + length > size_bytes:
            raise DebError(f"the member at byte {offset} is longer than the file")
        yield match[1].decode("ascii", "replace").strip().rstrip("/"), start, length
        offset = start + length + length % 2


def unpacked(packed: bytes, ending: str) -> bytes:
    """At most `MAX_CONTROL_BYTES`. Raises `DebError`. `ending`: `.gz`, `.xz`, `.zst`, or none."""
    if ending == "":
        return packed
    decompressor: Any
    if ending == ".gz":
        decompressor = zlib.decompressobj(wbits=31)
    elif ending == ".xz":
        decompressor = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
    elif ending == ".zst":
        decompressor = _Zstd()
    else:
        shown = printable(ending, max_chars=20)
        raise DebError(f"its control archive is packed as {shown}, which isn't read")
    try:
        content = decompressor.decompress(packed, MAX_CONTROL_BYTES + 1)
    except (zlib.error, lzma.LZMAError, EOFError, MemoryError) as error:
        raise DebError(f"its control archive can't be unpacked: {error}") from None
    if len(content) > MAX_CONTROL_BYTES:
        raise DebError(f"its control archive unpacks to more than {MAX_CONTROL_BYTES} bytes")
    if not decompressor.eof:
        raise DebError("its control archive can't be unpacked: it ends too early")
    return bytes(content)


class _Zstd:
    # The library raises for a stream that ends early.
    eof = True

    def decompress(self, packed: bytes, max_bytes: int) -> bytes:
        try:
            import zstandard
        except ImportError:
            needed = "the Python package zstandard is needed; or repack it by dpkg-deb -Zxz"
            raise DebError(f"it is packed by zstd, for which {needed}") from None
        try:
            decompressor = zstandard.ZstdDecompressor(max_window_size=_XZ_MEMORY_BYTES)
            with decompressor.stream_reader(packed) as reader:
                return bytes(reader.read(max_bytes))
        except zstandard.ZstdError as error:
            raise DebError(f"its control archive can't be unpacked: {error}") from None


def control_file(archive: bytes) -> bytes:
    """The file `control` of an unpacked control archive. Raises `DebError`."""
    source = _Bytes(archive)
    try:
        for entry in read_entries(source, len(archive)):
            if entry.path == (b"control",) and entry.kind is EntryKind.FILE:
                if entry.size_bytes > MAX_STANZA_BYTES:
                    raise DebError(f"its control file is larger than {MAX_STANZA_BYTES} bytes")
                return source.pread(entry.size_bytes, entry.offset)
    except LayerError as error:
        raise DebError(f"its control archive is broken: {error}") from None
    raise DebError("its control archive has no file `control`")


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
