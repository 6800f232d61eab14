"""Endings: timeout, cancellation, signals; the whole tree dies."""

from __future__ import annotations

import signal
import time

import anyio
import pytest
from tests.fakes.asking import is_alive, sh

from belljar.cell.cell import Cell
from belljar.channel import GuestClient, Stream

pytestmark = pytest.mark.anyio


@pytest.mark.promise("4.2")
async def test_timeout_kills_the_whole_tree(client: GuestClient) -> None:
    """The command and all its children are dead, also those that ignore signals."""
    stubborn = "trap '' TERM HUP INT; sleep 1000 & echo $!; (sleep 1000; :) & echo $!; sleep 1000"
    for timeout_s in (0.5, 5, 30):  # longer where the machine is slow
        began = time.monotonic()
        outcome = await client.exec(sh(stubborn, timeout_s=timeout_s))
        assert outcome.timed_out
        assert time.monotonic() - began > 0.9 * timeout_s
        if len(pids := outcome.stdout.split()) == 2:
            break
    assert len(pids) == 2
    for pid in pids:
        assert not await is_alive(client, pid)


_TRACER = """
import ctypes, os
parent = os.getpid()
if os.fork():
    os._exit(0)
os.setsid()
while os.path.exists(f"/proc/{parent}"):  # or the test's own command would never end
    pass
libc = ctypes.CDLL(None)
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        libc.ptrace(0x4206, int(pid), None, None)  # PTRACE_SEIZE, and never a wait
"""


@pytest.mark.promise("4.2")
@pytest.mark.thorough_in("microvm")
async def test_a_tree_that_another_traces_ends_too(cell: Cell) -> None:
    """A tracer that never waits keeps what it traces from ending."""
    assert (await cell.exec(["python3", "-c", _TRACER])).success
    outcome = await cell.exec(["sh", "-c", "sleep 0.1; sleep 1000; :"], timeout_s=1)
    assert outcome.timed_out
    assert (await cell.exec(["true"])).success


@pytest.mark.promise("4.2")
async def test_cancellation_kills_the_whole_tree(client: GuestClient, folder: str) -> None:
    """A cancelled command is dead, with its children, when the cancellation is over."""
    with anyio.CancelScope() as scope:
        on = sh('sleep 1000 & echo $! >"$1/new" && mv "$1/new" "$1/pid"; echo; wait', folder)
        await client.exec(on, on_output=lambda _stream, _chunk: scope.cancel())
    assert scope.cancelled_caught
    pid = await client.read_file(f"{folder}/pid", max_bytes=100)
    assert not await is_alive(client, pid)
    assert (await client.exec(sh("echo on"))).stdout == b"on\n"


async def test_signals(client: GuestClient) -> None:
    """A signal reaches the main process alone, or everything it started."""
    async with client.open_exec(
        sh("trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.05; done")
    ) as running:
        assert await anext(running) == (Stream.STDOUT, b"ready\n")
        await running.signal(signal.SIGUSR1)
        assert await anext(running) == (Stream.STDOUT, b"got\n")
        assert (await running.wait()).code == 9
    async with client.open_exec(sh("sleep 1000 & echo $!; wait")) as running:
        _, pid = await anext(running)
        await running.signal(signal.SIGKILL, whole_tree=True)
        outcome = await running.wait()
    assert (outcome.signalled, outcome.code, outcome.killed) == (True, 9, True)
    assert not await is_alive(client, pid)
