"""Many operations over one channel, and what becomes of them when it ends. Part of the contract
that every guest agent must keep."""

from __future__ import annotations

import os

import anyio
import pytest
from tests.fakes.asking import sh
from tests.machine import PATIENCE_S

from belljar.channel import ExecRequest, GuestClient

pytestmark = pytest.mark.anyio
MIB = 1 << 20


# ---- many at once


@pytest.mark.promise("4.3")
async def test_hundreds_of_commands_at_once(client: GuestClient, carrier: str) -> None:
    """300 concurrent commands (in slow tiers a hundred) queue, each gets its own answer, and none
    starves."""
    # A program's start takes 50 ms in gVisor, half of that in an emulated machine: more of them
    # show no more than that they queue, at 64 at once.
    count = 100 if carrier.startswith(("gvisor", "microvm")) else 300
    answers: dict[int, bytes] = {}

    async def one(number: int) -> None:
        answers[number] = (
            await client.exec(ExecRequest(argv=["cat"]), input=str(number).encode())
        ).stdout

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for number in range(count):
                tasks.start_soon(one, number)
    assert answers == {number: str(number).encode() for number in range(count)}


async def test_work_of_all_kinds_at_once(client: GuestClient, folder: str, carrier: str) -> None:
    """Floods, files, cancellations and short commands over one channel do not disturb each
    other."""

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
        assert (
            await client.exec(ExecRequest(argv=["cat"]), input=b"x" * number)
        ).stdout == b"x" * number
        await client.ping()

    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            for number in range(10 if carrier.startswith(("gvisor", "microvm")) else 25):
                for work in (flood, copy, give_up, chat):
                    tasks.start_soon(work, number)


# ---- the connection
