"""Reading a hostile tar stream: every length is bounded before use.

Understood: ustar, GNU long names and base-256 numbers, POSIX pax records.
Refused: device nodes, sparse files, absolute names, `..`, unknown types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final

from belljar.dataclass import dataclass, field
from belljar.errors import PolicyError
from belljar.units import printable

# Linux's own bounds of a path and a name.
MAX_PATH_BYTES: Final = 4096
MAX_NAME_BYTES: Final = 255
# Far beyond any image, and within what Python's recursion takes.
MAX_DEPTH: Final = 200
MAX_METADATA_BYTES: Final = 1 << 20  # Of one extended header, held in memory
_MAX_CAPABILITY_BYTES: Final = 64  # `struct vfs_ns_cap_data` has 24
# Of all paths and links of an archive, which are held in memory: half a million of usual length.
MAX_TEXT_BYTES: Final = 256 << 20
# The kernel's -1 is no id; squashfs keeps ids and times in 32 bits.
MAX_ID: Final = 0xFFFF_FFFE
MAX_TIME_S: Final = 0xFFFF_FFFF


class LayerError(ValueError):
    """A broken layer, or one with forbidden content."""

    def __init__(
        self, what: str, *, hint: str = "use an image without it; nothing of this one was kept"
    ) -> None:
        super().__init__(what)
        self.hint = hint

    def refusal(self, where: str) -> PolicyError:
        return PolicyError(f"the image is refused: {self}", where=printable(where), hint=self.hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportLimits:
    max_bytes: int = 8 << 30  # All layers together, uncompressed
    max_entries: int = 500_000  # All layers together, replaced ones included
    max_layers: int = 500
    max_document_bytes: int = 4 << 20  # A manifest or a configuration
    timeout_s: float = 1800  # Fetching, in all
    answer_s: float = 60  # For each question to a registry or daemon
    stall_s: float = 120  # Without a byte from a registry


_BLOCK: Final = 512  # Of every tar format
_EMPTY: Final = bytes(_BLOCK)
# GNU tar's two, and POSIX's for one entry and for all that follow.
_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL_PAX = b"L", b"K", b"x", b"g"
# The one extended attribute that is read, by star's word, which GNU tar and Docker use, too.
CAPABILITY: Final = "SCHILY.xattr.security.capability"

EntryPath = tuple[bytes, ...]


class ImageEntryKind(StrEnum):
    FILE = "file"
    HARD_LINK = "hard link"
    SYMLINK = "symbolic link"
    DIRECTORY = "directory"
    FIFO = "pipe"


KINDS: Final[Mapping[bytes, ImageEntryKind]] = {
    b"\0": ImageEntryKind.FILE,  # Before POSIX
    b"0": ImageEntryKind.FILE,
    b"1": ImageEntryKind.HARD_LINK,
    b"2": ImageEntryKind.SYMLINK,
    b"5": ImageEntryKind.DIRECTORY,
    b"6": ImageEntryKind.FIFO,
}


@dataclass(slots=True, kw_only=True)
class LayerEntry:
    """A file of a layer, then of the tree that takes it, where hard links are one entry.

    `path` has no `.` or `..`; a link's `target` may. `path_bytes`, `layer` (the last that named the
    file), `content_layer` and `children` are the tree's.
    """

    path: EntryPath = ()
    kind: ImageEntryKind
    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime_s: int = 0
    size_bytes: int = 0
    offset: int = 0
    target: bytes = b""
    capability: bytes = b""
    path_bytes: int = 0
    layer: int = 0
    content_layer: int = 0
    children: dict[bytes, LayerEntry] = field(default_factory=dict)


def read_entries(
    pread: Callable[[int, int], bytes], size_bytes: int, max_entries: int | None = None
) -> Iterator[LayerEntry]:
    """Yield the entries of a layer of `size_bytes`, in its order, in about 2 MiB of memory.

    The layer must end with an end marker or exactly after an entry. Raises `LayerError`.
    """
    offset, extra, count = 0, _Extra(), 0
    while offset < size_bytes:
        header = pread(_BLOCK, offset)
        # POSIX has two such blocks at the end; the first one ends the archive for readers.
        if header == _EMPTY:
            break
        if len(header) != _BLOCK:
            raise LayerError(f"the layer ends inside a header, at byte {offset}")
        # The field itself counts as eight blanks.
        if _number(header[148:156], "checksum") != sum(header) - sum(header[148:156]) + 8 * 0x20:
            raise LayerError(f"the header at byte {offset} is broken: its checksum is wrong")
        size, kind = _number(header[124:136], "size"), header[156:157]
        is_extra = kind in {_LONG_NAME, _LONG_LINK, _PAX, _GLOBAL_PAX}
        if not is_extra:
            size = extra.numbers.get("size", size)
        if size and kind in {b"1", b"2", b"5", b"6"}:
            raise LayerError(f"the entry at byte {offset} has a size and can't have content")
        content = offset + _BLOCK
        if content + size > size_bytes:
            raise LayerError(f"the entry at byte {offset} is longer than the layer")
        offset = content + size + -size % _BLOCK
        if is_extra:
            if size > MAX_METADATA_BYTES:
                raise LayerError(f"an extended header has more than {MAX_METADATA_BYTES} bytes")
            extra.take(kind, pread(size, content))
            continue
        count += 1
        if max_entries is not None and count > max_entries:
            raise LayerError(f"it holds more than {max_entries} entries")
        yield _entry(header, kind, size, content, extra)
        extra = _Extra()
    if extra.used:
        raise LayerError("the layer ends where an entry should follow")


def split_path(name: bytes) -> EntryPath:
    """Raise `LayerError` for `..` and `/…`."""
    if name.startswith(b"/"):
        raise LayerError(f"the name {printable(name)!r} is absolute")
    parts = tuple(part for part in name.split(b"/") if part not in {b"", b"."})
    if b".." in parts:
        raise LayerError(f"the name {printable(name)!r} leads out of its directory")
    check_components(parts, name)
    return parts


def check_components(parts: EntryPath, name: bytes) -> None:
    """Raise `LayerError` for names beyond file systems' limits."""
    is_long = len(name) > MAX_PATH_BYTES or any(len(part) > MAX_NAME_BYTES for part in parts)
    if is_long or b"\0" in name:
        raise LayerError(f"the name {printable(name[:100])!r} is too long or holds a zero byte")
    if len(parts) > MAX_DEPTH:
        raise LayerError(f"a name is more than {MAX_DEPTH} deep: {printable(name[:100])!r}")


