"""Splits a VMM's migration stream while it comes: RAM into a sparse file, the rest into bytes.

The outcome has the form of a template (memory, device state), so a fork maps the memory privately.
The stream is a VMM's that may be compromised, and goes to another VMM alone: pages of RAM are
written at ascending places below its size, everything else is kept as it is, bounded.
"""

from __future__ import annotations

import os
import re
import socket
import time
from struct import Struct
from typing import Final

from belljar.errors import CellError

# QEMU, docs/devel/migration: sections, and the records of `ram` (migration/ram.c). A record begins
# with an offset into a block, whose low 12 bits are flags.
_PAGE_BYTES: Final = 4096
_ZERO, _SIZES, _PAGE, _END, _SAME_BLOCK = 0x02, 0x04, 0x08, 0x10, 0x20
_START, _PART, _LAST, _COMMAND, _FOOTER = 1, 2, 3, 8, 0x7E
_HEADER: Final = re.compile(rb"\x01(.{4})\x03ram\0\0\0\0\0\0\0\x04", re.DOTALL)
_MAX_HEADER_BYTES: Final = 4096
_ZERO_RUN: Final = re.compile(
    rb"(?:.{6}[\x00\x10\x20\x30\x40\x50\x60\x70\x80\x90\xa0\xb0\xc0\xd0\xe0\xf0]\x22\0)*", re.DOTALL
)
_RAM: Final = b"ram"
_U16, _U64 = Struct(">H"), Struct(">Q")
_MAX_RECORD_BYTES: Final = 8 + 256 + _PAGE_BYTES
_READ_BYTES: Final = 8 << 20
_MAX_PAGES_A_WRITE: Final = 1000  # Linux takes 1,024 buffers
MAX_STATE_BYTES: Final = 64 << 20


class _MoreNeededError(Exception):
    """The rest of the record has not come yet."""


