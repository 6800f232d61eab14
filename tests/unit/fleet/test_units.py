"""How samples are cut into units, which nodes may run them, and what is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.fleet.units import (
    MAX_ATTEMPTS,
    MAX_UNIT_SAMPLES,
    Unit,
    another_try,
    deadline_s,
    next_size,
    to_try_again,
)
from belljar.report.reasons import Reason
from belljar.report.reasons import ReasonCode as Code
from belljar.report.samples import Row, RunFindings, Transcript


def row(sample: str, *codes: Code, epoch: int = 1, error: str = "") -> Row:
    named = Transcript(task="t", sample=sample, epoch=epoch, uuid=f"{sample}{epoch}", error=error)
    return Row(transcript=named, cells=(), reasons=tuple(Reason(code=code) for code in codes))


@given(st.integers(1, 500), st.integers(1, 40), st.integers(1, 8))
def test_every_sample_gets_into_one_unit_and_the_last_units_are_small(
    count: int, room: int, side_by_side: int
) -> None:
    """Sizes are positive, bounded, add up, and no unit holds more than an equal share."""
    left = count
    while left:
        size = next_size(left, slots=room, side_by_side=side_by_side)
        assert 1 <= size <= min(left, MAX_UNIT_SAMPLES, -(-left // room))
        left -= size


UNIT = Unit(number=1, samples=("a", "b"))
OWN_ERROR = {"errors": ("t: error: IndexError",)}
NO_DISK = {"errors": ("no space",), "failure_code": 5}
DIED = {"problems": (Reason(code=Code.LEDGER_UNFINISHED),), "errors": ("it did not finish",)}
# What is left of a sample whose process died: neither probed at the end nor destroyed.
CUT = (Code.LEDGER_UNFINISHED, Code.RUN_END_MISSING, Code.CELL_NOT_DESTROYED, Code.PROBES_MISSING)


@pytest.mark.parametrize(
    ("rows", "more", "again"),
    [
        ((row("a"), row("b", Code.LEDGER_UNFINISHED)), {}, ("b",)),
        ((row("a"),), {}, ("b",)),
        ((row("a", *CUT),), DIED, ("a", "b")),
        ((row("a", error="cancelled"), row("b")), NO_DISK, ("a",)),
        # The node failed, but the sample's evidence says more.
        ((row("a", Code.HOST_TOOL_CALLED, error="cancelled"), row("b")), NO_DISK, ()),
        # It ended the evaluation, which is why another sample did not begin.
        ((row("a", error="IndexError"),), OWN_ERROR, ()),
        *(
            ((row("a"), row("b", code, Code.PROBES_VOID)), {}, ())
            for code in set(Code) - {Code.LEDGER_UNFINISHED}
        ),
    ],
)
def test_only_what_infrastructure_took_is_tried_again(
    rows: tuple[Row, ...], more: dict[str, object], again: tuple[str, ...]
) -> None:
    """A sample without a record, or of a process that died or had no disk; not one that a guest may
    have made void, a contained one, a breached one, or one after an error of the task's own."""
    assert to_try_again(UNIT, 1, RunFindings(rows=rows, **more)) == again  # type: ignore[arg-type]


def test_all_epochs_of_a_sample_are_needed() -> None:
    """One of two epochs is missing: the sample is tried again."""
    found = RunFindings(rows=(row("a"), row("a", epoch=2), row("b")))
    assert to_try_again(UNIT, 2, found) == ("b",)


def test_another_try_goes_to_a_node_that_has_not_had_it_within_a_bound() -> None:
    """Three attempts; none without a fresh node, and none of no samples."""
    nodes = {"n1", "n2", "n3", "n4"}
    unit, tried = UNIT, 0
    while (again := another_try(unit, ["a"], f"n{unit.attempt}", nodes)) is not None:
        assert f"n{unit.attempt}" in again.not_on
        unit, tried = again, tried + 1
    assert tried == MAX_ATTEMPTS - 1
    assert another_try(UNIT, ["a"], "n1", {"n1"}) is None
    assert another_try(UNIT, [], "n1", nodes) is None


def test_a_deadline_leaves_room_for_scoring() -> None:
    """Twice the samples' own limit and more for each round and each attempt; none without one."""
    unit = Unit(number=1, samples=("a",) * 4)
    assert (deadline_s(unit, 2, 4, 600.0) or 0) > 2 * 2 * 600.0
    assert (deadline_s(unit, 2, 4, 600.0, retries=1) or 0) > 2 * 2 * 2 * 600.0
    assert deadline_s(UNIT, 1, 1, None) is None
