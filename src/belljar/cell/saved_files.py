"""The files of a container in use, as tar in the cell packs them, for another cell of its policy.

What is packed is the cell's word and never read here: it goes to the tar of another cell alone,
where that cell's limits hold. Not kept: /dev/shm, extended attributes, and what is the cell's own
(`_OWN`).
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterable, AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import anyio
import anyio.to_thread

from belljar.cell.range import FileClock
from belljar.channel import ExecRequest, Stream
from belljar.errors import CellError, HostError
from belljar.store.home import HINT_SPACE
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.channel.outcomes import ExecOutput

_OWN: Final = frozenset(
    b"./" + name
    for name in b"proc dev sys etc/hostname etc/hosts etc/machine-id etc/resolv.conf".split()
)
_FIND: Final = ("find", ".", "./tmp", "-xdev", "-ignore_readdir_race")  # gVisor's /tmp is a mount
_MAX_NAMES_BYTES: Final = 64 << 20
_MAX_NAMES: Final = 1_000_000
_PACKING: Final = 2  # a file of no bytes takes a kilobyte in an archive
_CHUNK_BYTES: Final = 1 << 20
_MAX_SOUGHT: Final = 4  # values of a decoy: a copy that was made without reading it has all of them
_MAX_VALUE_BYTES: Final = 4096
_STEP_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedFiles:
    """Packed files, and the names of all that there were; `key` is of image and tier."""

    directory: Path
    key: str
    digest: str
    size_bytes: int

    async def put_into(self, cell: Cell) -> None:
        """Make the files of a fresh cell those that were saved.

        Raises `CellError` when they were changed on disk or deleted, or don't fit; `HostError` for
        another image.
        """
        if self.key != key_of(cell):
            raise HostError(
                "the snapshot was taken with another image or tier",
                where=f"cell {cell.id}",
                hint="take another snapshot",
            )
        try:
            digest, names = await anyio.to_thread.run_sync(_read, self.directory)
        except OSError as error:
            what = f"the snapshot can't be read: {error.strerror}"
            raise CellError(what, where=str(self.directory)) from error
        if digest != self.digest:
            what = "the snapshot was changed on disk: nothing is made of it"
            raise CellError(what, where=str(self.directory))
        if gone := await _names(cell) - names - _OWN:
            await _run(cell, "xargs", "-0", "rm", "-rf", "--", given=b"\0".join(gone))
        packed = _pieces(self.directory / "files")
        await _run(cell, "tar", "-xpf", "-", "--numeric-owner", given=packed)


def key_of(cell: Cell) -> str:
    """What a cell's files go on with alone."""
    image = "" if cell.plan.image is None else cell.plan.image.digest
    return hashlib.sha256(f"{cell.tier} {image}".encode()).hexdigest()


async def save_files(cell: Cell, directory: Path, *, since: FileClock) -> SavedFiles:
    """Pack what was changed since, by the kernel's word. Processes go on, and may write meanwhile.

    Raises `BusyError`; `CellError` when the image lacks GNU find or tar, or there is more than the
    policy's disk; `HostError`: no space, or this host's clock was set back.
    """
    cell._live.client.check_idle()
    if FileClock.now().offset_ns < since.offset_ns - _STEP_NS:
        what = "this host's clock was set back, so that it is unknown which files were changed"
        raise HostError(what, where=f"cell {cell.id}", hint="revert the cell, and save that")
    names = await _names(cell)
    changed = await _names(cell, "-newerct", f"@{since.ns // 10**9}.{since.ns % 10**9:09}") - _OWN
    # A fork gets its own in their place
    changed -= {b"." + file.path.encode() for decoy in cell.decoys for file in decoy.files}
    packing = ("tar", "--no-recursion", "--numeric-owner", "--null", "-cf", "-", "-T", "-")
    try:
        (directory / "names").write_bytes(b"\0".join(sorted(names)))
        with (directory / "files").open("xb") as file:
            await _run(
                cell,
                *packing,
                given=b"\0".join(sorted(changed)),
                taken=partial(_take, cell, file, bytearray()),
                max_bytes=_PACKING * cell.plan.limits.disk_bytes + _MAX_NAMES_BYTES,
                allowed=(0, 1),  # 1: a file changed while it was read
            )
        digest, _ = await anyio.to_thread.run_sync(_read, directory)
        size_bytes = (directory / "files").stat().st_size
    except OSError as error:
        what = f"a snapshot can't be written: {error.strerror}"
        raise HostError(what, where=str(directory.parent), hint=HINT_SPACE) from error
    return SavedFiles(directory=directory, key=key_of(cell), digest=digest, size_bytes=size_bytes)


async def _names(cell: Cell, *tests: str) -> frozenset[bytes]:
    found = await _run(cell, *_FIND, *tests, "-print0", max_bytes=_MAX_NAMES_BYTES)
    if found.stdout.count(b"\0") > _MAX_NAMES:  # as objects they take much more than as bytes
        raise CellError(f"the cell has more than {_MAX_NAMES} files", where=f"cell {cell.id}")
    return frozenset(found.stdout.split(b"\0")) - {b""}


async def _run(
    cell: Cell,
    *argv: str,
    given: bytes | AsyncIterable[bytes] = b"",
    taken: Callable[[bytes], object] | None = None,
    max_bytes: int = 0,
    allowed: tuple[int, ...] = (0,),
) -> ExecOutput:
    """Run a program of the image's as root; `taken` gets what it writes."""
    request = ExecRequest(
        argv=argv,
        cwd="/",
        user="0:0",
        timeout_s=cell.plan.limits.exec_timeout_s,
        max_stdout_bytes=max_bytes,
        max_stderr_bytes=64 << 10,
    )

    def see(stream: Stream, chunk: bytes) -> None:
        if stream is Stream.STDOUT and taken is not None:
            taken(chunk)

    outcome = await cell._live.client.exec(
        request, input=given, keep_bytes=4096 if taken else max(max_bytes, 4096), on_output=see
    )
    is_cut = taken is None and outcome.stdout_dropped_bytes
    if outcome.returncode not in allowed or outcome.output_cap_reached or is_cut:
        said = printable(outcome.stderr, max_chars=200) or outcome.detail or "too much to keep"
        raise CellError(
            f"the cell's files can't be moved: {argv[0]}: {said}",
            where=f"cell {cell.id}",
            hint="the image needs GNU find, xargs and tar; the files must fit the policy's disk",
        )
    return outcome


def _take(cell: Cell, file: BinaryIO, last: bytearray, chunk: bytes) -> None:
    """Keep what is packed, and see what else than the decoys' files has their values."""
    file.write(chunk)
    last += chunk
    for decoy in cell.decoys:
        if any(value.text.encode() in last for value in decoy.values[:_MAX_SOUGHT]):
            cell.seen_decoys.add(decoy.id)
    del last[:-_MAX_VALUE_BYTES]


def _read(directory: Path) -> tuple[str, frozenset[bytes]]:
    names, hasher = (directory / "names").read_bytes(), hashlib.sha256()
    hasher.update(len(names).to_bytes(8, "little") + names)
    with (directory / "files").open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest(), frozenset(names.split(b"\0"))


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await anyio.to_thread.run_sync(file.read, _CHUNK_BYTES):
            yield chunk
