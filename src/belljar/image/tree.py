"""Layers, decompressed with bounds and merged in memory. No name becomes a host path."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Final, Literal

from belljar.errors import HostError
from belljar.image.layers import (
    CAPABILITY,
    KINDS,
    MAX_DEPTH,
    MAX_PATH_BYTES,
    MAX_TEXT_BYTES,
    EntryPath,
    ImageEntryKind,
    ImportLimits,
    LayerEntry,
    LayerError,
    check_components,
    read_entries,
)
from belljar.image.tools import IDS, drained, failed, plain_env, started, tool
from belljar.store.home import HINT_SPACE
from belljar.units import format_size, printable

_CHUNK_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 16 << 10  # a member's rest is copied, once for each member in it
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"  # RFC 1952, RFC 8878
# More than any packer's level takes without being told (zstd(1), `--long`).
_ZSTD_WINDOW_BYTES: Final = 128 << 20


class LayerBlob:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size_bytes = os.fstat(file.fileno()).st_size

    def pread(self, count: int, offset: int) -> bytes:
        return os.pread(self._file.fileno(), count, offset)

    def chunks(self, offset: int, size_bytes: int) -> Iterator[bytes]:
        while size_bytes:
            chunk = self.pread(min(_CHUNK_BYTES, size_bytes), offset)
            if not chunk:
                return
            yield chunk
            offset, size_bytes = offset + len(chunk), size_bytes - len(chunk)

    def close(self) -> None:
        self._file.close()


def open_layer(
    blob: Path, scratch: Path, *, max_bytes: int, digest: str = "", diff_id: str = ""
) -> LayerBlob:
    """Decompress a blob, and compare known digests of it and of its content."""
    file = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - the layer owns it
    try:
        with blob.open("rb") as source:
            if digest not in {"", hashlib.file_digest(source, "sha256").hexdigest()}:
                raise LayerError("a layer's bytes are not those of its digest")
            source.seek(0)
            plain, size = hashlib.sha256(), 0
            for chunk in _uncompressed(source):
                size += len(chunk)
                if size > max_bytes:
                    what = f"it is larger than {format_size(max_bytes)} when uncompressed"
                    raise LayerError(what, hint="--max-size allows more")
                plain.update(chunk)
                file.write(chunk)
        if diff_id not in {"", f"sha256:{plain.hexdigest()}"}:
            raise LayerError("a layer is not the one that the configuration names")
        file.flush()
        return LayerBlob(file)
    except BaseException:
        file.close()
        raise


def is_plain(file: Path) -> bool:
    with file.open("rb") as opened:
        return not opened.read(4).startswith((_GZIP, _ZSTD))


def _uncompressed(source: IO[bytes]) -> Iterator[bytes]:
    magic = source.read(4)
    source.seek(0)
    if magic.startswith(_GZIP):
        yield from _gunzip(source)
    elif magic.startswith(_ZSTD):
        import zstandard  # few layers need it

        # The window bounds memory.
        decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
        stream = decompressor.stream_reader(source, read_across_frames=True, closefd=False)
        try:
            while chunk := stream.read(_CHUNK_BYTES):
                yield chunk
        except zstandard.ZstdError as error:
            raise LayerError(f"a layer's compression is broken: {error}") from error
    else:
        yield from iter(partial(source.read, _CHUNK_BYTES), b"")


def _gunzip(source: IO[bytes]) -> Iterator[bytes]:
    """Not by `gzip`, which reads a header's name, and zeros after a member, byte by byte."""
    inflate, rest = zlib.decompressobj(wbits=31), b""
    try:
        while rest := rest or source.read(_PIECE_BYTES):
            if inflate.eof:
                inflate = zlib.decompressobj(wbits=31)
            yield inflate.decompress(rest, _CHUNK_BYTES)
            rest = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
        while not inflate.eof and (tail := inflate.decompress(b"", _CHUNK_BYTES)):
            yield tail
    except zlib.error as error:
        raise LayerError(f"a layer's compression is broken: {error}") from error
    if not inflate.eof:
        raise LayerError("a layer ends in the middle of its compressed data")


# The OCI image specification's words for what an upper layer removes.
_WHITEOUT: Final = b".wh."
_OPAQUE: Final = b".wh..wh..opq"
# As in Linux: a path of more links is a circle.
_MAX_LINKS_FOLLOWED: Final = 40
# Of a whole image: long chains of links before every entry would take hours.
_MAX_STEPS: Final = 100_000_000
_TYPES: Final = {kind: tar_type for tar_type, kind in KINDS.items()}


