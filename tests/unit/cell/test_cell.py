"""A cell's operations: each is recorded before it begins and when its outcome is known, whatever
that is. A real client, a fake guest."""

from __future__ import annotations

import errno

import anyio
import pytest
from tests.fakes import guest as g
from tests.fakes.guest import FakeGuest, GuestOp
from tests.fakes.talking import endless
from tests.fakes.vm import CONSOLE, staged

from belljar.errors import CellError, ProtocolViolation
from belljar.events import Event, Kind

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


async def die(guest: FakeGuest, op: GuestOp) -> None:
    await guest.started(op)
    await guest.output(op, 1, b"last words")
    guest.close()


async def lie(guest: FakeGuest, op: GuestOp) -> None:
    await guest.send(g.frame(g.RESULT, op.id, g.result_payload()))


async def test_the_start_is_on_record_before_the_guest_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the record can't be written, nothing runs."""

    def full(_event: Event) -> int:
        raise OSError(errno.ENOSPC, "no space")

    async with staged() as stage:
        monkeypatch.setattr(stage.recorder, "record", full)
        for operation in (
            stage.cell.exec(["cat"]),
            stage.cell.write_file("/a", b"x"),
            stage.cell.read_file("/a", max_bytes=1),
        ):
            with pytest.raises(OSError, match="no space"):
                await operation
        assert stage.guest.started_order == []


async def test_a_cancelled_command() -> None:
    """Its end is on record with what it had said; the cell goes on."""
    async with staged() as stage:
        with anyio.CancelScope() as scope:
            await stage.cell.exec(["cat"], input=endless(), on_output=lambda *_: scope.cancel())
        assert scope.cancelled_caught
        assert stage.kinds() == [Kind.EXEC_STARTED, Kind.EXEC_FAILED]
        assert {body.name for body in stage.last(Kind.EXEC_FAILED).bodies} == {"stdin", "stdout"}
        assert (await stage.cell.exec(["cat"], input=b"on")).stdout == b"on"


@pytest.mark.parametrize("cause", ["", "its VMM was killed by signal 9"])
async def test_a_cell_that_dies(cause: str) -> None:
    """Its death is recorded once, with cause and console."""
    async with staged({b"die": die}) as stage:
        stage.vm.cause = cause
        ended: list[CellError] = []

        async def run(command: str) -> None:
            with pytest.raises(CellError, match=cause or "gone") as caught:
                await stage.cell.exec([command])
            ended.append(caught.value)

        async with anyio.create_task_group() as tasks:
            for command in ("hang", "hang", "die"):
                tasks.start_soon(run, command)
        failed = [event for event in stage.recorder.events if event.kind is Kind.EXEC_FAILED]
        assert b"last words" in [body.content for event in failed for body in event.bodies]
        assert stage.last(Kind.CELL_FAILED).bodies[0].content == CONSOLE
        counts = [stage.kinds().count(kind) for kind in (Kind.EXEC_STARTED, Kind.CELL_FAILED)]
        assert (len(failed), counts) == (3, [3, 1])
        for operation in (
            stage.cell.exec(["cat"]),
            stage.cell.write_file("/a", b"x"),
            stage.cell.read_file("/a", max_bytes=1),
            stage.cell.ping(),
        ):
            with pytest.raises(CellError) as later:
                await operation
            ended.append(later.value)
        assert len({id(error) for error in ended}) == 1
        assert len(stage.recorder.events) == 7


async def test_a_guest_that_breaks_the_protocol() -> None:
    """That death has a kind of its own."""
    async with staged({b"lie": lie}) as stage:
        with pytest.raises(CellError, match="broke the protocol") as caught:
            await stage.cell.exec(["lie"])
        assert isinstance(caught.value.__cause__, ProtocolViolation)
        assert stage.kinds() == [Kind.EXEC_STARTED, Kind.EXEC_FAILED, Kind.PROTOCOL_VIOLATION]
