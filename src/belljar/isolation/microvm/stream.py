"""Puts a machine on disk: splits its VMM's migration stream into sparse RAM file and bytes.

The VMM may be compromised: pages are written at ascending places below the RAM's size.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import socket
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.channel.client import BusyError
from belljar.errors import CellError
from belljar.isolation.microvm.vmm import Vmm
from belljar.isolation.program_root import file_stamp

# QEMU, docs/devel/migration: sections, and the records of `ram` (migration/ram.c). A record begins
# with an offset into a block, whose low 12 bits are flags.
_PAGE_BYTES: Final = 4096
# QEMU's RAM_SAVE_FLAG_ZERO, _MEM_SIZE, _PAGE, _EOS and _CONTINUE (migration/ram.c).
_ZERO, _SIZES, _PAGE, _END, _SAME_BLOCK = 0x02, 0x04, 0x08, 0x10, 0x20
# QEMU_VM_SECTION_PART and _END, and QEMU_VM_COMMAND.
_PART, _LAST, _COMMAND = 2, 3, 8
# How the section of the guest's memory begins in QEMU's migration stream; its number is what
# follows.
_HEADER: Final = re.compile(rb"\x01(.{4})\x03ram\0\0\0\0\0\0\0\x04", re.DOTALL)
# The memory's section is the first; a stream that has it later is not QEMU's.
_MAX_HEADER_BYTES: Final = 4096
# Pages of zeros one after another: nothing is written for them.
_ZERO_RUN: Final = re.compile(rb"(?:.{6}[%s]\x22\0)*" % bytes(range(0, 256, 16)), re.DOTALL)
_RAM: Final = b"ram"
_BUFFER_BYTES: Final = 4 << 20
_MAX_PAGES_A_WRITE: Final = 1000  # Linux takes 1,024 buffers
MAX_STATE_BYTES: Final = 64 << 20
_STREAM_TIMEOUT_S: Final = 60.0
_MAX_BANDWIDTH: Final = 1 << 40  # else QEMU sends 128 MiB a second


async def allow_shared_memory(vmm: Vmm) -> None:
    """Keep shared RAM out of the state; report migration's end."""
    capabilities = [{"capability": name, "state": True} for name in ("x-ignore-shared", "events")]
    await vmm.qmp.execute("migrate-set-capabilities", {"capabilities": capabilities})


