"""The client against a fake guest."""

from __future__ import annotations

import errno

import anyio
import pytest
from tests.fakes.talking import CAT, FLOOD, HANG, SHORT_S, endless, talking

from belljar.channel import ExecRequest
from belljar.channel.client import BusyError
from belljar.errors import CellError

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


async def test_cancelled_at_every_step() -> None:
    """Wherever a cancellation hits, the connection stays whole."""
    async with talking() as (guest, client):
        for step in range(60):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(_cancel_after, scope, step)
                    await client.exec(
                        ExecRequest(argv=["cat"], max_stdout_bytes=1 << 30), input=b"x" * 400_000
                    )
            assert guest.ops == {}
        assert (await client.exec(CAT, input=b"on")).stdout == b"on"


async def _cancel_after(scope: anyio.CancelScope, checkpoints: int) -> None:
    for _ in range(checkpoints):
        await anyio.lowlevel.checkpoint()
    scope.cancel()


@pytest.mark.promise("4.1")
async def test_the_hosts_own_deadline() -> None:
    """A guest that forgets its timeout is reminded."""
    async with talking() as (guest, client):
        outcome = await client.exec(ExecRequest(argv=["hang"], timeout_s=0.1))
        assert (outcome.timed_out, outcome.killed, outcome.returncode) == (True, True, 137)
        assert (
            await client.exec(
                ExecRequest(argv=["flood"], timeout_s=0.1, max_stdout_bytes=1 << 40), keep="tail"
            )
        ).timed_out
        with pytest.raises(TimeoutError, match="/slow"):
            await client.write_file("/slow", endless(), timeout_s=0.1)
        assert guest.files == {}


@pytest.mark.promise("4.1")
async def test_a_guest_that_does_not_end_what_it_was_told_to_kill() -> None:
    """No RESULT after the kill: everyone is told so, in bounded time."""
    async with talking(kill_s=SHORT_S) as (_, client):
        with pytest.raises(CellError, match="told to kill"):
            await client.exec(ExecRequest(argv=["undying"], timeout_s=0.1))
        with pytest.raises(CellError, match="told to kill"):
            await client.exec(CAT)
    async with talking(kill_s=SHORT_S) as (_, client):
        with anyio.move_on_after(0.1) as scope:
            await client.exec(ExecRequest(argv=["undying"]))
        assert scope.cancelled_caught
        with pytest.raises(CellError, match="told to kill"):
            await client.ping()


async def test_death_ends_all_at_once() -> None:
    """Every operation that runs, streams, queues or comes is a `CellError`."""
    async with talking(max_ops=3) as (guest, client):
        failed = []

        async def one(request: ExecRequest) -> None:
            with pytest.raises(CellError, match="gone"):
                await client.exec(request, input=endless())
            failed.append(request)

        async with anyio.create_task_group() as tasks:
            for request in (HANG, CAT, FLOOD) * 4:
                tasks.start_soon(one, request)
            await client.ping()
            guest.close()
        assert len(failed) == 12
        with pytest.raises(CellError, match="gone"):
            await client.exec(CAT)
        assert client.failure is not None


async def test_nothing_is_sent_to_a_frozen_workload() -> None:
    """Commands and pings wait until the block is left."""
    async with talking() as (guest, client), anyio.create_task_group() as tasks:
        async with client.frozen():
            tasks.start_soon(client.exec, CAT)
            tasks.start_soon(client.ping)
            await anyio.wait_all_tasks_blocked()
            assert (guest.started_order, guest.freezes) == ([], [1])
        assert guest.freezes == [1, 0]
        with anyio.CancelScope() as scope:
            scope.cancel()
            async with client.frozen():
                await anyio.sleep_forever()
        assert guest.freezes == [1, 0, 1, 0]
    assert len(guest.started_order) == 1


async def test_a_busy_guest_is_not_frozen() -> None:
    """While a command runs, by the host's word or the guest's; another errno is another error."""
    async with talking() as (guest, client):
        async with client.open_exec(HANG):
            with pytest.raises(BusyError):
                async with client.frozen():
                    pass
        assert guest.freezes == []
        for number, kind in ((errno.EBUSY, BusyError), (errno.EOPNOTSUPP, CellError)):
            guest.freeze_errno = number
            with pytest.raises(kind):
                async with client.frozen():
                    pass
        assert guest.freezes == [1, 1]
        assert (await client.exec(CAT, input=b"on")).stdout == b"on"