class MergedTree:
    """Raise `LayerError` for what an image may not have. The lowest layer comes first."""

    def __init__(self, limits: ImportLimits, *, keep_setuid: bool = False) -> None:
        self.root = LayerEntry()
        self.newest_s = 0
        self.has_setuid = False
        self.high_owner = ""  # a file whose owner no container can have, and its ids
        self._limits = limits
        self._keep_setuid = keep_setuid
        self._layer = 0
        self._entries = 0
        self._text_bytes = 0
        self._steps = 0

    @property
    def setuid_programs(self) -> Literal["", "kept", "removed"]:
        return "" if not self.has_setuid else "kept" if self._keep_setuid else "removed"

    def begin_layer(self) -> None:
        self._layer += 1

    def apply_layer(self, layer: LayerBlob) -> None:
        self.begin_layer()
        for entry in read_entries(layer.pread, layer.size_bytes):
            self.apply(entry)

    def apply(self, entry: LayerEntry) -> None:
        self._count()
        if not entry.path:
            if entry.kind is not ImageEntryKind.DIRECTORY:
                raise LayerError(f"the root directory is a {entry.kind}")
            return
        parent = self._find(entry.path[:-1], make=entry.mtime_s)
        if parent is None:
            raise LayerError(f"{_shown(entry.path)} lies below something that is no directory")
        name = entry.path[-1]
        if not name.startswith(_WHITEOUT):
            self._place(parent, name, entry)
            return
        # A whiteout removes what lower layers put there; what this layer put there stays.
        if name == _OPAQUE:
            self._prune(parent)
            return
        hidden = name.removeprefix(_WHITEOUT)
        if hidden in {b"", b".", b".."}:
            raise LayerError(f"the whiteout {printable(name)!r} names nothing")
        child = parent.children.get(hidden)
        if child is not None and not hidden.startswith(_WHITEOUT) and not self._prune(child):
            del parent.children[hidden]

    def at(self, path: bytes) -> LayerEntry | None:
        """Follow no link."""
        found: LayerEntry | None = self.root
        for part in filter(None, path.split(b"/")):
            found = None if found is None else found.children.get(part)
        return found

    def ensure(self, path: bytes, kind: ImageEntryKind, mode: int) -> None:
        above, _, name = path.rpartition(b"/")
        parent = self.at(above)
        if parent is not None and parent.kind is ImageEntryKind.DIRECTORY:
            made = LayerEntry(kind=kind, layer=self._layer, mode=mode, mtime_s=self.newest_s)
            parent.children.setdefault(name, made)

    def emit(self) -> Iterator[tuple[tarfile.TarInfo, LayerEntry]]:
        first_names: dict[int, bytes] = {}
        waiting = [(b"", self.root)]
        while waiting:
            path, node = waiting.pop()
            if max(node.uid, node.gid) >= IDS and not self.high_owner:
                self.high_owner = f"{printable(path[:200])} ({node.uid}:{node.gid})"
            if path:
                yield _header(path, node, first_names), node
            # Backwards, as `pop` takes the last one.
            inside = sorted(node.children.items(), reverse=True)
            waiting.extend((path + b"/" + name if path else name, child) for name, child in inside)

    def _place(self, parent: LayerEntry, name: bytes, entry: LayerEntry) -> None:
        before = parent.children.get(name)
        path_bytes = self._measured(parent, name, entry.target)
        if entry.kind is ImageEntryKind.HARD_LINK:
            parent.children[name] = self._link_target(entry)
            return
        is_directory = entry.kind is ImageEntryKind.DIRECTORY
        # On a directory the bit passes the group on, and gives no rights.
        if not is_directory and entry.mode & (stat.S_ISUID | stat.S_ISGID):
            self.has_setuid = True
            if not self._keep_setuid:
                entry.mode &= ~(stat.S_ISUID | stat.S_ISGID)
        if entry.kind is not ImageEntryKind.FILE or not self._keep_setuid:
            entry.capability = b""
        if is_directory and before is not None and before.kind is ImageEntryKind.DIRECTORY:
            entry.children = before.children
        self.newest_s = max(self.newest_s, entry.mtime_s)
        entry.path, entry.path_bytes = (), path_bytes
        entry.layer = entry.content_layer = self._layer
        parent.children[name] = entry

    def _link_target(self, entry: LayerEntry) -> LayerEntry:
        parts = tuple(part for part in entry.target.split(b"/") if part not in {b"", b"."})
        if b".." in parts or not parts:
            raise LayerError(f"the hard link {_shown(entry.path)} leads out of the image")
        parent = self._find(parts[:-1])
        node = None if parent is None else parent.children.get(parts[-1])
        if node is None or node.kind is ImageEntryKind.DIRECTORY:
            raise LayerError(f"the hard link {_shown(entry.path)} points to no file of it")
        # The name is this layer's now: a whiteout of this layer must not take it.
        node.layer = self._layer
        return node

    def _count(self) -> None:
        self._entries += 1
        if self._entries > self._limits.max_entries:
            raise LayerError(f"it holds more than {self._limits.max_entries} entries")

    def _measured(self, parent: LayerEntry, name: bytes, target: bytes = b"") -> int:
        path_bytes = parent.path_bytes + len(name) + 1
        self._text_bytes += path_bytes + len(target)
        if path_bytes > MAX_PATH_BYTES or self._text_bytes > MAX_TEXT_BYTES:
            raise LayerError(f"the path to {printable(name[:100])!r}, or all paths, are too long")
        return path_bytes

    def _prune(self, node: LayerEntry) -> bool:
        """Remove lower layers' nodes; return true if `node` stays."""
        self._steps += 1 + len(node.children)
        if self._steps > _MAX_STEPS:
            raise LayerError("its whiteouts take too many steps")
        for name, child in list(node.children.items()):
            if not self._prune(child):
                del node.children[name]
        return node.layer == self._layer or bool(node.children)

    def _find(self, path: EntryPath, *, make: int | None = None) -> LayerEntry | None:
        """Make missing directories at time `make`."""
        above: list[LayerEntry] = [self.root]
        todo, followed = list(reversed(path)), 0
        while todo:
            part = todo.pop()
            if part == b"..":
                if len(above) == 1:
                    raise LayerError(f"a link on the way to {_shown(path)} leads out of the image")
                above.pop()
                continue
            child = above[-1].children.get(part)
            if child is None and make is not None:
                self._count()  # a short name implies many directories
                path_bytes = self._measured(above[-1], part)
                child = LayerEntry(layer=self._layer, mtime_s=make, path_bytes=path_bytes)
                above[-1].children[part] = child
            if child is not None and child.kind is ImageEntryKind.SYMLINK:
                followed += 1
                above = self._follow(child, above, todo, followed)
                continue
            if child is None or child.kind is not ImageEntryKind.DIRECTORY:
                return None
            above.append(child)
            # Names are bounded, but links lead a name to where another ended
            if len(above) > MAX_DEPTH:
                raise LayerError(f"{_shown(path)} is more than {MAX_DEPTH} directories deep")
        return above[-1]

    def _follow(
        self, link: LayerEntry, above: list[LayerEntry], todo: list[bytes], followed: int
    ) -> list[LayerEntry]:
        parts = tuple(part for part in link.target.split(b"/") if part not in {b"", b"."})
        check_components(parts, link.target)
        self._steps += len(parts) + len(todo)
        if followed > _MAX_LINKS_FOLLOWED or self._steps > _MAX_STEPS:
            raise LayerError("symbolic links lead in a circle, or through too many others")
        todo.extend(reversed(parts))
        return [self.root] if link.target.startswith(b"/") else above


