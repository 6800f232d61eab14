"""Packs and unpacks tar archives that one machine sends to another that doesn't trust it.

Only regular files are sent, by relative names. `unpack` uses the reader of hostile image layers,
within bounds, and writes into a new directory that only this user can enter.
"""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from belljar.dataclass import dataclass
from belljar.errors import LedgerError, PolicyError
from belljar.image.layers import LayerError
from belljar.image.layers.headers import ImageEntryKind, read_entries
from belljar.ledger.files import open_beneath, open_directory, walk_files

PIECE_BYTES: Final = 4 << 20
MAX_ENTRIES: Final = 500_000
MAX_ARCHIVE_BYTES: Final = 32 << 30
MAX_TASK_BYTES: Final = 256 << 20
MAX_TASK_FILES: Final = 20_000
# Inspect reads a member of a log into memory whole, and a whole log when logs are merged.
MAX_MEMBER_BYTES: Final = 256 << 20
MAX_LOG_BYTES: Final = 2 << 30
# Never sent: secrets stay on the head, and the rest is made anew.
NOT_SENT: Final = frozenset(
    {".env", ".git", ".venv", "venv", "__pycache__", "node_modules", "logs", ".mypy_cache"}
)


def pack(directory: Path, names: Iterator[str] | None = None) -> Iterator[bytes]:
    """Yield a directory's files, or those named, as a tar stream in pieces.

    Raises `OSError`, `LedgerError` for a link.
    """
    gathered = bytearray()
    with open_directory(directory) as root:
        for name in walk_files(root) if names is None else names:
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


def pack_task(directory: Path) -> bytes:
    """Return the files of a task as a tar archive. Raises `PolicyError` for too many, `OSError`."""
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
    return b"".join(pack(directory, iter(names)))


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
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    source = _Archive(file.fileno())
    for entry in read_entries(source, os.fstat(source.fd).st_size, MAX_ENTRIES):
        name = b"/".join(entry.path).decode("utf-8", "strict")
        if entry.kind is not ImageEntryKind.FILE or not name.isprintable():
            raise LayerError("it holds something else than plain files with plain names")
        if not name.startswith(only):
            continue
        path, offset, left = into.joinpath(*Path(name).parts), entry.offset, entry.size_bytes
        # Each directory was made here, where nobody else can enter: none is a link.
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(path, flags, 0o600), "wb") as out:
            while left:
                piece = source.pread(min(left, PIECE_BYTES), offset)
                out.write(piece)
                offset, left = offset + len(piece), left - len(piece)


def check_log(path: Path) -> None:
    """Raise `LedgerError` for a log that Inspect would expand to more than is accepted.

    A guest's output may compress well. The sizes are those that Inspect wrote on the node: one that
    lies about them has Ray's means to harm the head, which are greater.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as log:
                sizes = [member.file_size for member in log.infolist()]
        else:
            sizes = [path.stat().st_size]
    except zipfile.BadZipFile as error:
        raise LedgerError(f"Inspect's log is refused: {error}", where=path.name) from error
    if max(sizes, default=0) > MAX_MEMBER_BYTES or sum(sizes) > MAX_LOG_BYTES:
        what = "Inspect's log is refused: it expands to more than is accepted"
        raise LedgerError(what, where=path.name)
