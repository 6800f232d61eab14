"""A cell between its pool and its taker."""

from __future__ import annotations

import pytest

from belljar.cell.lease import CellRequest, Discard, PooledCell, undo
from belljar.errors import ContainmentBreach
from belljar.events import Kind
from belljar.ledger.schema import check_data

pytestmark = pytest.mark.anyio


def test_a_ticket_is_answered_once_and_only_while_somebody_waits() -> None:
    """An answer to a request that was withdrawn, or answered before, changes nothing."""
    withdrawn, served = CellRequest(), CellRequest()
    assert withdrawn.cancel()
    withdrawn.answer(None)
    assert withdrawn.cancelled()
    served.answer(None)
    served.answer(None)
    assert served.result() is None
    assert not served.cancel()


async def test_who_goes_away_takes_nothing_along() -> None:
    """A request without an answer is withdrawn; an answer that is no cell needs nothing."""
    open_, refused, breached = CellRequest(), CellRequest(), CellRequest()
    await undo(open_)
    assert open_.cancelled()
    refused.answer(None)
    await undo(refused)
    breached.set_exception(ContainmentBreach("breached"))
    await undo(breached)


async def test_a_cell_that_is_not_made_yet_can_not_be_given_out() -> None:
    """It has no time left, whatever the clock says."""
    pooled = PooledCell()
    assert pooled.left_s() <= 0
    pooled.call(reason=Discard.UNUSED)
    assert pooled.called.is_set()
    assert (pooled.reason, pooled.request) == (Discard.UNUSED, None)


@pytest.mark.parametrize("reason", Discard)
def test_every_reason_can_stand_in_the_record(reason: Discard) -> None:
    """In words that a reader understands without this code."""
    check_data(Kind.CELL_DESTROYING, {"reason": reason})
    assert reason.startswith("it was made ahead")
