"""The socket that a sandbox's trace comes by, with a sandbox that this test plays."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from tests.machine import PATIENCE_S
from tests.unit.isolation.test_trace_points import OPENED, READ

from belljar.channel.operations import OwnReads
from belljar.errors import HostError
from belljar.isolation.oci.trace import Trace, watch_sandbox
from belljar.isolation.touches import Access

pytestmark = pytest.mark.anyio
FILE = "/tmp/x/cred"


def connect(directory: Path) -> socket.socket:
    """As runsc does it: both sides name their version."""
    sandbox = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sandbox.connect(str(directory / "trace.sock"))
    sandbox.send(b"\x08\x01")
    assert sandbox.recv(100) == b"\x08\x01"
    return sandbox


def is_this(pid: int) -> bool:
    """This process plays the sandbox."""
    return pid == os.getpid()


@pytest.mark.promise("5.6")
async def test_a_stranger_is_hung_up_on(tmp_path: Path) -> None:
    """Another process of this host that finds the socket neither forges points nor takes the
    place."""
    pids = iter((False, True))
    trace = Trace(tmp_path, "/x", lambda _: next(pids))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.connect(str(tmp_path / "trace.sock"))
        assert stranger.recv(100) == b""
    with connect(tmp_path):
        watch = await trace.watch([FILE], OwnReads())
        await watch.aclose()
    trace.close()


@pytest.mark.promise("5.6")
async def test_points_of_watched_files_are_reported(tmp_path: Path) -> None:
    """Not what came before the watch, nor other files'; two watches each hear of theirs."""
    trace, own, first, second = (
        Trace(tmp_path, "/x", is_this),
        OwnReads(),
        list[Access](),
        list[Access](),
    )
    with connect(tmp_path) as sandbox:
        sandbox.send(READ)
        watch = await trace.watch([FILE], own)
        other = await trace.watch(["/etc/cred"], own)
        watch.begin(first.append, print)
        other.begin(second.append, print)
        sandbox.send(OPENED.replace(b"\x08\x00\x07\x00\x00", b"\x08\x00\x07\x00\x05", 1))
        sandbox.send(READ)
        await watch.aclose()
        await watch.aclose()
        await other.aclose()
    trace.close()
    trace.close()
    assert [(a.path, a.operation, a.process, a.pid) for a in first] == [
        (FILE, "open", "", 3),
        (FILE, "read", "", 3),
    ]
    assert second == []


@pytest.mark.promise("5.6")
async def test_lost_points_and_the_end_are_said(tmp_path: Path) -> None:
    """Each once; and without a sandbox nothing can be watched."""
    trace, ends = Trace(tmp_path, "/x", is_this), list[str]()
    with pytest.raises(HostError):
        await trace.watch([FILE], OwnReads())
    sandbox = connect(tmp_path)
    watch = await trace.watch([FILE], OwnReads())
    watch.begin(print, ends.append)
    for number in (b"\x01", b"\x02"):
        sandbox.send(READ[:4] + number + READ[5:])
    sandbox.close()
    await watch.aclose()
    trace.close()
    assert len(ends) == 2
    with pytest.raises(HostError):
        await watch_sandbox(None, [FILE], OwnReads())


async def test_the_agents_reads_for_the_host_are_left_out(tmp_path: Path) -> None:
    """Only while one runs."""
    trace, own, accesses = Trace(tmp_path, "/x", is_this), OwnReads(), list[Access]()
    with connect(tmp_path) as sandbox:
        watch = await trace.watch([FILE], own)
        watch.begin(accesses.append, print)
        sandbox.send(READ)
        with anyio.fail_after(PATIENCE_S):
            while not accesses:
                await anyio.lowlevel.checkpoint()
        async with own.of(FILE, "/"):
            sandbox.send(READ)
        await watch.aclose()
    trace.close()
    assert [access.operation for access in accesses] == ["read"]


async def test_a_point_that_is_cut_is_said(tmp_path: Path) -> None:
    """A guest's directory may have any path: what does not fit is on record as not seen."""
    trace, ends = Trace(tmp_path, "/x", is_this), list[str]()
    with connect(tmp_path) as sandbox:
        watch = await trace.watch([FILE], OwnReads())
        watch.begin(print, ends.append)
        sandbox.send(READ[:8] + b"x" * (20 << 10))
        await watch.aclose()
    trace.close()
    assert any("cut" in each for each in ends)
