"""A sandbox's trace: its socket, its messages as recorded from runsc 20240729, and hostile ones."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine import PATIENCE_S

from belljar.channel.operations import OwnReads
from belljar.errors import HostError
from belljar.isolation.oci.trace import Point, Trace, dropped, read_point, watch_sandbox
from belljar.isolation.touches import Access

HEADER = bytes.fromhex("0800070000000000")
READ_HEADER = bytes.fromhex("0800090005000000")
CONTEXT = b"\n\x0f \x03B\x06/tmp/xJ\x03cat"
HERE = b" \x9c\xff\xff\xff\xff\xff\xff\xff\xff\x01"
OPENED = HEADER + CONTEXT + b"\x12\x02\x08\x03\x18\x81\x02" + HERE + b"2\x04cred8\xc1\x04@\xb6\x03"
READ = READ_HEADER + b"\n\x07 \x03J\x03cat\x12\x02\x08\x05 \x03*\x0b/tmp/x/cred0\x80\x80\x08"
FAILED = OPENED.replace(b"\x12\x02\x08\x03", b"\x12\x0d\x08" + b"\xff" * 9 + b"\x01\x10\x02")


@pytest.mark.promise("5.6")
def test_an_open_and_a_read_are_read() -> None:
    """A relative name is below the working directory; its process's number comes with it."""
    assert read_point(OPENED) == Point(operation="open", path=b"/tmp/x/cred", pid=3)
    assert read_point(READ) == Point(operation="read", path=b"/tmp/x/cred", pid=3)
    assert dropped(OPENED) == 0
    assert dropped(READ) == 5


NO_ACCESS = {
    "none": b"",
    "empty": HEADER,
    "cut header": HEADER[:7],
    "failed": FAILED,
    "other": OPENED.replace(HEADER, bytes.fromhex("0800080000000000")),
    "end of file": READ.replace(b"\x12\x02\x08\x05", b"\x12\x02\x08\x00"),
    "O_PATH": OPENED.replace(b"8\xc1\x04", b"8\x80\x80\x80\x01"),
    "cut": OPENED[:-5],
    "long": READ.replace(b"*\x0b", b"*\x7f"),
    "many": HEADER + b"\x08\x01" * 65,
}


@pytest.mark.parametrize("name", NO_ACCESS)
def test_what_is_no_access_is_none(name: str) -> None:
    """A call that failed, the end of a file, a descriptor that can't be read, and no message."""
    assert read_point(NO_ACCESS[name]) is None


@pytest.mark.promise("5.6")
@settings(max_examples=300)
@given(st.sampled_from([HEADER, READ_HEADER, OPENED, READ]), st.binary(max_size=300))
def test_hostile_messages(start: bytes, rest: bytes) -> None:
    """Whatever is in it: a point or none, and nothing raised."""
    for message in (start + rest, start[: len(rest)] + rest):
        point = read_point(message)
        dropped(message)
        assert point is None or point.path


pytestmark = pytest.mark.anyio
FILE = "/tmp/x/cred"


def connect(directory: Path) -> socket.socket:
    sandbox = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sandbox.connect(str(directory / "trace.sock"))
    sandbox.send(b"\x08\x01")
    assert sandbox.recv(100) == b"\x08\x01"
    return sandbox


def is_this(pid: int) -> bool:
    return pid == os.getpid()


@pytest.mark.promise("5.6")
async def test_a_stranger_is_hung_up_on(tmp_path: Path) -> None:
    """Another process that finds the socket neither forges points nor takes the place."""
    pids = iter((False, True))
    trace = Trace(tmp_path, lambda _: next(pids))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(str(tmp_path / "trace.sock"))
        assert stranger.recv(100) == b""
    with connect(tmp_path):
        watch = await watch_sandbox(trace, [FILE], OwnReads())
        await watch.aclose()
    trace.close()


@pytest.mark.promise("5.6")
async def test_points_of_watched_files_are_reported(tmp_path: Path) -> None:
    """Neither what came before the watch, nor other files', nor the host's own reads."""
    trace, own, told = Trace(tmp_path, is_this), OwnReads(), list[Access]()
    with connect(tmp_path) as sandbox:
        sandbox.send(READ)
        watch = await watch_sandbox(trace, [FILE], own)
        watch.begin(told.append, print)
        sandbox.send(OPENED)
        with anyio.fail_after(PATIENCE_S):
            while not told:
                await anyio.lowlevel.checkpoint()
        async with own.of(FILE, "/"):
            sandbox.send(READ)
        await watch.aclose()
    trace.close()
    assert [(each.path, each.operation, each.pid) for each in told] == [(FILE, "open", 3)]


@pytest.mark.promise("5.6")
async def test_what_came_before_the_end_is_reported(tmp_path: Path) -> None:
    """A guest that touches a decoy and then ends its sandbox has touched it."""
    trace, told, ends = Trace(tmp_path, is_this), list[Access](), list[str]()
    sandbox = connect(tmp_path)
    watch = await watch_sandbox(trace, [FILE], OwnReads())
    sandbox.send(OPENED)
    sandbox.close()
    await anyio.to_thread.run_sync(trace.thread.drain)
    watch.begin(told.append, ends.append)
    await watch.aclose()
    trace.close()
    assert [each.operation for each in told] == ["open"]
    assert len(ends) == 1


LOST = [READ[:4] + number + READ[5:] for number in (b"\x01", b"\x02")]
CUT = [READ[:8] + b"x" * (20 << 10)]  # a guest's directory may have any path


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("sent", [LOST, CUT])
async def test_lost_points_and_the_end_are_said(tmp_path: Path, sent: list[bytes]) -> None:
    """Each once, also what does not fit; and without a sandbox nothing can be watched."""
    trace, ends = Trace(tmp_path, is_this), list[str]()
    with pytest.raises(HostError):
        await watch_sandbox(trace, [FILE], OwnReads())
    sandbox = connect(tmp_path)
    watch = await watch_sandbox(trace, [FILE], OwnReads())
    for message in sent:
        sandbox.send(message)
    sandbox.close()
    await anyio.to_thread.run_sync(trace.thread.drain)
    watch.begin(print, ends.append)  # what came before is said, too
    await watch.aclose()
    trace.close()
    assert len(ends) == 2
    assert "dropped" in ends[0]
    with pytest.raises(HostError):
        await watch_sandbox(None, [FILE], OwnReads())


@pytest.mark.promise("5.6")
async def test_a_host_read_hides_nothing_that_follows_it(tmp_path: Path) -> None:
    """The first access after it is reported, also where nothing else came in between."""
    trace, own, told = Trace(tmp_path, is_this), OwnReads(), list[Access]()
    with connect(tmp_path) as sandbox:
        watch = await watch_sandbox(trace, [FILE], own)
        watch.begin(told.append, print)
        async with own.of(FILE, "/"):
            pass
        await anyio.sleep(0.2)
        sandbox.send(OPENED)
        await watch.aclose()
    trace.close()
    assert [each.operation for each in told] == ["open"]
