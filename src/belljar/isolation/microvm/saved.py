"""A machine's memory and device state on disk, taken from a running clone: what forks begin from.

Files are as a template's, so that `clone` makes a machine of either. `stream`: the way there.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from belljar.channel.client import BusyError
from belljar.errors import CellError, HostError
from belljar.isolation.microvm.stream import save_stopped
from belljar.isolation.microvm.template import Template, find_key
from belljar.isolation.program_root import file_stamp
from belljar.store.home import HINT_SPACE

if TYPE_CHECKING:
    from belljar.image.kernel import Kernel
    from belljar.image.store import Image
    from belljar.isolation.microvm.vmm import Vmm
    from belljar.plan.model import MicrovmPlan


class MachineLostError(CellError):
    """The machine didn't go on, or its VMM can't be relied on: it was ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedMachine:
    """A saved machine; `key` is that of the plan's template where and when it was saved."""

    directory: Path
    key: str
    memory_digest: str
    memory_stamp: tuple[int, ...]
    state_digest: str
    size_bytes: int

    @property
    def digest(self) -> str:
        """Of all of it."""
        return hashlib.sha256(f"{self.memory_digest} {self.state_digest}".encode()).hexdigest()

    def load(self, plan: MicrovmPlan, image: Image, kernel: Kernel, *, home: Path) -> Template:
        """What a machine of this plan is made from, checked. Blocking.

        Raises `CellError` when it was changed or deleted; `HostError` when a machine of this plan
        would be another one here and now.
        """
        key, root = find_key(plan, image, kernel, home)
        if key != self.key:
            raise HostError(
                "the snapshot was taken with another QEMU, processor, kernel, image or limits",
                where=str(self.directory),
                hint="take another snapshot: this one can't be used any more",
            )
        memory = self.directory / "memory"
        try:
            state = (self.directory / "state").read_bytes()
            is_same = hashlib.sha256(state).hexdigest() == self.state_digest
            is_same = is_same and tuple(file_stamp(memory)) == self.memory_stamp
        except OSError as error:
            raise CellError(
                f"the snapshot can't be read: {error.strerror}",
                where=str(self.directory),
                hint="a snapshot ends with its run",
            ) from error
        if not is_same:
            raise CellError(
                "the snapshot was changed on disk: nothing is made of it",
                where=str(self.directory),
                hint="find out who writes to this store; take another snapshot",
            )
        return Template(key=key, memory=memory, state=state, root=root)


async def save_machine(vmm: Vmm, directory: Path, key: str) -> SavedMachine:
    """Save the machine, which stands still meanwhile and goes on.

    Raises:
        HostError: no space; the machine goes on.
        BusyError: a command runs; the machine goes on.
        MachineLostError: it doesn't.
    """
    memory = directory / "memory"
    try:
        async with vmm.client.frozen():
            state = await _stopped(vmm, memory)
        return await anyio.to_thread.run_sync(_finish, directory, state, key)
    except BusyError:
        raise
    except CellError as error:
        vmm.kill()
        raise MachineLostError(error.what, where=error.where, hint=error.hint) from error
    except OSError as error:
        is_full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
        what = "no space for a snapshot" if is_full else "a snapshot can't be written"
        raise HostError(
            f"{what}: {error.strerror}", where=str(directory.parent), hint=HINT_SPACE
        ) from error


async def _stopped(vmm: Vmm, memory: Path) -> bytes:
    await vmm.qmp.execute("stop")
    try:
        return await save_stopped(vmm, memory)
    finally:
        with anyio.CancelScope(shield=True):
            await vmm.qmp.execute("cont")


def _finish(directory: Path, state: bytes, key: str) -> SavedMachine:
    memory = directory / "memory"
    memory.chmod(0o444)
    (directory / "state").write_bytes(state)
    return SavedMachine(
        directory=directory,
        key=key,
        memory_digest=digest_memory(memory),
        memory_stamp=tuple(file_stamp(memory)),
        state_digest=hashlib.sha256(state).hexdigest(),
        size_bytes=memory.stat().st_blocks * 512 + len(state),
    )


# A memory's digest is over these blocks; those of zeros are left out, so that holes need not be
# read.
_BLOCK_BYTES: Final = 64 << 10
# Made once: each block of a memory is compared with it.
_ZEROS: Final = bytes(_BLOCK_BYTES)


def digest_memory(path: Path) -> str:
    """SHA-256 over size and numbered nonzero 64 KiB blocks."""
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        hasher.update(os.fstat(file.fileno()).st_size.to_bytes(8, "little"))
        for offset, block in _blocks(file.fileno()):
            if block != _ZEROS[: len(block)]:
                hasher.update((offset // _BLOCK_BYTES).to_bytes(8, "little"))
                hasher.update(block)
    return hasher.hexdigest()


def _blocks(fd: int) -> Iterator[tuple[int, bytes]]:
    """(offset, bytes) of blocks, skipping holes."""
    size = os.fstat(fd).st_size
    offset = 0
    while offset < size:
        try:
            data = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                return
            raise
        offset = data // _BLOCK_BYTES * _BLOCK_BYTES
        hole = os.lseek(fd, data, os.SEEK_HOLE)
        while offset < min(hole, size):
            block = os.pread(fd, _BLOCK_BYTES, offset)
            if not block:
                return
            yield offset, block
            offset += _BLOCK_BYTES