def _header(path: bytes, node: LayerEntry, first_names: dict[int, bytes]) -> tarfile.TarInfo:
    info = tarfile.TarInfo(path.decode("utf-8", "surrogateescape"))
    info.mode, info.uid, info.gid, info.mtime = node.mode, node.uid, node.gid, node.mtime_s
    first = first_names.setdefault(id(node), path)
    if first is not path:
        info.type, info.linkname = tarfile.LNKTYPE, first.decode("utf-8", "surrogateescape")
        return info
    info.type = _TYPES[node.kind]
    info.size = node.size_bytes
    info.linkname = node.target.decode("utf-8", "surrogateescape")
    if node.capability:
        info.pax_headers = {CAPABILITY: node.capability.decode("utf-8", "surrogateescape")}
    return info


def _shown(path: EntryPath) -> str:
    return repr(printable(b"/".join(path)[:200]))


# In an emulated guest, lz4 reads as fast as plain data at half the size (design/policy.md).
SQUASHFS: Final = (
    *("-comp", "lz4", "-b", "128K", "-root-mode", "755"),
    *("-exit-on-error", "-no-progress", "-quiet"),
)


def pack(
    members: Iterable[tuple[tarfile.TarInfo, Iterable[bytes]]], into: Path, *, made_s: int
) -> None:
    """Pack headers and contents; equal members give equal bytes."""
    # It also ignores its options for the root directory's owner, who is who runs it.
    as_root = [] if os.geteuid() == 0 else [tool("unshare"), "--user", "--map-root-user", "--"]
    argv = [*as_root, tool("sqfstar"), *SQUASHFS, str(into)]
    # squashfs-tools 4.5 ignores its option for the root directory's time; this sets and caps all.
    env = plain_env(SOURCE_DATE_EPOCH=str(made_s))
    with started(argv, stdin=subprocess.PIPE, env=env) as process, drained(process) as complaint:
        if process.stdin is None:
            raise ValueError("the packer was started without an input")
        # If it ends early, its status and last words say why.
        with suppress(BrokenPipeError), process.stdin as sink:
            for info, chunks in members:
                form: Literal[1, 2] = tarfile.PAX_FORMAT if info.pax_headers else tarfile.GNU_FORMAT
                sink.write(info.tobuf(form, "utf-8", "surrogateescape"))
                written = sum(map(sink.write, chunks))
                if written != (info.size if info.isreg() else 0):
                    raise ValueError(f"an entry of {info.size} bytes gave {written}")
                sink.write(bytes(-written % tarfile.BLOCKSIZE))
            sink.write(bytes(2 * tarfile.BLOCKSIZE))
        status = process.wait()
    # Its status is the same for every failure: only its message says what to do next.
    if status != 0 and b"No space left" in complaint:
        what = "no space is left to pack the image"
        raise HostError(what, where=str(into.parent), hint=HINT_SPACE)
    if status != 0:
        raise failed(argv, status, bytes(complaint))
    into.chmod(0o444)
