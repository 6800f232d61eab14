"""Many operations over one channel, and what becomes of them when it ends. Part of the contract
that every guest agent must keep."""

from __future__ import annotations

import anyio
import pytest
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


# ---- the connection
