"""An operation's deadlines and its end by every road, where the timing is delicate."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from tests.fakes import guest as g
from tests.fakes.guest import FakeGuest, GuestOp
from tests.fakes.talking import CAT, talking

from belljar.channel import ExecRequest
from belljar.channel.operations import OwnReads

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


async def test_a_killed_operation_gets_the_credit_it_needs_to_end() -> None:
    """A guest that must first send what it has, more than a window, can do so after the kill."""

    async def heavy(guest: FakeGuest, op: GuestOp) -> None:
        await guest.started(op)
        while not op.killed:
            await op.news.wait()
        op.killed = False
        await guest.output(op, 1, b"x" * 5_000_000)
        await guest.finish(op, g.SIGNALED, 9, flags=2)

    async with talking({b"heavy": heavy}) as (_, client):
        outcome = await client.exec(
            ExecRequest(argv=["heavy"], timeout_s=0.05, max_stdout_bytes=1 << 30)
        )
        assert outcome.timed_out
        assert len(outcome.stdout) + outcome.stdout_dropped_bytes == 5_000_000
        with anyio.move_on_after(0.05) as scope:
            await client.exec(ExecRequest(argv=["heavy"], max_stdout_bytes=1 << 30))
        assert scope.cancelled_caught
        assert (await client.exec(CAT, input=b"on")).stdout == b"on"


@pytest.mark.promise("5.6")
async def test_a_read_is_told_before_and_after() -> None:
    """Also one that fails."""
    own, order = OwnReads(), list[str]()

    @asynccontextmanager
    async def cover(path: str, is_tree: bool) -> AsyncIterator[None]:
        order.append(f"{path} {is_tree}")
        try:
            yield
        finally:
            order.append("ended")

    own.covers.append(cover)
    with suppress(FileNotFoundError):
        async with own.of("../b/./c", "/a"):
            order.append("read")
            raise FileNotFoundError("gone")
    assert order == ["/b/c False", "read", "ended"]


async def test_a_guest_that_dribbles_does_not_evade_the_deadline() -> None:
    """Output that keeps coming does not put the deadline off; what came before the kill is
    delivered, the rest counted."""

    async def dribble(guest: FakeGuest, op: GuestOp) -> None:
        await guest.started(op)
        while not op.killed:
            await guest.output(op, 1, b"x")
            await anyio.sleep(0.001)
        await guest.send(g.frame(g.DATA, op.id, b"\1late"))
        await guest.finish(op, g.SIGNALED, 9, flags=2)

    async with talking({b"dribble": dribble}) as (_, client):
        with anyio.fail_after(60):
            outcome = await client.exec(ExecRequest(argv=["dribble"], timeout_s=0.1))
        assert outcome.timed_out
        assert set(outcome.stdout) == {ord("x")}
        assert outcome.stdout_dropped_bytes >= 4
