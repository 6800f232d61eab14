"""Directories as tar archives: packed on one machine, unpacked on another that doesn't trust it.

Only regular files travel, by relative names. What is unpacked is read by the reader of hostile
image layers, within bounds, into a new directory that only this user can enter.
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from belljar.dataclass import dataclass
from belljar.errors import LedgerError, PolicyError
from belljar.image.layers import LayerError
from belljar.image.layers.headers import EntryKind, read_entries
from belljar.ledger.files import Directory, open_beneath, open_directory, walk_files, write_all

PIECE_BYTES: Final = 4 << 20
MAX_ENTRIES: Final = 500_000
MAX_ARCHIVE_BYTES: Final = 32 << 30
MAX_TASK_BYTES: Final = 256 << 20
MAX_TASK_FILES: Final = 20_000
# Never sent: secrets stay on the head, and the rest is made anew.
NOT_SENT: Final = frozenset(
    {".env", ".git", ".venv", "venv", "__pycache__", "node_modules", "logs", ".mypy_cache"}
)


def pack_run(directory: Path) -> Iterator[bytes]:
    """A run directory as a tar stream, in pieces. Raises `OSError`, `LedgerError` for a link."""
    with open_directory(directory) as root:
        yield from _packed(root, walk_files(root))


def pack_task(directory: Path) -> bytes:
    """The files of a task. Raises `PolicyError` for too many, `OSError`."""
    names: list[str] = []
    size = 0
    for folder, inner, files in os.walk(directory):
        inner[:] = sorted(name for name in inner if name not in NOT_SENT)
        for name in sorted(files):
            path = Path(folder, name)
            if name in NOT_SENT or not stat.S_ISREG((status := path.lstat()).st_mode):
                continue
            names.append(str(path.relative_to(directory)))
            size += status.st_size
        if len(names) > MAX_TASK_FILES or size > MAX_TASK_BYTES:
            raise PolicyError(
                f"the task's directory has more than {MAX_TASK_FILES:,} files or "
                f"{MAX_TASK_BYTES >> 20} MiB, which is all sent to each node",
                where=str(directory),
                hint="put the task's file into a directory of its own, beside only what it reads",
            )
    with open_directory(directory) as root:
        return b"".join(_packed(root, iter(names)))


def _packed(root: Directory, names: Iterator[str]) -> Iterator[bytes]:
    gathered = bytearray()
    for name in names:
        with open_beneath(root, name) as file:
            info = tarfile.TarInfo(name)
            left = info.size = os.fstat(file.fileno()).st_size
            info.mode = 0o600
            gathered += info.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
            padding = -left % tarfile.BLOCKSIZE
            while left:
                piece = file.read(min(left, PIECE_BYTES))
                if not piece:
                    raise LedgerError("it became shorter while it was read", where=name)
                left -= len(piece)
                gathered += piece
                if len(gathered) >= PIECE_BYTES:
                    yield bytes(gathered)
                    gathered.clear()
            gathered += bytes(padding)
    yield bytes(gathered) + bytes(2 * tarfile.BLOCKSIZE)


@dataclass(frozen=True, slots=True)
class _Archive:
    fd: int

    def pread(self, count: int, offset: int) -> bytes:
        return os.pread(self.fd, count, offset)


def unpack(file: IO[bytes], into: Path, *, only: str = "") -> None:
    """Unpack a hostile archive into `into`, which is made; `only`: names that begin so.

    Raises `LayerError` for anything but regular files within the bounds, `OSError`.
    """
    into.mkdir(mode=0o700)
    source = _Archive(file.fileno())
    for entry in read_entries(source, os.fstat(source.fd).st_size, MAX_ENTRIES):
        name = b"/".join(entry.path).decode("utf-8", "strict")
        if entry.kind is not EntryKind.FILE or not name.isprintable():
            raise LayerError("it holds something else than plain files with plain names")
        if name.startswith(only):
            _write(source, entry.offset, entry.size_bytes, into.joinpath(*Path(name).parts))


def _write(source: _Archive, offset: int, left: int, path: Path) -> None:
    # Each directory was made here, in a directory that nobody else can enter: none is a link.
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        while left:
            piece = source.pread(min(left, PIECE_BYTES), offset)
            write_all(fd, piece)
            offset, left = offset + len(piece), left - len(piece)
    finally:
        os.close(fd)
