"""The agent's connection itself, which only the bare agent shows: nothing before RENEW, and the end
of all when it dies."""

from __future__ import annotations

import signal
import socket
import subprocess

import anyio
import pytest
from tests.fakes.asking import renew
from tests.machine import PATIENCE_S

from belljar.channel import ExecRequest, GuestClient
from belljar.errors import CellError

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both loops, once."""
    return str(request.param)


async def test_operations_wait_for_renewal(agent_socket: socket.socket) -> None:
    """Nothing runs in a guest that wasn't renewed."""
    async with GuestClient(agent_socket) as client:
        await client.hello()
        with pytest.raises(RuntimeError, match="RENEW"):
            await client.exec(ExecRequest(argv=["true"]))
        await renew(client)
        assert (await client.exec(ExecRequest(argv=["true"]))).returncode == 0


@pytest.mark.promise("4.1")
async def test_a_dead_agent_ends_every_operation_at_once(
    agent_process: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    """When the agent dies, every operation that runs or queues, and every later one, is a
    `CellError`."""
    process, ours = agent_process
    failed: list[CellError] = []
    async with GuestClient(ours, max_ops=4) as client:
        await client.hello()
        await renew(client)

        async def one() -> None:
            with pytest.raises(CellError) as caught:
                await client.exec(ExecRequest(argv=["sleep", "2"]))
            failed.append(caught.value)

        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(one)
                await client.ping()
                process.send_signal(signal.SIGKILL)
        with pytest.raises(CellError, match="gone"):
            await client.ping()
    assert len(failed) == 8
