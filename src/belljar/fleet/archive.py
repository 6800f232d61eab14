"""Packs and unpacks tar archives between machines that don't trust each other.

Only regular files are sent. `unpack` uses the reader of hostile image layers, within bounds.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import tarfile
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Final, cast

from belljar.dataclass import dataclass
from belljar.errors import LedgerError, PolicyError
from belljar.image.layers import ImageEntryKind, LayerError, read_entries
from belljar.ledger.files import open_beneath, open_directory, walk_files

PIECE_BYTES: Final = 4 << 20  # so much of an archive is in memory; a queue of Ray's holds four
# A run has a file for each large body; an index of more would fill the head's memory.
MAX_ENTRIES: Final = 500_000
# Packets of a long unit take gigabytes; the head's disk holds those of all units.
MAX_ARCHIVE_BYTES: Final = 32 << 30
MAX_TASK_BYTES: Final = 256 << 20  # it is held in memory, and sent whole to each node
MAX_TASK_FILES: Final = 20_000
# Inspect reads a member of a log into memory whole, and a whole log when logs are merged.
MAX_MEMBER_BYTES: Final = 256 << 20
# Of all members of one log together, as the head holds them while it merges.
MAX_LOG_BYTES: Final = 2 << 30
# Some 46 bytes and a name for each member; a log has one member for each sample.
MAX_LOG_INDEX_BYTES: Final = 16 << 20
# Never sent: secrets stay on the head, and the rest is made anew.
NOT_SENT: Final = frozenset(
    {".env", ".git", ".venv", "venv", "__pycache__", "node_modules", "logs", ".mypy_cache"}
)
# Of a zip file: its end, a member in its index, and the lengths in a member's own header.
_END: Final = struct.Struct("<4s4H2IH")
_ENTRY: Final = struct.Struct("<4s6H3I5H2I")
_OWN: Final = struct.Struct("<26x2H")


def pack(directory: Path, names: Iterator[str] | None = None) -> Iterator[bytes]:
    gathered = bytearray()
    with open_directory(directory) as root:
        for name in walk_files(root) if names is None else names:
            with open_beneath(root, name) as file:
                info = tarfile.TarInfo(name)
                left = info.size = os.fstat(file.fileno()).st_size
                info.mode = 0o600  # the sender's means nothing: `unpack` gives this one
                # File names are bytes: one that isn't UTF-8 is sent, and `unpack` refuses it.
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
    # Two blocks of zeros end a tar archive; by them `is_whole` knows that nothing was cut off.
    yield bytes(gathered) + bytes(2 * tarfile.BLOCKSIZE)


def pack_task(directory: Path) -> bytes:
    """Raises `PolicyError` for too many files, `OSError`."""
    names: list[str] = []
    size = 0
    for folder, inner, files in os.walk(directory):
        # In place, so that `os.walk` skips the others; sorted, for an equal digest.
        inner[:] = sorted(name for name in inner if name not in NOT_SENT)
        for name in sorted(files):
            path = Path(folder, name)
            # A link may lead out of the task's directory.
            if name in NOT_SENT or not stat.S_ISREG((status := path.lstat()).st_mode):
                continue
            names.append(str(path.relative_to(directory)))
            size += status.st_size
        # Within the walk: a home directory that was given by mistake isn't read to its end.
        if len(names) > MAX_TASK_FILES or size > MAX_TASK_BYTES:
            most = f"{MAX_TASK_FILES:,} files or {MAX_TASK_BYTES >> 20} MiB"
            what = f"the task's directory, which is sent to each node, has more than {most}"
            hint = "put the task's file into a directory of its own, beside only what it reads"
            raise PolicyError(what, where=str(directory), hint=hint)
    return b"".join(pack(directory, iter(names)))


def unpack(file: IO[bytes], into: Path, *, only: str = "") -> None:
    """Unpack a hostile archive into `into`, which is made; `only`: names that begin so.

    Raises `LayerError` for anything but regular files within the bounds, `OSError`.
    """
    into.mkdir(mode=0o700)
    # With O_EXCL an archive that names one file twice is refused: the second replaces nothing.
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = file.fileno()
    for entry in read_entries(partial(os.pread, fd), os.fstat(fd).st_size, MAX_ENTRIES):
        name = b"/".join(entry.path).decode("utf-8", "strict")
        # Names are shown in terminals: control characters are refused with everything but files.
        if entry.kind is not ImageEntryKind.FILE or not name.isprintable():
            raise LayerError("it holds something else than plain files with plain names")
        if not name.startswith(only):
            continue
        path, offset, left = into.joinpath(*Path(name).parts), entry.offset, entry.size_bytes
        # Each directory was made here, where nobody else can enter: none is a link.
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = os.open(path, flags, 0o600)
        except (FileExistsError, NotADirectoryError) as error:
            raise LayerError("it names one file twice, or a file as a directory") from error
        except OSError as error:
            # With this directory before it, a name that a layer may have can be too long here.
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise LayerError("it has a name that is too long here") from error
        with os.fdopen(made, "wb") as out:
            while left:
                piece = os.pread(fd, min(left, PIECE_BYTES), offset)
                out.write(piece)
                offset, left = offset + len(piece), left - len(piece)


def check_log(path: Path) -> None:
    """Raise `LedgerError` for a log that Inspect would expand to more than is accepted.

    It finds members as Inspect does, reads them piece by piece, and trusts no size in the file.
    """
    try:
        with path.open("rb") as file:
            if path.suffix == ".eval" or file.read(4) == b"PK\x03\x04":
                _check_members(file)
            elif file.seek(0, os.SEEK_END) > MAX_MEMBER_BYTES:
                raise ValueError("it is too large")
    except (ValueError, struct.error, zlib.error) as error:
        raise LedgerError(f"Inspect's log is refused: {error}", where=path.name) from error


def _check_members(file: IO[bytes]) -> None:
    end = file.seek(0, os.SEEK_END) - _END.size
    file.seek(max(0, end))
    magic, *numbers, size, offset, comment = _END.unpack(file.read())
    # With these two readers could find two indexes: in a comment, or by a record of 64 bits.
    if magic != b"PK\x05\x06" or comment or 0xFFFF in numbers or 0xFFFFFFFF in (size, offset):
        raise ValueError("its end is not that of a plain zip file")
    if size > MAX_LOG_INDEX_BYTES or offset + size > end:
        raise ValueError("its index is too large")
    file.seek(offset)
    index, at, total, read_bytes = file.read(size), 0, 0, 0
    while at < len(index):
        magic, *fields = _ENTRY.unpack_from(index, at)
        method, packed, plain, place = fields[3], fields[7], fields[8], fields[15]
        if magic != b"PK\x01\x02" or 0xFFFFFFFF in (packed, plain, place):
            raise ValueError("its index is not that of a plain zip file")
        # The member's name, its extra fields and its comment follow its entry.
        at += _ENTRY.size + sum(fields[9:12])
        # Packed bytes may expand to nothing, and many members may share them: that takes hours.
        if (read_bytes := read_bytes + packed) > end:
            raise ValueError("its members overlap")
        file.seek(place)
        # Its own header has lengths of its own, which may differ from those in the index.
        file.seek(sum(_OWN.unpack(file.read(_OWN.size))), os.SEEK_CUR)
        seen = 0
        for piece in _expanded(_Member(file, packed), method):
            seen, total = seen + len(piece), total + len(piece)
            if seen > MAX_MEMBER_BYTES or total > MAX_LOG_BYTES:
                raise ValueError("it expands to more than is accepted")


@dataclass(slots=True)
class _Member:
    file: IO[bytes]
    left: int

    def read(self, size: int = PIECE_BYTES) -> bytes:
        piece = self.file.read(min(self.left, size))
        self.left -= len(piece)
        return piece


def _expanded(member: _Member, method: int) -> Iterator[bytes]:
    """Yield a member's contents in bounded pieces. Raises `ValueError`."""
    if method == 93:  # the methods' numbers are those of PKWARE's APPNOTE, 4.4.5
        from zstandard import ZstdDecompressor, ZstdError

        source = cast("IO[bytes]", member)
        try:
            # A member may be several frames, and the later ones count.
            reader = ZstdDecompressor().stream_reader(source, read_across_frames=True)
            while piece := reader.read(PIECE_BYTES):
                yield piece
        except ZstdError as error:
            raise ValueError(str(error)) from error
    elif method == 8:
        # Negative: in a zip file a deflate stream has no zlib header.
        inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        # What the bound on its output left unread comes before new bytes.
        while not inflater.eof and (piece := inflater.unconsumed_tail or member.read()):
            yield inflater.decompress(piece, PIECE_BYTES)
    elif method == 0:
        while piece := member.read():
            yield piece
    else:
        raise ValueError("it is packed by another method than Inspect's")
