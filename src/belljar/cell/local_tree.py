"""Trees of files on this host, copied into a cell or out of one.

A cell's output is hostile. Each entry is created by name in a directory held open, below a new one
that only this user can enter; the whole tree moves to its place at the end.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import posixpath
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.channel import FileTooLargeError
from belljar.channel.trees import RecordKind, TreeRecord, encode
from belljar.dataclass import dataclass
from belljar.events import JsonValue
from belljar.policy.files import Entry, Tree, link_stays, list_tree, open_regular

# Read at once; of a large file no more is in memory.
_PIECE_BYTES: Final = 256 << 10
_ROOT: Final = "tree"
# A link in place of a directory is refused, not followed.
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_EXCL: nothing that is there already, and no link, is written to.
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
KIND_NAMES: Final = {kind: kind.name.lower() for kind in RecordKind} | {
    RecordKind.ENTER: "directory"
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """A copy into a cell or out of one.

    Attributes:
        sha256: the digest of the recorded list of entries.
        skipped: paths left out by `skip_unsafe`.
    """

    files: int
    directories: int
    links: int
    total_bytes: int
    sha256: str
    skipped: tuple[str, ...] = ()

    def counts(self) -> dict[str, JsonValue]:
        return {
            "entries": self.files + self.directories + self.links,
            "files": self.files,
            "bytes": self.total_bytes,
            "sha256": self.sha256,
            "skipped": len(self.skipped),
        }


class TreeManifest:
    """One tree's entries: JSON lines sorted by path."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[TreeRecord, str]] = {}
        self.skipped: list[str] = []

    def add(self, record: TreeRecord, sha256: str = "") -> None:
        self._entries[record.path] = (record, sha256)

    def content(self) -> bytes:
        lines = list[str]()
        for path, (record, sha256) in sorted(self._entries.items()):
            line: dict[str, object] = {"path": path, "kind": KIND_NAMES[record.kind]}
            line |= {"mode": f"{record.mode:04o}", "bytes": record.size_bytes}
            line |= {"link": record.link} if record.kind is RecordKind.LINK else {}
            line |= {"sha256": sha256} if sha256 else {}
            lines.append(f"{json.dumps(line)}\n")
        return "".join(lines).encode()

    def transfer(self) -> Transfer:
        records = [record for record, _ in self._entries.values()]
        kinds = [record.kind for record in records]
        return Transfer(
            files=kinds.count(RecordKind.FILE),
            directories=kinds.count(RecordKind.ENTER),
            links=kinds.count(RecordKind.LINK),
            total_bytes=sum(record.size_bytes for record in records),
            sha256=hashlib.sha256(self.content()).hexdigest(),
            skipped=tuple(sorted(self.skipped)),
        )


# ---- into a cell


def list_source(path: Path, *, max_files: int, max_bytes: int) -> Tree:
    """List the copy's entries. It blocks, and raises as `Cell.upload`."""
    real = path.resolve(strict=True)
    # Nothing beside a directory can be reached by what its files become meanwhile
    root, name = (real, ".") if real.is_dir() else (real.parent, real.name)
    try:
        tree = list_tree(root, name, max_entries=max_files)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if tree.total_bytes > max_bytes:
        raise FileTooLargeError(str(path), max_bytes=max_bytes, size_bytes=tree.total_bytes)
    return tree


def records_of(tree: Tree, name: str, manifest: TreeManifest) -> Iterator[bytes]:
    """Yield a directory's records, or a file's as `name`. It blocks."""
    depth = 0
    if not tree.is_directory:
        yield from _file_records(tree, tree.entries[0], name, manifest)
        return
    # Its owner can always work in it
    manifest.add(TreeRecord(path="", kind=RecordKind.ENTER, mode=tree.entries[0].mode | 0o700))
    for entry in tree.entries[1:]:
        above = entry.path.count("/")
        while depth > above:
            yield encode(TreeRecord(path="", kind=RecordKind.LEAVE))
            depth -= 1
        if entry.kind == "file":
            yield from _file_records(tree, entry, entry.path, manifest)
            continue
        is_link = entry.kind == "link"
        record = TreeRecord(
            path=entry.path,
            kind=RecordKind.LINK if is_link else RecordKind.ENTER,
            # A link's own mode is always 0777 on Linux, and unused (symlink(7)).
            mode=0o777 if is_link else entry.mode | 0o700,
            link=entry.link,
        )
        manifest.add(record)
        yield encode(record)
        depth += not is_link
    yield encode(TreeRecord(path="", kind=RecordKind.LEAVE)) * depth


def _file_records(tree: Tree, entry: Entry, path: str, manifest: TreeManifest) -> Iterator[bytes]:
    record = TreeRecord(
        path=path, kind=RecordKind.FILE, mode=entry.mode, size_bytes=entry.size_bytes
    )
    manifest.add(record)
    yield encode(record)
    digest, left = hashlib.sha256(), entry.size_bytes
    name = posixpath.normpath(posixpath.join(tree.source, entry.path))
    with open_regular(tree.root, name) as fd:
        while left and (piece := os.read(fd, min(left, _PIECE_BYTES))):
            digest.update(piece)
            left -= len(piece)
            yield piece
        # A byte beyond the listed size is a change, too.
        if left or os.read(fd, 1):
            raise ValueError(f"{name} has changed its size while it was copied")
    manifest.add(record, digest.hexdigest())


