"""A machine that is to be saved, with a monitor that may say anything."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.isolation.test_qmp import FakeMonitor

from belljar.channel.client import BusyError
from belljar.errors import CellError, HostError
from belljar.isolation.microvm.saved import MachineLostError, save_machine
from belljar.isolation.microvm.vmm import Vmm

pytestmark = pytest.mark.anyio
DONE = b'{"return": {}}\n'


class FakeMachine:
    """What of a machine is needed: its monitor's client is the real one."""

    def __init__(self, monitor: FakeMonitor, *, is_busy: bool = False) -> None:
        self.qmp, self.client, self.is_busy = monitor.qmp, self, is_busy
        self.spec = SimpleNamespace(shape=SimpleNamespace(ram_mib=1))
        self.is_killed = False

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """As the channel's client."""
        if self.is_busy:
            raise BusyError
        yield

    def kill(self) -> None:
        """It was ended."""
        self.is_killed = True


async def outcome(machine: FakeMachine, directory: Path) -> tuple[type[BaseException], bool]:
    """How saving it failed, and whether that ended it."""
    with pytest.raises((CellError, HostError)) as caught:
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
    assert await outcome(FakeMachine(monitor), tmp_path / "none") == (HostError, False)
    assert [each["execute"] for each in monitor.heard()][::3] == ["stop", "cont"]
    monitor.socket.close()
    monitor.qmp.close()
