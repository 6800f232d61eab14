"""Reading the control data of a `.deb` (deb(5), ar(5), deb-control(5)) with bounds.

Nothing is unpacked, and what is not understood is refused.

Read: `control.tar`, plain, gzip, xz; zstd (Ubuntu's) where the `zstandard` package is there.
"""

from __future__ import annotations

import lzma
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from belljar.image.layers import LayerError
from belljar.image.layers.headers import EntryKind, read_entries
from belljar.network.stand_ins.files import open_file
from belljar.units import printable

MAX_CONTROL_BYTES: Final = 8 << 20
"""The control archive, packed and unpacked."""
MAX_STANZA_BYTES: Final = 256 << 10
_XZ_MEMORY_BYTES: Final = 128 << 20
_MAGIC: Final = b"!<arch>\n"
_HEADER: Final = re.compile(
    rb"(.{16})([0-9 ]{12})([0-9 ]{6})([0-9 ]{6})([0-7 ]{8})([0-9 ]{10})`\n", re.DOTALL
)
_FIELD: Final = re.compile(r"([!-,.-9;-~][!-9;-~]*):[ \t]*(.*)")
_PACKAGE: Final = re.compile(r"[a-z0-9][a-z0-9+.-]+", re.ASCII)
_VERSION: Final = re.compile(r"[0-9][A-Za-z0-9.+:~-]*", re.ASCII)
_ARCHITECTURE: Final = re.compile(r"[a-z0-9][a-z0-9-]*", re.ASCII)


class DebError(ValueError):
    """A file is no Debian package that can be read; the message says why."""


@dataclass(frozen=True, slots=True)
class Control:
    """A package's control stanza: its text, without blank lines and with a line end, and its fields
    by lower-case name.
    """

    text: str
    fields: Mapping[str, str]

    @property
    def package(self) -> str:
        """Its name."""
        return self.fields["package"]

    @property
    def version(self) -> str:
        """Its version."""
        return self.fields["version"]

    @property
    def architecture(self) -> str:
        """One architecture, or `all`."""
        return self.fields["architecture"]


class _Bytes:
    """An unpacked archive in memory, as the reader of tar streams wants it."""

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
                packed = os.pread(descriptor, length, offset)
                return parse_control(
                    control_file(unpacked(packed, name.removeprefix("control.tar")))
                )
    finally:
        os.close(descriptor)
    raise DebError("it has no control archive")


def ar_members(descriptor: int, size_bytes: int) -> Iterator[tuple[str, int, int]]:
    """Name, offset and length of the first 16 members of an ar archive. Raises `DebError`."""
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
    """An archive member by its ending (`.gz`, `.xz`, `.zst`, none), at most `MAX_CONTROL_BYTES`.

    Raises `DebError`.
    """
    if ending == "":
        return packed
    decompressor = _decompressor(ending)
    try:
        content = decompressor.decompress(packed, MAX_CONTROL_BYTES + 1)
    except (zlib.error, lzma.LZMAError, EOFError, MemoryError) as error:
        raise DebError(f"its control archive can't be unpacked: {error}") from None
    if len(content) > MAX_CONTROL_BYTES:
        raise DebError(f"its control archive unpacks to more than {MAX_CONTROL_BYTES} bytes")
    if not decompressor.eof:
        raise DebError("its control archive can't be unpacked: it ends too early")
    return bytes(content)


def _decompressor(ending: str) -> Any:  # noqa: ANN401
    if ending == ".gz":
        return zlib.decompressobj(wbits=31)
    if ending == ".xz":
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES)
    if ending == ".zst":
        return _Zstd()
    raise DebError(
        f"its control archive is packed as {printable(ending, max_chars=20)}, which isn't read"
    )


class _Zstd:
    # The library raises for a stream that ends early.
    eof = True

    def decompress(self, packed: bytes, max_bytes: int) -> bytes:
        """As the standard library's."""
        try:
            import zstandard
        except ImportError:
            raise DebError(
                "it is packed by zstd, for which the Python package zstandard is needed; or "
                "repack it by dpkg-deb -Zxz"
            ) from None
        try:
            with zstandard.ZstdDecompressor(max_window_size=_XZ_MEMORY_BYTES).stream_reader(
                packed
            ) as reader:
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
    """A binary package's control stanza.

    Raises `DebError` for more than one stanza, and where a name, version or architecture is missing
    or impossible.
    """
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
        elif (
            match is None
            or match[1].lower() in fields
            or any(ord(char) < 32 and char != "\t" for char in line.rstrip("\r"))
        ):
            raise DebError(f"its control file is broken in line {number}")
        else:
            last = match[1].lower()
            fields[last] = match[2]
    for name, pattern in (
        ("package", _PACKAGE),
        ("version", _VERSION),
        ("architecture", _ARCHITECTURE),
    ):
        if pattern.fullmatch(fields.get(name, "")) is None:
            raise DebError(f"its control file has no {name} that can be meant")
    return Control("\n".join(line.rstrip() for line in lines) + "\n", fields)
