"""The client against a guest that lies, floods, falls silent or does not read."""

from __future__ import annotations

import gc
from contextlib import suppress

import anyio
import pytest
from tests.fakes import guest as g
from tests.fakes.guest import FakeGuest, GuestOp
from tests.fakes.talking import HANG, raw, talking

from belljar.channel import ExecRequest, GuestClient, Stream
from belljar.errors import ProtocolViolation

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


@pytest.mark.promise("4.1")
@pytest.mark.parametrize(
    "said",
    [
        [g.frame(g.RESULT, 0, g.result_payload())],
        [g.frame(g.DATA, 0, b"\1x")],
        [g.frame(g.STARTED, 0, bytes(8)), g.frame(g.DATA, 0, b"\3x")],
        [g.frame(g.STARTED, 0, bytes(8)), g.frame(g.DATA, 0, b"\1" + bytes(65_535))]
        + [g.frame(g.DATA, 0, b"\1" + bytes(65_535))] * 16,
        [b"\xff" * 12],
    ],
    ids=[
        "success that never started",
        "data before started",
        "stream 3",
        "over its credit",
        "noise",
    ],
)
async def test_violations_end_everything(said: list[bytes]) -> None:
    """A guest that breaks the protocol in one operation ends them all, as `ProtocolViolation`."""
    async with talking({b"raw": raw(*said)}) as (_, client):
        failures = []

        async def bystander() -> None:
            with pytest.raises(ProtocolViolation) as caught:
                await client.exec(HANG)
            failures.append(caught.value)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bystander)
            tasks.start_soon(_start, client, ExecRequest(argv=["raw"], max_stdout_bytes=1 << 30))
            with pytest.raises(ProtocolViolation):
                await _ping_until_it_fails(client)
        assert len(failures) == 1


async def _start(client: GuestClient, request: ExecRequest) -> None:
    with suppress(ProtocolViolation):
        async with client.open_exec(request):
            await _ping_until_it_fails(client)


async def _ping_until_it_fails(client: GuestClient) -> None:
    while True:
        await client.ping()


async def test_tiny_frames_cost_no_more_than_their_bytes() -> None:
    """Half a million frames that nobody takes are not as many objects."""

    sent = False

    async def dribble(guest: FakeGuest, op: GuestOp) -> None:
        nonlocal sent
        await guest.started(op)
        await guest.send(
            (g.frame(g.DATA, op.id, b"\1x") + g.frame(g.DATA, op.id, b"\2y")) * 250_000
        )
        sent = True
        await guest.until_killed(op)

    async with talking({b"dribble": dribble}) as (_, client):
        before = len(gc.get_objects())
        async with client.open_exec(ExecRequest(argv=["dribble"])) as running:
            while not sent:
                await client.ping(timeout_s=30)
            await client.ping()
            assert len(gc.get_objects()) - before < 10_000
            assert await anext(running) == (Stream.STDOUT, b"x" * 250_000)
            assert await anext(running) == (Stream.STDERR, b"y" * 250_000)
