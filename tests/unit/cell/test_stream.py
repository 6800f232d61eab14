"""A command that is talked to: everything that goes by is on record."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest
from tests.fakes import guest as g
from tests.fakes.guest import FakeGuest, GuestOp
from tests.fakes.vm import staged

from belljar.cell.guarded import GuardedRecorder
from belljar.channel import PtySize
from belljar.errors import LedgerError
from belljar.events import Event, Kind
from belljar.policy.guarding import Action, GuardRules, Place
from belljar.signals.values import KnownValue, ValueSource

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


async def lasting(guest: FakeGuest, op: GuestOp) -> None:
    await guest.started(op)
    await guest.output(op, 1, b"hello")
    await guest.until_killed(op)


async def chatty(guest: FakeGuest, op: GuestOp) -> None:
    """Say something, and more when told to or killed, then end."""
    await guest.started(op)
    await guest.send(g.frame(g.DATA, op.id, b"\x01one "))
    await guest.stdin(op)
    await guest.send(g.frame(g.DATA, op.id, b"\x01two"))
    await guest.finish(op)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_what_nobody_iterates_is_on_record(is_killed: bool) -> None:
    """The wait for the end drops and counts it; the record has it, and the input."""
    async with staged({b"chatty": chatty}) as stage:
        async with stage.cell.open_exec(["chatty"]) as running:
            await (running.kill() if is_killed else running.send_stdin(memoryview(b"go")))
            output = await running.wait()
        assert (output.stdout, output.stdout_dropped_bytes) == (b"", 7)
        bodies = {body.name: body.content for body in stage.last(Kind.EXEC_COMPLETED).bodies}
        assert bodies["stdout"] == b"one two"
        assert is_killed or bodies["stdin"] == b"go"


async def test_leaving_early_is_on_record() -> None:
    """A command that was left before its end failed, with what it had said; its tree is dead."""
    async with staged({b"lasting": lasting}) as stage:
        size = PtySize(rows=24, cols=80)
        async with stage.cell.open_exec(["lasting"], pty=size) as running:
            assert (await anext(running))[1] == b"hello"
            await running.resize(30, 90)
        assert stage.guest.ops == {}
        assert stage.kinds() == [Kind.EXEC_STARTED, Kind.EXEC_FAILED]
        failed = stage.last(Kind.EXEC_FAILED)
        assert failed.bodies[0].content == b"hello"
        assert cast("Any", failed.data["size_times"])[0][1:] == [90, 30]


@pytest.mark.promise("4.2")
async def test_it_ends_with_its_cell() -> None:
    """Destroying the cell ends every command first: each end is on record before the cell's."""
    async with staged({b"lasting": lasting}) as stage:
        commands = [await stage.cell.start(["lasting"]) for _ in range(3)]
        await stage.cell.destroy()
        assert not any(command.running for command in commands)
        assert stage.kinds().count(Kind.EXEC_COMPLETED) == 3
        assert stage.guest.ops == {}


@pytest.mark.promise("5.7")
async def test_what_a_command_in_the_background_says_in_pieces_is_redacted_as_a_whole() -> None:
    """However it cuts what it says."""

    async def say(guest: FakeGuest, op: GuestOp) -> None:
        await guest.started(op)
        for piece in (b"say protected", b"-value-1 once"):
            await guest.output(op, 1, piece)
            await anyio.sleep(0.1)  # Else they would arrive as one.
        await guest.finish(op)

    value = KnownValue(id="v", text="protected-value-1", source=ValueSource.PROTECTED)
    async with staged({b"say": say}) as stage:
        rules = GuardRules(actions={Place.OUTPUT: Action.REDACT})
        guard = GuardedRecorder(stage.recorder, rules, bytes(32), [value])
        stage.cell._recorder, stage.cell.guard, stage.cell._redacts = guard, guard, True
        command = await stage.cell.start(["say"])
        assert (await command.wait()).stdout == b"say [redacted] once"
        assert command.output().stdout == b"say [redacted] once"


async def test_a_cell_is_destroyed_though_its_commands_can_not_be_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk keeps no cell alive: the error comes when the cell has gone."""

    def full(event: Event) -> None:
        raise LedgerError(f"no space for {event.kind.value}")

    async with staged({b"lasting": lasting}) as stage:
        await stage.cell.start(["lasting"])
        monkeypatch.setattr(stage.recorder, "record", full)
        with pytest.raises(LedgerError):
            await stage.cell.destroy()
        assert stage.cell.destruction is not None