async def fed(records: Iterator[bytes]) -> AsyncIterator[bytes]:
    def take() -> bytes:
        gathered = bytearray()
        for part in records:
            gathered += part
            if len(gathered) >= _PIECE_BYTES:
                break
        return bytes(gathered)

    while piece := await anyio.to_thread.run_sync(take):
        yield piece


# ---- out of a cell


class TreeDestination:
    """A cell's tree: `take`, then `place` or `discard` it."""

    def __init__(self, target: Path, *, overwrite: bool, skip_unsafe: bool) -> None:
        self.manifest = TreeManifest()
        self._target = target
        self._overwrite = overwrite
        self._skip_unsafe = skip_unsafe
        self._digest = hashlib.sha256()
        self._left = 0
        self._file: tuple[int, TreeRecord] | None = None
        above = target if target.is_dir() else target.parent
        # Beside its place: rename(2) can't cross file systems.
        self._stage = Path(tempfile.mkdtemp(prefix=".download-", dir=above))
        self._open = [(os.open(self._stage, _DIRECTORY), 0o700)]

    def take(self, items: Iterable[TreeRecord | bytes]) -> None:
        """Take the guest's next items. Raise `OSError`; `ValueError`: not accepted."""
        for item in items:
            if isinstance(item, TreeRecord):
                self._begin(item)
            else:
                self._write(item)

    def _begin(self, record: TreeRecord) -> None:
        name, at = record.name or _ROOT, self._open[-1][0]
        match record.kind:
            case RecordKind.FILE:
                fd = os.open(name, _NEW_FILE, 0o600, dir_fd=at)
                self._file, self._left = (fd, record), record.size_bytes
                self._digest = hashlib.sha256()
                # An empty file has no contents to wait for: it is closed here.
                self._write(b"")
            case RecordKind.ENTER:
                os.mkdir(name, 0o700, dir_fd=at)
                # A guest's mode gives nobody else write permission, and no set-user-ID or
                # set-group-ID bit.
                mode = record.mode & 0o755 | 0o700
                self._open.append((os.open(name, _DIRECTORY, dir_fd=at), mode))
                self.manifest.add(record)
            case RecordKind.LEAVE:
                fd, mode = self._open.pop()
                os.fchmod(fd, mode)
                os.close(fd)
            case RecordKind.LINK if link_stays(record.path, record.link):
                os.symlink(record.link, name, dir_fd=at)
                self.manifest.add(record)
            case _ if self._skip_unsafe:
                self.manifest.skipped.append(record.path)
            case _:
                what = "a link that may lead out" if record.link else "neither file nor directory"
                path = os.fsencode(record.path).decode("utf-8", "backslashreplace")
                raise ValueError(f"{path!r} is {what}; `skip_unsafe` leaves it out")

    def _write(self, piece: bytes) -> None:
        if self._file is None:
            raise RuntimeError("contents without a file")
        fd, record = self._file
        self._digest.update(piece)
        self._left -= len(piece)
        view = memoryview(piece)
        while view:
            # write(2) may take less than it is given.
            view = view[os.write(fd, view) :]
        if not self._left:
            os.fchmod(fd, record.mode & 0o755 | 0o600)
            os.close(fd)
            self._file = None
            self.manifest.add(record, self._digest.hexdigest())

    def files(self) -> Iterator[Path]:
        for directory, _, names in os.walk(self._stage):
            for name in names:
                path = Path(directory, name)
                if not path.is_symlink():
                    yield path

    def place(self) -> None:
        """Move it to its place. Raise `FileExistsError`."""
        made = self._stage / _ROOT
        is_there, is_directory = os.path.lexists(self._target), self._target.is_dir()
        if is_directory and made.is_dir():
            with (
                _directory(_ROOT, self._open[0][0]) as source,
                _directory(self._target, None, _DIRECTORY & ~os.O_NOFOLLOW) as target,
            ):
                # All are checked first: nothing is moved when one of them can't be.
                for move in (False, True):
                    _bring(source, target, move=move, overwrite=self._overwrite)
        elif is_there and (is_directory or made.is_dir() or not self._overwrite):
            code = errno.EISDIR if is_directory else errno.EEXIST
            raise OSError(code, os.strerror(code), str(self._target))
        else:
            made.replace(self._target)
        self.discard()

    def discard(self) -> None:
        if self._file is not None:
            os.close(self._file[0])
            self._file = None
        while self._open:
            os.close(self._open.pop()[0])
        with suppress(FileNotFoundError):
            shutil.rmtree(self._stage)


@contextmanager
def _directory(name: str | Path, at: int | None, flags: int = _DIRECTORY) -> Iterator[int]:
    fd = os.open(name, flags, dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)


def _bring(source: int, target: int, *, move: bool, overwrite: bool) -> None:
    """Move each entry, or only check for conflicts."""
    for name in os.listdir(source):
        mine = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
        try:
            there = os.stat(name, dir_fd=target, follow_symlinks=False).st_mode
        except FileNotFoundError:
            there = None
        if there is not None and stat.S_ISDIR(mine) and stat.S_ISDIR(there):
            with _directory(name, source) as inner, _directory(name, target) as other:
                _bring(inner, other, move=move, overwrite=overwrite)
            continue
        if there is not None and (not overwrite or stat.S_ISDIR(mine) or stat.S_ISDIR(there)):
            code = errno.EISDIR if stat.S_ISDIR(there) else errno.ENOTDIR
            code = code if overwrite else errno.EEXIST
            raise OSError(code, os.strerror(code), name)
        if move:
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