async def save_stopped(vmm: Vmm, memory: Path) -> bytes:
    """Write RAM into a new sparse file; return the state."""
    qmp, ram_bytes = vmm.qmp, vmm.spec.shape.ram_mib << 20
    await allow_shared_memory(vmm)  # clones are restored with it; this machine's RAM isn't shared
    await qmp.execute("migrate-set-parameters", {"max-bandwidth": _MAX_BANDWIDTH})
    fd = os.open(memory, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    ours, theirs = socket.socketpair()
    try:
        os.ftruncate(fd, ram_bytes)
        with theirs:
            await qmp.execute("getfd", {"fdname": "state"}, fd=theirs.fileno())
        qmp.events.clear()  # none of before is waited for
        await qmp.execute("migrate", {"uri": "fd:state"})
        try:
            splitter = StreamSplitter(ours, fd, ram_bytes, _STREAM_TIMEOUT_S)
            state = await anyio.to_thread.run_sync(splitter.split)  # not abandoned: writes to `fd`
        except BaseException:
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            # The migration must be over before the caller uses the machine again, even if it is
            # cancelled.
            with anyio.CancelScope(shield=True), suppress(CellError):
                await qmp.wait_migrated(timeout_s=_STREAM_TIMEOUT_S)
            raise
        await qmp.wait_migrated(timeout_s=_STREAM_TIMEOUT_S)
        return state
    finally:
        ours.close()
        os.close(fd)


class StreamSplitter:
    """It writes RAM to the file, and keeps device state. Blocks."""

    def __init__(
        self, sock: socket.socket, memory_fd: int, ram_bytes: int, timeout_s: float
    ) -> None:
        self._socket, self._give_up = sock, time.monotonic() + timeout_s
        self._memory_fd, self._ram_bytes = memory_fd, ram_bytes
        self._state = bytearray()
        self._buffer, self._at, self._end = bytearray(_BUFFER_BYTES), 0, 0
        self._view = memoryview(self._buffer)
        self._block = b""
        self._next_offset = 0
        self._pages: list[memoryview] = []
        """Unwritten pages in the buffer, which end before `_next_offset`."""

    def split(self) -> bytes:
        section, kind = self._header(), 0
        self._part(section)
        while kind != _LAST:
            kind = self._keep(1)[0]
            if kind == _COMMAND:
                # A command's number and its length have two bytes each.
                self._keep(int.from_bytes(self._keep(4)[2:], "big"))
            elif kind in (_PART, _LAST) and self._keep(4) == section:
                self._part(section)
            else:
                raise _bad(f"a section of kind {kind}")
        while self._end > self._at or self._fill():
            self._keep(self._end - self._at)
        return bytes(self._state)

    def _header(self) -> bytes:
        while (match := _HEADER.search(self._buffer, 0, min(self._end, _MAX_HEADER_BYTES))) is None:
            if self._end >= _MAX_HEADER_BYTES or not self._fill():
                raise _bad("no RAM at its beginning")
        section = match[1]
        self._keep(match.end())
        return section

    def _part(self, section: bytes) -> None:
        while True:
            head = bytes(self._take(8))
            # An offset is a multiple of the page size: its low 12 bits carry the flags.
            flags = int.from_bytes(head[6:], "big") & 0xFFF
            offset = int.from_bytes(head, "big") - flags
            if flags & ~_SAME_BLOCK in (_ZERO, _PAGE):
                self._page(head, flags, offset)
            elif flags == _SIZES:
                self._state += head
                self._sizes(offset)
            elif flags == _END:
                self._state += head
                # QEMU_VM_SECTION_FOOTER, with the section's number.
                if self._keep(5) != b"\x7e" + section:
                    raise _bad("a part without its end")
                return
            else:
                raise _bad(f"a record with flags {flags:#x}")

    def _sizes(self, total: int) -> None:
        while total > 0:
            name = self._keep(self._keep(1)[0])
            size = int.from_bytes(self._keep(8), "big")
            self._keep(8)
            total -= size
            if not size or total < 0 or (name == _RAM and size != self._ram_bytes):
                raise _bad("blocks of another size")

    def _page(self, head: bytes, flags: int, offset: int) -> None:
        name = b""
        if not flags & _SAME_BLOCK:
            name = bytes(self._take(1))
            name += bytes(self._take(name[0]))
            self._block = name[1:]
        count = 1 if flags & _ZERO else _PAGE_BYTES
        if self._block != _RAM:
            self._keep(count, head + name)
            return
        content = self._take(count)
        if offset < self._next_offset or offset + _PAGE_BYTES > self._ram_bytes:
            raise _bad("a page out of its order or place")
        if flags & _ZERO:
            if content[0]:
                raise _bad("a page of another byte than 0")
            self._write()
            # The next ones' places don't matter, as nothing is written
            run = _ZERO_RUN.match(self._buffer, self._at, self._end)
            self._at = self._at if run is None else run.end()
        else:
            if offset != self._next_offset or len(self._pages) == _MAX_PAGES_A_WRITE:
                self._write()
            self._pages.append(content)
        self._next_offset = offset + _PAGE_BYTES

    def _keep(self, count: int, before: bytes = b"") -> bytes:
        content = bytes(self._take(count))
        self._state += before + content
        if len(self._state) > MAX_STATE_BYTES:
            raise _bad(f"more than {MAX_STATE_BYTES} bytes of device state")
        return content

    def _take(self, count: int) -> memoryview:
        """The bytes are valid until the next take."""
        while self._end - self._at < count:
            if not self._fill():
                raise _bad("it ends early")
        self._at += count
        return self._view[self._at - count : self._at]

    def _fill(self) -> bool:
        self._write()
        left = self._end - self._at
        self._buffer[:left] = self._buffer[self._at : self._end]
        self._at, self._end = 0, left
        left_s = self._give_up - time.monotonic()
        if left_s <= 0:  # also of one that sends a byte now and then
            raise _bad("it took too long")
        self._socket.settimeout(left_s)
        try:
            got = self._socket.recv_into(self._view[left:])
        except TimeoutError as error:
            raise _bad("it took too long") from error
        except ConnectionError:
            got = 0
        self._end += got
        return got > 0

    def _write(self) -> None:
        pages, self._pages = self._pages, []
        at = self._next_offset - len(pages) * _PAGE_BYTES
        while pages:
            # A short write may end within a page: that page is written again, whole.
            whole = os.pwritev(self._memory_fd, pages, at) // _PAGE_BYTES
            pages, at = pages[whole:], at + whole * _PAGE_BYTES
            if not whole:  # a part of a page: the disk is full, and the rest of it says so
                os.pwrite(self._memory_fd, pages[0][1:], at + 1)


def _bad(what: str) -> CellError:
    return CellError(f"the VMM's stream can't be kept: {what}", where="snapshot")


class MachineLostError(CellError):
    """The machine didn't go on or became unreliable, and was ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedMachine:
    """`key` is its template's; `digest` covers all of it."""

    directory: Path
    key: str
    digest: str
    memory_stamp: tuple[int, ...]
    state_digest: str
    size_bytes: int


async def save_machine(vmm: Vmm, directory: Path, key: str) -> SavedMachine:
    """Save the machine, which stands still meanwhile.

    Raises `OSError`; `BusyError`: a command runs; `MachineLostError`: it doesn't go on.
    """
    memory = directory / "memory"
    try:
        async with vmm.client.frozen():
            await vmm.qmp.execute("stop")
            try:
                state = await save_stopped(vmm, memory)
            finally:
                with anyio.CancelScope(shield=True):
                    await vmm.qmp.execute("cont")
        return await anyio.to_thread.run_sync(_saved, directory, state, key)
    except BusyError:
        raise
    except CellError as error:
        vmm.kill()
        raise MachineLostError(error.what, where=error.where, hint=error.hint) from error


def _saved(directory: Path, state: bytes, key: str) -> SavedMachine:
    memory = directory / "memory"
    memory.chmod(0o444)
    (directory / "state").write_bytes(state)
    state_digest = hashlib.sha256(state).hexdigest()
    return SavedMachine(
        directory=directory,
        key=key,
        digest=hashlib.sha256(f"{digest_memory(memory)} {state_digest}".encode()).hexdigest(),
        memory_stamp=tuple(file_stamp(memory)),
        state_digest=state_digest,
        size_bytes=memory.stat().st_blocks * 512 + len(state),
    )


# A memory's digest is over these blocks; those of zeros are left out, as holes are.
_BLOCK_BYTES: Final = 64 << 10


def digest_memory(path: Path) -> str:
    hasher, zeros = hashlib.sha256(path.stat().st_size.to_bytes(8, "little")), bytes(_BLOCK_BYTES)
    with path.open("rb") as file:
        for number in itertools.count():
            if not (block := file.read(_BLOCK_BYTES)):
                break
            if block != zeros[: len(block)]:
                hasher.update(number.to_bytes(8, "little"))
                hasher.update(block)
    return hasher.hexdigest()