class Splitter:
    """Takes a stream in pieces; `state` is complete after `end`.

    All methods raise `CellError` for what is no such stream, `OSError` when the file can't be
    written.
    """

    def __init__(self, memory_fd: int, ram_bytes: int) -> None:
        self.state = bytearray()
        self._memory_fd, self._ram_bytes = memory_fd, ram_bytes
        self._section_id = b""
        self._at_section, self._is_last = True, False
        self._takes_all = False
        self._block = b""
        self._next_page = 0
        self._pages: list[memoryview] = []
        self._first = 0

    def feed(self, data: memoryview) -> int:
        """Take whole records from the beginning; how many bytes that were."""
        at = 0
        try:
            while not self._takes_all and at < len(data):
                at = self._section(data, at) if self._at_section else self._record(data, at)
        except _MoreNeededError:
            pass
        finally:
            self._write()
        if self._takes_all:
            self._keep(data[at:])
            at = len(data)
        return at

    def end(self, *, left: int) -> None:
        """The stream is over; `left`: bytes that were not taken."""
        if left or not self._takes_all:
            raise _bad("it ends early")

    def _section(self, data: memoryview, at: int) -> int:
        """What stands between the parts of RAM."""
        if not self._section_id:
            match = _HEADER.search(data[at : at + _MAX_HEADER_BYTES])
            if match is None:
                if len(data) - at >= _MAX_HEADER_BYTES:
                    raise _bad("no RAM at its beginning")
                raise _MoreNeededError
            self._section_id, self._at_section = match[1], False
            return self._kept(data, at, match.end())
        kind, of_ours = data[at], bytes(data[at + 1 : at + 5])
        if kind == _COMMAND:
            length = _U16.unpack(self._need(data, at + 3, 2))[0]
            return self._kept(data, at, 5 + length)
        if len(of_ours) < 4:
            raise _MoreNeededError
        if of_ours != self._section_id or kind not in (_PART, _LAST):
            raise _bad(f"a section of kind {kind}")
        self._at_section, self._is_last = False, kind == _LAST
        return self._kept(data, at, 5)

    def _record(self, data: memoryview, at: int) -> int:
        head = _U64.unpack(self._need(data, at, 8))[0]
        flags, offset = head & 0xFFF, head & ~0xFFF
        if flags == _END:
            return self._end_of_part(data, at)
        if flags == _SIZES:
            return self._sizes(data, at, offset)
        size = {_ZERO: 1, _PAGE: _PAGE_BYTES}.get(flags & ~_SAME_BLOCK)
        if size is None:
            raise _bad(f"a record with flags {flags:#x}")
        start, block = at + 8, self._block
        if not flags & _SAME_BLOCK:
            length = self._need(data, start, 1)[0]
            block = bytes(self._need(data, start + 1, length))
            start += 1 + length
        content = self._need(data, start, size)
        self._block = block
        if block != _RAM:
            return self._kept(data, at, start + size - at)
        if offset < self._next_page or offset + _PAGE_BYTES > self._ram_bytes:
            raise _bad("a page out of its order or place")
        if flags & _ZERO:
            if content[0]:
                raise _bad("a page of another byte than 0")
            self._write()
            self._next_page = offset + _PAGE_BYTES
            # The next ones; their places don't matter, as nothing is written
            run = _ZERO_RUN.match(data, start + 1)
            return start + 1 if run is None else run.end()
        if offset != self._next_page or len(self._pages) == _MAX_PAGES_A_WRITE:
            self._write()
        if not self._pages:
            self._first = offset
        self._pages.append(content)
        self._next_page = offset + _PAGE_BYTES
        return start + size

    def _end_of_part(self, data: memoryview, at: int) -> int:
        footer = self._need(data, at + 8, 5)
        if footer[0] != _FOOTER or footer[1:] != self._section_id:
            raise _bad("a part without its end")
        self._at_section, self._takes_all = True, self._is_last
        return self._kept(data, at, 13)

    def _sizes(self, data: memoryview, at: int, total: int) -> int:
        """The blocks: name, size and, as RAM may be left out, address."""
        end = at + 8
        while total > 0:
            length = self._need(data, end, 1)[0]
            name = bytes(self._need(data, end + 1, length))
            size = _U64.unpack(self._need(data, end + 1 + length, 8))[0]
            self._need(data, end + 9 + length, 8)
            end, total = end + 17 + length, total - size
            if not size or total < 0 or (name == _RAM and size != self._ram_bytes):
                raise _bad("blocks of another size")
        return self._kept(data, at, end - at)

    def _need(self, data: memoryview, at: int, count: int) -> memoryview:
        if at + count > len(data):
            raise _MoreNeededError
        return data[at : at + count]

    def _kept(self, data: memoryview, at: int, count: int) -> int:
        self._keep(self._need(data, at, count))
        return at + count

    def _keep(self, data: memoryview) -> None:
        if len(self.state) + len(data) > MAX_STATE_BYTES:
            raise _bad(f"more than {MAX_STATE_BYTES} bytes of device state")
        self.state += data

    def _write(self) -> None:
        at, pages = self._first, self._pages
        self._pages = []
        while pages:
            written = os.pwritev(self._memory_fd, pages, at)
            if written % _PAGE_BYTES:  # the disk is full: writing the rest says so
                os.pwrite(self._memory_fd, pages[written // _PAGE_BYTES], at + written)
            at += -(-written // _PAGE_BYTES) * _PAGE_BYTES
            pages = pages[-(-written // _PAGE_BYTES) :]


def split_stream(sock: socket.socket, memory_fd: int, ram_bytes: int, *, timeout_s: float) -> bytes:
    """The device state; RAM is in the file then. Blocking.

    Raises `CellError` for a bad stream, or one that takes too long; `OSError` for the file.
    """
    splitter, give_up = Splitter(memory_fd, ram_bytes), time.monotonic() + timeout_s
    buffer = bytearray(_READ_BYTES + _MAX_RECORD_BYTES)
    view, filled = memoryview(buffer), 0
    while True:
        sock.settimeout(max(0.001, give_up - time.monotonic()))
        try:
            got = sock.recv_into(view[filled:])
        except TimeoutError as error:
            raise _bad("it took too long") from error
        except ConnectionError:
            got = 0
        if not got:
            splitter.end(left=filled)
            return bytes(splitter.state)
        filled += got
        taken = splitter.feed(view[:filled])
        buffer[: filled - taken] = buffer[taken:filled]
        filled -= taken
        if filled == len(buffer):
            raise _bad("a record that is too long")


def _bad(what: str) -> CellError:
    return CellError(f"the VMM's stream can't be kept: {what}", where="snapshot")
