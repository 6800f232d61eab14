"""The monitor's client against a VMM that may say anything."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.errors import CellError
from belljar.isolation.microvm.vmm import Qmp

pytestmark = pytest.mark.anyio


class FakeMonitor:
    """The VMM's end: what it will say is put in beforehand."""

    def __init__(self) -> None:
        ours, self.socket = socket.socketpair()
        self.qmp = Qmp(ours, where="a test")

    def says(self, *lines: bytes) -> None:
        """Words that the client will read."""
        self.socket.sendall(b"".join(lines))

    def heard(self) -> list[dict[str, object]]:
        """The commands so far."""
        self.socket.setblocking(False)
        return [json.loads(line) for line in self.socket.recv(1 << 16).splitlines()]


@pytest.fixture
def monitor() -> Iterator[FakeMonitor]:
    """A VMM that has said nothing yet."""
    fake = FakeMonitor()
    with fake.socket:
        yield fake
        fake.qmp.close()


async def test_a_failed_migration_is_an_error(monitor: FakeMonitor) -> None:
    """It does not wait for the deadline."""
    monitor.says(b'{"event": "MIGRATION", "data": {"status": "failed"}}\n')
    with pytest.raises(CellError, match="could not move the device state: failed"):
        await monitor.qmp.wait_migrated(timeout_s=60)


@pytest.mark.parametrize("data", [b"5", b"null", b'{"status": ["failed"]}', b'{"status": {}}'])
async def test_a_senseless_event_is_passed_over(monitor: FakeMonitor, data: bytes) -> None:
    """An event of the wrong shape from a taken-over VMM is no surprise to the reader."""
    monitor.says(b'{"event": "MIGRATION", "data": ' + data + b"}\n", b'{"event": [], "data": []}\n')
    monitor.says(b'{"event": "MIGRATION", "data": {"status": "completed"}}\n')
    await monitor.qmp.wait_migrated(timeout_s=5)


async def test_a_refusal_is_shown_escaped(monitor: FakeMonitor) -> None:
    """The VMM's words can't act on a terminal."""
    monitor.says(b'{"error": {"desc": "no \\u001b[2J"}}\n')
    with pytest.raises(CellError, match="refused stop") as caught:
        await monitor.qmp.execute("stop")
    assert "\x1b" not in str(caught.value)


async def test_silence_has_a_deadline(monitor: FakeMonitor) -> None:
    """A VMM that does not answer is an error, not a wait for ever."""
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
