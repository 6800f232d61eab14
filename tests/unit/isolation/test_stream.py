"""A migration stream that is split: RAM to its place in a file, the rest kept, and bad ones refused."""

from __future__ import annotations

import errno
import os
import random
import socket
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from belljar.errors import CellError
from belljar.isolation.microvm.stream import MAX_STATE_BYTES, StreamSplitter

PAGE = 4096
PAGES = 4000
RAM = PAGES * PAGE
ZERO, SIZES, FULL, END, SAME = 0x02, 0x04, 0x08, 0x10, 0x20
ID = b"\0\0\0\x01"
FOOTER = b"\x7e" + ID
HEAD = b"QEVM\0\0\0\x03\x07\0\0\0\x07microvm\x01" + ID + b"\x03ram\0\0\0\0\0\0\0\x04"
DEVICES = b"\x04device state, which may look like anything: \x02" + ID + FOOTER


def word(number: int) -> bytes:
    return struct.pack(">Q", number)


def sizes(ram: int = RAM, name: bytes = b"ram", total: int | None = None) -> bytes:
    """The list of blocks, RAM and firmware, with its section's end."""
    blocks = ((name, ram), (b"pc.bios", 2 * PAGE))
    said = sum(size for _, size in blocks) if total is None else total
    listed = (bytes((len(n),)) + n + word(size) + word(0) for n, size in blocks)
    return word(said | SIZES) + b"".join(listed) + word(END) + FOOTER


def page(number: int, content: bytes | None = None, block: bytes = b"") -> bytes:
    """A record; None: a page of zeros; `block`: named, or as before."""
    flags = (ZERO if content is None else FULL) | (0 if block else SAME)
    name = bytes((len(block),)) + block if block else b""
    return word(number * PAGE | flags) + name + (b"\0" if content is None else content)


def part(*records: bytes, last: bool = True) -> bytes:
    return (b"\x03" if last else b"\x02") + ID + b"".join(records) + word(END) + FOOTER


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "memory", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, RAM)
    yield fd
    os.close(fd)


def split(stream: bytes, memory: int, cuts: Sequence[int] = ()) -> bytes:
    """Sent in pieces that end at `cuts`; what is kept."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        with theirs, suppress(BrokenPipeError, ConnectionResetError):
            for begin, end in pairwise((0, *cuts, len(stream))):
                theirs.sendall(stream[begin:end])

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with ours:
            return StreamSplitter(ours, memory, RAM, 60).split()
    finally:
        sender.join()


def test_ram_goes_to_its_place_and_all_else_is_kept(memory: int) -> None:
    """Runs of pages, zeros between and behind them, firmware, a command; cut anywhere."""
    chance = random.Random(27)  # noqa: S311 - the same each time
    content = {n: chance.randbytes(PAGE) for n in (*range(1, 1500), 1501, 1502, 1600, PAGES - 1)}
    firmware = page(0, b"f" * PAGE, b"pc.bios") + page(1)
    ram = [page(n, content.get(n), b"ram" if n in (0, 1600) else b"") for n in range(PAGES)]
    command = b"\x08\0\x0b\0\x02xy"
    begun = part(*ram[:1600], firmware, last=False)
    stream = HEAD + sizes() + begun + command + part(*ram[1600:]) + DEVICES
    expected = HEAD + sizes() + part(firmware, last=False) + command + part() + DEVICES
    whole = b"".join(content.get(n, bytes(PAGE)) for n in range(PAGES))
    for count in (0, 40):
        cuts = sorted(chance.sample(range(len(stream)), count))
        os.ftruncate(memory, 0)
        os.ftruncate(memory, RAM)
        assert split(stream, memory, cuts) == expected
        assert os.pread(memory, RAM + 1, 0) == whole


FIRST = page(3, b"x" * PAGE, b"ram")


@pytest.mark.parametrize(
    "stream",
    [
        b"x" * 5000,
        HEAD + sizes(RAM + PAGE),
        HEAD + sizes(total=RAM),
        HEAD + sizes() + part(page(1 << 51, b"x" * PAGE, b"ram")),
        HEAD + sizes() + part(FIRST, page(2)),
        HEAD + sizes() + part(FIRST, word(4 * PAGE | ZERO | SAME) + b"\x01"),
        HEAD + sizes() + part(word(ZERO | FULL | SAME) + b"\0"),
        HEAD + sizes() + part(FIRST)[:-1] + b"\x02",
        HEAD + sizes() + b"\x04" + ID + DEVICES,
        HEAD + sizes() + part(FIRST, last=False),
        b"",
    ],
    ids=lambda stream: str(len(stream)),
)
def test_what_is_no_such_stream_is_refused(memory: int, stream: bytes) -> None:
    """Other sizes, order, flags and sections, an early end: nothing is written beyond RAM."""
    with pytest.raises(CellError):
        split(stream, memory)
    assert os.fstat(memory).st_size == RAM


def test_what_is_kept_is_bounded_and_a_full_disk_an_error(memory: int) -> None:
    """Device state without an end is refused; writing fails with the system's error."""
    with pytest.raises(CellError, match="more than"):
        split(HEAD + sizes() + part() + bytes(MAX_STATE_BYTES), memory)
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - its number is looked at
        split(HEAD + sizes() + part(FIRST), full)
    os.close(full)
    assert caught.value.errno in (errno.ENOSPC, errno.ESPIPE)


@pytest.mark.parametrize("said", [b"", HEAD + sizes() + part(FIRST)])
def test_a_stream_that_comes_late_is_given_up(memory: int, said: bytes) -> None:
    """One that stalls, and one that has a few more bytes whenever it is asked."""
    ours, theirs = socket.socketpair()
    theirs.sendall(said)
    with ours, theirs, pytest.raises(CellError, match="too long"):
        StreamSplitter(ours, memory, RAM, 0 if said else 0.05).split()