@dataclass(slots=True)
class _Extra:
    used: bool = False
    name: bytes | None = None
    link: bytes | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    capability: bytes = b""

    def take(self, kind: bytes, content: bytes) -> None:
        if kind == _GLOBAL_PAX:
            # git writes its commit there; anything else would change entries unseen.
            if any(key != "comment" for key, _ in _pax_records(content)):
                raise LayerError("the layer has a global header, which could change every entry")
            return
        self.used = True
        if kind == _LONG_NAME:
            self.name = _text(content)
        elif kind == _LONG_LINK:
            self.link = _text(content)
        for key, value in _pax_records(content) if kind == _PAX else ():
            if key.startswith("GNU.sparse."):
                raise LayerError("a sparse file is not taken")
            if key == "path":
                self.name = value
            elif key == "linkpath":
                self.link = value
            elif key == "mtime" and value.startswith(b"-"):
                self.numbers[key] = 0
            elif key in {"size", "uid", "gid", "mtime"}:
                whole = value.partition(b".")[0] if key == "mtime" else value
                self.numbers[key] = _decimal(whole, key)
            elif key == CAPABILITY:
                self.capability = value
                if len(value) > _MAX_CAPABILITY_BYTES:
                    raise LayerError("an entry's capabilities are no such attribute")


def _entry(header: bytes, kind: bytes, size: int, content: int, extra: _Extra) -> LayerEntry:
    if extra.name is not None:
        name = extra.name
    else:
        name = _text(header[0:100])
        # GNU's own magic has a blank there, and other fields where the prefix would be.
        if header[257:263] == b"ustar\0" and (prefix := _text(header[345:500])):
            name = prefix + b"/" + name
    if kind not in KINDS:
        # A device, a sparse file, a part of an archive, or an unknown type
        what = f"of the type {printable(kind)!r}, which an image may not hold"
        raise LayerError(f"{printable(name[:200])!r} is {what}")
    known = KINDS[kind]
    if known is ImageEntryKind.FILE and name.endswith(b"/") and not size:
        known = ImageEntryKind.DIRECTORY  # archives older than POSIX have its name alone
    if (mtime_s := extra.numbers.get("mtime")) is None:  # a time before 1970 is 1970
        mtime_s = 0 if header[136] == 0xFF else _number(header[136:148], "time")
    target = extra.link if extra.link is not None else _text(header[157:257])
    is_link = known in {ImageEntryKind.SYMLINK, ImageEntryKind.HARD_LINK}
    if is_link and (not target or len(target) > MAX_PATH_BYTES or b"\0" in target):
        raise LayerError(f"the link {printable(name[:200])!r} has no target, or too long a one")
    return LayerEntry(
        path=split_path(name),
        kind=known,
        mode=_number(header[100:108], "mode") & 0o7777,
        uid=_bounded(extra.numbers.get("uid"), header[108:116], "owner"),
        gid=_bounded(extra.numbers.get("gid"), header[116:124], "group"),
        mtime_s=min(mtime_s, MAX_TIME_S),
        size_bytes=size if known is ImageEntryKind.FILE else 0,
        offset=content,
        target=target if is_link else b"",
        capability=extra.capability,
    )


def _text(field_bytes: bytes) -> bytes:
    return field_bytes.partition(b"\0")[0]


def _bounded(stated: int | None, field_bytes: bytes, what: str) -> int:
    value = stated if stated is not None else _number(field_bytes, what)
    if value > MAX_ID:
        raise LayerError(f"an entry's {what} is {value}; at most {MAX_ID} is allowed")
    return value


def _number(field_bytes: bytes, what: str) -> int:
    if field_bytes[0] & 0x80:
        if field_bytes[0] != 0x80:
            raise LayerError(f"a header's {what} is negative or too large")
        return int.from_bytes(field_bytes[1:], "big")
    digits = field_bytes.strip(b" \0")
    if any(digit not in b"01234567" for digit in digits):
        raise LayerError(f"a header's {what} is not a number")
    return int(digits, 8) if digits else 0


def _pax_records(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the records `length key=value\\n` of exact lengths."""
    rest = memoryview(content)
    while rest:
        # A length has 19 digits at most, and a blank.
        head = bytes(rest[:20])
        length = _decimal(head.partition(b" ")[0], "record's length")
        start = head.find(b" ") + 1
        record = bytes(rest[start:length])
        key, equals, value = record[:-1].partition(b"=")
        if not start or length > len(rest) or length <= start or record[-1:] != b"\n" or not equals:
            raise LayerError("an extended header is broken")
        yield key.decode("utf-8", "replace"), value
        rest = rest[length:]


def _decimal(digits: bytes, what: str) -> int:
    if not digits.isdigit() or len(digits) > 19:
        raise LayerError(f"an extended header's {what} is not a number that can be meant")
    return int(digits)
