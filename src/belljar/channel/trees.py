"""Trees of files as records, in both directions.

An entered directory is followed by its entries and by a record that leaves it. So each name is one
component, and nothing can be outside of the first entry.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Awaitable, Callable, Iterator
from enum import IntEnum
from typing import Final, NoReturn

from belljar.channel import frames
from belljar.channel.client import GuestClient
from belljar.channel.frames import FrameType, OpKind, Outcome, violated
from belljar.channel.operations import judge
from belljar.channel.outcomes import captures
from belljar.dataclass import dataclass

# Of directories in each other, counted from the one that is walked.
MAX_DEPTH: Final = 64
# Of a path below the one that is walked.
MAX_PATH_BYTES: Final = 4_096
# Kind, mode, size, time in seconds and nanoseconds, lengths of the name and of the link.
_HEAD: Final = struct.Struct("<BHQqIHH")
# NAME_MAX and PATH_MAX of Linux: what is longer was never a name there.
_MAX_NAME_BYTES: Final = 255
_MAX_LINK_BYTES: Final = 4_095
# Permissions with set-user-ID, set-group-ID and sticky: what kind a file is stands apart.
_MAX_MODE: Final = 0o7777
# Linux's loff_t.
_MAX_SIZE: Final = (1 << 63) - 1
# What a number in the ledger may be.
MAX_COUNT: Final = (1 << 53) - 1
# Characters of all paths and links of one walk: on this host each may take many bytes.
_MAX_PATHS: Final = 8 << 20
_NS: Final = 1_000_000_000


class RecordKind(IntEnum):
    """`ENTER` is a directory whose entries follow until its `LEAVE`."""

    FILE = 1
    DIRECTORY = 2
    LINK = 3
    OTHER = 4
    ENTER = 5
    LEAVE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeRecord:
    """One entry, as the guest says; `path` begins at the walked one."""

    path: str
    kind: RecordKind
    mode: int = 0
    size_bytes: int = 0
    mtime_s: float = 0.0
    link: str = ""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


def encode(record: TreeRecord) -> bytes:
    """Return a record; its time is in whole seconds."""
    name, link = os.fsencode(record.name), os.fsencode(record.link)
    head = (record.kind, record.mode, record.size_bytes, int(record.mtime_s), 0)
    return _HEAD.pack(*head, len(name), len(link)) + name + link


def stream_bytes(*, max_entries: int, max_bytes: int) -> int:
    return max_bytes + (max_entries + 1) * (2 * _HEAD.size + _MAX_NAME_BYTES + _MAX_LINK_BYTES)


class TreeReader:
    """Takes a walk's bytes; yields records, and contents as `bytes` in pieces.

    Raise `ProtocolViolation` for what our agent never sends, `OSError(E2BIG)` for long paths.
    """

    def __init__(self, *, contents: bool, depth: int, max_entries: int, max_bytes: int) -> None:
        self._contents = contents
        self._depth = depth
        self._entries_left = max_entries
        self._bytes_left = max_bytes
        self._paths_left = _MAX_PATHS
        self._pending = bytearray()
        self._file_left = 0
        self._directories: list[str] = []
        self._begun = self._over = False

    def feed(self, data: bytes) -> Iterator[TreeRecord | bytes]:
        """Yield what these bytes complete; exhaust it first."""
        self._pending += data
        while self._pending:
            if self._file_left:
                piece = bytes(self._pending[: self._file_left])
                del self._pending[: len(piece)]
                self._file_left -= len(piece)
                yield piece
            elif (record := self._take_record()) is not None:
                yield record
            else:
                return

    def finish(self) -> None:
        if self._pending or self._file_left or not self._over:
            _violated("a walk that ends early")

    def _take_record(self) -> TreeRecord | None:
        if self._over:
            _violated("a walk that goes on after its end")
        if len(self._pending) < _HEAD.size:
            return None
        kind, mode, size, mtime_s, mtime_ns, name_size, link_size = _HEAD.unpack_from(self._pending)
        if name_size > _MAX_NAME_BYTES or link_size > _MAX_LINK_BYTES:
            _violated(f"a name of {name_size} or a link of {link_size} bytes")
        if len(self._pending) < _HEAD.size + name_size + link_size:
            return None
        name = bytes(self._pending[_HEAD.size : _HEAD.size + name_size])
        link = bytes(self._pending[_HEAD.size + name_size : _HEAD.size + name_size + link_size])
        del self._pending[: _HEAD.size + name_size + link_size]
        if kind not in RecordKind.__members__.values() or mode > _MAX_MODE or mtime_ns >= _NS:
            _violated(f"an entry of kind {kind}, mode {mode:#o}")
        if bool(link) != (kind == RecordKind.LINK) or b"\0" in link:
            _violated(f"an entry of kind {kind} with a link of {len(link)} bytes")
        if size > (_MAX_SIZE if kind == RecordKind.FILE else 0):
            _violated(f"an entry of kind {kind} with {size} bytes")
        record = TreeRecord(
            path=self._path(RecordKind(kind), name),
            kind=RecordKind(kind),
            mode=mode,
            size_bytes=size,
            mtime_s=mtime_s + mtime_ns / _NS,
            link=os.fsdecode(link),
        )
        self._follow(record)
        # A short name in a deep directory is a long path here: the bytes sent don't bound it.
        self._paths_left -= len(record.path) + len(record.link)
        if self._paths_left < 0:
            what = f"names and links of more than {_MAX_PATHS:,} characters in all"
            raise OSError(errno.E2BIG, what)
        return record

    def _path(self, kind: RecordKind, name: bytes) -> str:
        if kind is RecordKind.LEAVE:
            if name or not self._directories:
                _violated("the end of a directory that was not entered")
            return self._directories[-1]
        if not self._begun:
            if name:
                _violated("a name for the entry that was asked for")
            return ""
        # Else a hostile guest's name would lead out of the directory that the tree is put into.
        if not name or name in (b".", b"..") or b"/" in name or b"\0" in name:
            _violated(f"the name {name!r}")
        above = self._directories[-1]
        path = f"{above}/{os.fsdecode(name)}" if above else os.fsdecode(name)
        if len(os.fsencode(path)) > MAX_PATH_BYTES:
            what = os.strerror(errno.ENAMETOOLONG)
            raise OSError(errno.ENAMETOOLONG, what, path[:_MAX_NAME_BYTES])
        return path

    def _follow(self, record: TreeRecord) -> None:
        first = (RecordKind.FILE, RecordKind.ENTER)
        skipped = self._contents and record.kind is RecordKind.DIRECTORY
        if skipped or (self._contents and not self._begun and record.kind not in first):
            _violated(f"an entry of kind {record.kind} in a tree with contents")
        self._begun = True
        if record.kind is RecordKind.LEAVE:
            self._directories.pop()
        else:
            self._entries_left -= 1
        if record.kind is RecordKind.ENTER:
            self._directories.append(record.path)
        if self._contents and record.kind is RecordKind.FILE:
            self._file_left = record.size_bytes
            self._bytes_left -= record.size_bytes
        if self._entries_left < 0 or self._bytes_left < 0 or len(self._directories) > self._depth:
            _violated("more files, bytes or levels than were asked for")
        self._over = not self._directories


def _violated(what: str) -> NoReturn:
    violated(what, FrameType.DATA, 0)


TakeItems = Callable[[Iterator[TreeRecord | bytes]], Awaitable[None]]
_FOLLOW, _CONTENTS = 1, 2  # of a walk
_WALK_BOUNDS: Final = struct.Struct("<IQQQ")
# A removal answers with a u64.
_COUNT_BYTES = 8


async def walk(
    client: GuestClient,
    path: str,
    take: TakeItems,
    *,
    user: str,
    cwd: str,
    depth: int,
    follow: bool = True,
    contents: bool = False,
    max_entries: int,
    max_bytes: int = 0,
    timeout_s: float | None = None,
) -> None:
    """Hand the records to `take`. Raise as `read_file`, and `OSError(E2BIG)`."""
    allowed = max_entries + (depth == 1)  # the directory itself is not one of those it holds
    flags = (_FOLLOW if follow else 0) | (_CONTENTS if contents else 0)
    cap = stream_bytes(max_entries=allowed, max_bytes=max_bytes)
    body = frames.place(user, cwd, path, flags) + frames.pack(
        _WALK_BOUNDS, depth, allowed, max_bytes, cap
    )
    reader = TreeReader(contents=contents, depth=depth, max_entries=allowed, max_bytes=max_bytes)
    operating = client.operation(OpKind.WALK, body, timeout_s, stdout=cap)
    async with client.own_reads.of(path, cwd, is_tree=contents), operating as operation:
        while (chunk := await operation.next_chunk()) is not None:
            await take(reader.feed(chunk[1]))
        result = operation.ended()
        if result.outcome is Outcome.IO_FAILED and result.code == errno.E2BIG:
            raise OSError(errno.E2BIG, f"more than {max_entries:,} files and directories", path)
        judge(operation, path, timeout_s, max_bytes)
    reader.finish()


async def remove(
    client: GuestClient,
    path: str,
    *,
    user: str,
    cwd: str,
    recursive: bool,
    timeout_s: float | None = None,
) -> int:
    """Remove a path; return its entry count."""
    body = frames.place(user, cwd, path, int(recursive))
    async with client.operation(OpKind.REMOVE, body, timeout_s, stdout=_COUNT_BYTES) as operation:
        operation.kept = captures(_COUNT_BYTES)
        await operation.wait()
        judge(operation, path, timeout_s)
    raw = operation.output().stdout
    if len(raw) != _COUNT_BYTES:
        _violated(f"a count of {len(raw)} bytes")
    if (removed := int.from_bytes(raw, "little")) > MAX_COUNT:
        _violated("a count that can't be")
    return removed
