"""A cell between its pool and its taker."""

from __future__ import annotations

import pytest

from belljar.cell.lease import Spare, Ticket, Waste, undo
from belljar.errors import ContainmentBreach
from belljar.events import Kind
from belljar.ledger.schema import check_data

pytestmark = pytest.mark.anyio


def test_a_ticket_is_answered_once_and_only_while_somebody_waits() -> None:
    """An answer to a ticket that was withdrawn, or answered before, changes nothing."""
    withdrawn, served = Ticket(), Ticket()
    assert withdrawn.cancel()
    withdrawn.answer(None)
    assert withdrawn.cancelled()
    served.answer(None)
    served.answer(None)
    assert served.result() is None
    assert not served.cancel()


async def test_who_goes_away_takes_nothing_along() -> None:
    """A ticket without an answer is withdrawn; an answer that is no cell needs nothing."""
    open_, refused, breached = Ticket(), Ticket(), Ticket()
    await undo(open_)
    assert open_.cancelled()
    refused.answer(None)
    await undo(refused)
    breached.set_exception(ContainmentBreach("breached"))
    await undo(breached)


async def test_a_cell_that_is_not_made_yet_can_not_be_given_out() -> None:
    """It has no time left, whatever the clock says."""
    spare = Spare()
    assert spare.left_s() <= 0
    spare.call(reason=Waste.UNUSED)
    assert spare.called.is_set()
    assert (spare.reason, spare.ticket) == (Waste.UNUSED, None)


@pytest.mark.parametrize("reason", Waste)
def test_every_reason_can_stand_in_the_record(reason: Waste) -> None:
    """In words that a reader understands without this code."""
    check_data(Kind.CELL_DESTROYING, {"reason": reason})
    assert reason.startswith("it was made ahead")
