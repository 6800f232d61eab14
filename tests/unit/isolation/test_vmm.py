"""A VMM that may say anything."""

from __future__ import annotations

import hashlib
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.channel.client import BusyError
from belljar.errors import CellError
from belljar.isolation.microvm.stream import MachineLostError, digest_memory, save_machine
from belljar.isolation.microvm.template import checked_state
from belljar.isolation.microvm.vmm import MAX_CONSOLE_BYTES, Console, Qmp, Vmm
from belljar.isolation.program_root import file_stamp

pytestmark = pytest.mark.anyio


class FakeMonitor:
    """The VMM's end: what it will say is put in beforehand."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        self.qmp = Qmp(ours, where="a test")

    def says(self, *lines: bytes) -> None:
        self.socket.sendall(b"".join(lines))

    def heard(self) -> list[dict[str, object]]:
        self.socket.setblocking(False)
        return [json.loads(line) for line in self.socket.recv(1 << 16).splitlines()]


@pytest.fixture
def monitor() -> Iterator[FakeMonitor]:
    fake = FakeMonitor()
    with fake.socket:
        yield fake
        fake.qmp.close()


@pytest.mark.parametrize("data", [b"5", b"null", b'{"status": ["failed"]}', b'{"status": {}}'])
async def test_a_senseless_event_is_passed_over(monitor: FakeMonitor, data: bytes) -> None:
    """An event of the wrong shape from a taken-over VMM is no surprise to the reader."""
    monitor.says(b'{"event": "MIGRATION", "data": ' + data + b"}\n", b'{"event": [], "data": []}\n')
    monitor.says(b'{"event": "MIGRATION", "data": {"status": "completed"}}\n')
    await monitor.qmp.wait_migrated(timeout_s=5)


async def test_a_refusal_is_shown_escaped_and_silence_has_a_deadline(monitor: FakeMonitor) -> None:
    """The VMM's words can't act on a terminal; its silence is an error."""
    monitor.says(b'{"error": {"desc": "no \\u001b[2J"}}\n')
    with pytest.raises(CellError, match="refused stop") as caught:
        await monitor.qmp.execute("stop")
    assert "\x1b" not in str(caught.value)
    with anyio.fail_after(60), pytest.raises(CellError, match="did not answer stop in time"):
        await monitor.qmp.execute("stop", timeout_s=0.05)


async def test_an_endless_line_is_cut_off(monitor: FakeMonitor) -> None:
    """Memory is bounded, however much comes without an end."""

    def flood() -> None:
        try:
            monitor.socket.sendall(b"x" * (4 << 20))
        except OSError:
            return

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anyio.to_thread.run_sync, flood)
        with pytest.raises(CellError, match="endless line"):
            await monitor.qmp.execute("stop")
        monitor.qmp.close()


JSON = st.recursive(
    st.none() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


@settings(max_examples=200)
@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes_are_an_answer_or_an_error(said: bytes) -> None:
    """Nothing a VMM can say raises anything but `CellError`."""

    async def ask() -> None:
        monitor = FakeMonitor()
        with monitor.socket:
            monitor.says(said + b"\n")
            monitor.socket.shutdown(socket.SHUT_WR)
            try:
                await monitor.qmp.execute("stop", timeout_s=5)
            except CellError:
                pass
            finally:
                monitor.qmp.close()

    anyio.run(ask)


def test_the_end_is_kept() -> None:
    """However much comes over time, the last 64 KiB remain, also after it is closed."""
    console = Console()
    for number in range(40):
        os.write(console.writer, bytes([number]) * 4096)
        console.read()
    os.write(console.writer, b"last")
    os.close(console.writer)
    console.close()
    assert len(console.read()) == MAX_CONSOLE_BYTES
    assert console.read().endswith(b"last")
    console.close()


DONE = b'{"return": {}}\n'


class FakeMachine:
    """What of a machine is needed: its monitor's client is the real one."""

    def __init__(self, monitor: FakeMonitor, *, is_busy: bool = False) -> None:
        self.qmp, self.client, self.is_busy = monitor.qmp, self, is_busy
        self.spec = SimpleNamespace(shape=SimpleNamespace(ram_mib=1))
        self.is_killed = False

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        if self.is_busy:
            raise BusyError
        yield

    def kill(self) -> None:
        self.is_killed = True


async def outcome(machine: FakeMachine, directory: Path) -> tuple[type[BaseException], bool]:
    with pytest.raises((CellError, OSError)) as caught:
        await save_machine(cast("Vmm", cast("Any", machine)), directory, "key")
    return caught.type, machine.is_killed


@pytest.mark.parametrize(
    "said",
    [
        b"no JSON\n",
        b"[]\n",
        b"[" * 10_000 + b"\n",
        b'{"error": {"desc": "no"}}\n' + DONE,
        DONE + DONE + DONE + b'{"error": {"desc": "no"}}\n' + DONE,
        DONE * 5 + b'{"event": "MIGRATION", "data": {"status": "failed"}}\n' + DONE,
        b"",
    ],
)
async def test_a_monitor_that_misbehaves_ends_the_machine(tmp_path: Path, said: bytes) -> None:
    """Whatever it says instead of what was asked, or if it is gone."""
    monitor = FakeMonitor()
    monitor.says(said)
    monitor.socket.close()
    assert await outcome(FakeMachine(monitor), tmp_path) == (MachineLostError, True)
    monitor.qmp.close()


async def test_what_is_not_the_machines_fault_leaves_it(tmp_path: Path) -> None:
    """A command that runs, and files that can't be made: the machine goes on, and was told to."""
    monitor = FakeMonitor()
    assert await outcome(FakeMachine(monitor, is_busy=True), tmp_path) == (BusyError, False)
    monitor.says(DONE * 4)
    assert await outcome(FakeMachine(monitor), tmp_path / "none") == (FileNotFoundError, False)
    assert [each["execute"] for each in monitor.heard()][::3] == ["stop", "cont"]
    monitor.socket.close()
    monitor.qmp.close()


BLOCK = 64 << 10


def test_holes_and_zeros_are_the_same(tmp_path: Path) -> None:
    """Sparse or written whole: one digest. A file cut short where only zeros were is another."""
    sparse, full, short = (tmp_path / name for name in ("sparse", "full", "short"))
    full.write_bytes(bytes(32 * BLOCK))
    for path, size in ((sparse, 32 * BLOCK), (short, 31 * BLOCK)):
        path.touch()
        os.truncate(path, size)
    digests = []
    for path in (sparse, full, short):
        with path.open("r+b") as file:
            file.seek(5 * BLOCK + 3)
            file.write(b"data")
        digests.append(digest_memory(path))
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.promise("3.1")
@pytest.mark.parametrize("changed", ["", "state", "memory"])
def test_nothing_is_made_of_a_machine_that_was_changed(tmp_path: Path, changed: str) -> None:
    """Its state by every byte, its memory by the file's stamp."""
    for name in ("state", "memory"):
        (tmp_path / name).write_bytes(b"saved")
    stamp = file_stamp(tmp_path / "memory")
    if changed:
        (tmp_path / changed).write_bytes(b"other")
    with pytest.raises(CellError, match=changed) if changed else nullcontext():
        assert checked_state(tmp_path, hashlib.sha256(b"saved").hexdigest(), stamp) == b"saved"
