"""Many operations over one channel, and what becomes of them when it ends. Part of the contract that every guest agent must keep."""

from __future__ import annotations

import os
import signal
import socket
import subprocess

import anyio
import pytest
from tests.fakes.asking import renew, sh

from belljar.channel import ExecRequest, GuestClient
from belljar.errors import CellError

pytestmark = pytest.mark.anyio
MIB = 1 << 20


# ---- many at once


async def test_a_thousand_commands_at_once(client: GuestClient) -> None:
    """1,000 concurrent commands queue, each gets its own answer, and none starves."""
    answers: dict[int, bytes] = {}

    async def one(number: int) -> None:
        answers[number] = (await client.exec(ExecRequest(argv=["cat"]), input=str(number).encode())).stdout

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for number in range(1000):
                tasks.start_soon(one, number)
    assert answers == {number: str(number).encode() for number in range(1000)}


async def test_work_of_all_kinds_at_once(client: GuestClient, folder: str) -> None:
    """Floods, files, cancellations and short commands over one channel do not disturb each other."""

    async def flood(number: int) -> None:
        size = 3_000_000 + number
        assert len((await client.exec(sh(f"head -c {size} /dev/zero"))).stdout) == size

    async def copy(number: int) -> None:
        content = os.urandom(400_000)
        await client.write_file(f"{folder}/{number}", content)
        assert await client.read_file(f"{folder}/{number}", max_bytes=MIB) == content

    async def give_up(number: int) -> None:
        with anyio.move_on_after(0.01 * number):
            await client.exec(ExecRequest(argv=["yes"], max_stdout_bytes=1 << 40))

    async def chat(number: int) -> None:
        assert (await client.exec(ExecRequest(argv=["cat"]), input=b"x" * number)).stdout == b"x" * number
        await client.ping()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for number in range(25):
                for work in (flood, copy, give_up, chat):
                    tasks.start_soon(work, number)


# ---- the connection


async def test_ping(client: GuestClient) -> None:
    """The agent answers while commands run."""
    async with client.open_exec(ExecRequest(argv=["sleep", "1000"])):
        assert await client.ping(timeout_s=5) < 5


async def test_operations_wait_for_renewal(agent_socket: socket.socket) -> None:
    """Nothing runs in a guest that wasn't renewed."""
    async with GuestClient.from_socket(agent_socket) as client:
        await client.hello()
        with pytest.raises(RuntimeError, match="RENEW"):
            await client.exec(ExecRequest(argv=["true"]))
        await renew(client)
        assert (await client.exec(ExecRequest(argv=["true"]))).returncode == 0


async def test_a_dead_agent_ends_every_operation_at_once(
    agent_process: tuple[subprocess.Popen[bytes], socket.socket],
) -> None:
    """When the agent dies, every operation that runs or queues, and every later one, is a `CellError`."""
    process, ours = agent_process
    failed: list[CellError] = []
    async with GuestClient.from_socket(ours, max_ops=4) as client:
        await client.hello()
        await renew(client)

        async def one() -> None:
            with pytest.raises(CellError) as caught:
                await client.exec(ExecRequest(argv=["sleep", "2"]))
            failed.append(caught.value)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for _ in range(8):
                    tasks.start_soon(one)
                await client.ping()
                process.send_signal(signal.SIGKILL)
        with pytest.raises(CellError, match="gone"):
            await client.ping()
    assert len(failed) == 8
