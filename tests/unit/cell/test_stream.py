"""A command that is talked to: everything that goes by is on record."""

from __future__ import annotations

import pytest
from tests.fakes.guest import FakeGuest, GuestOp
from tests.fakes.vm import staged

from belljar.errors import LedgerError
from belljar.events import Event, Kind

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


# ---- in the background


async def lasting(guest: FakeGuest, op: GuestOp) -> None:
    """Say a little, then run until it is killed."""
    await guest.started(op)
    await guest.output(op, 1, b"hello")
    await guest.until_killed(op)


@pytest.mark.promise("4.2")
async def test_it_ends_with_its_cell() -> None:
    """Destroying the cell ends every command first, so that each end is on record before the
    cell's."""
    async with staged({b"lasting": lasting}) as stage:
        commands = [await stage.cell.start(["lasting"]) for _ in range(3)]
        await stage.cell.destroy()
        assert not any(command.running for command in commands)
        assert stage.kinds().count(Kind.EXEC_COMPLETED) == 3
        assert stage.guest.ops == {}


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
