"""How samples are cut into units, which nodes may run them, and what is tried again."""

from __future__ import annotations

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
from belljar.report.reasons import Reason, ReasonCode
from belljar.report.samples import Row, RunFindings, Transcript


def row(sample: str, *codes: ReasonCode, epoch: int = 1, error: str = "") -> Row:
    """A sample with these reasons."""
    return Row(
        transcript=Transcript(
            task="t", sample=sample, epoch=epoch, uuid=f"{sample}{epoch}", error=error
        ),
        cells=(),
        reasons=tuple(Reason(code=code) for code in codes),
    )


@given(
    st.integers(1, 500), st.integers(1, 40), st.integers(1, 8), st.floats(0.01, 5000) | st.none()
)
def test_every_sample_gets_into_one_unit_and_the_last_units_are_small(
    count: int, room: int, side_by_side: int, sample_s: float | None
) -> None:
    """Sizes are positive, bounded, add up, and no unit holds more than an equal share."""
    left = count
    while left:
        size = next_size(left, slots=room, side_by_side=side_by_side, sample_s=sample_s)
        assert 1 <= size <= min(left, MAX_UNIT_SAMPLES, -(-left // room))
        left -= size


UNIT = Unit(number=1, samples=("a", "b"))


def test_only_what_infrastructure_took_is_tried_again() -> None:
    """A sample without a record or with a broken one is; one that a guest may have made void, a
    contained one and a breached one are not."""
    found = RunFindings(rows=(row("a"), row("b", ReasonCode.LEDGER_UNFINISHED)))
    assert to_try_again(UNIT, 1, found) == ("b",)
    assert to_try_again(UNIT, 1, RunFindings(rows=(row("a"),))) == ("b",)
    for code in set(ReasonCode) - {ReasonCode.LEDGER_UNFINISHED}:
        mixed = row("b", code, ReasonCode.PROBES_VOID)
        assert to_try_again(UNIT, 1, RunFindings(rows=(row("a"), mixed))) == ()


def test_a_node_without_room_does_not_excuse_a_samples_own_cause() -> None:
    """The node failed and cut the sample, but its evidence says more: it is not tried again."""
    cut = row("a", ReasonCode.HOST_TOOL_CALLED, error="cancelled")
    found = RunFindings(rows=(cut, row("b")), errors=("no space",), failure_code=5)
    assert to_try_again(UNIT, 1, found) == ()


def test_a_process_that_died_is_infrastructure() -> None:
    """Its log says that it did not finish, its cell was neither probed at the end nor destroyed."""
    codes = (
        *(ReasonCode.LEDGER_UNFINISHED, ReasonCode.RUN_END_MISSING),
        *(ReasonCode.CELL_NOT_DESTROYED, ReasonCode.PROBES_MISSING),
    )
    found = RunFindings(
        rows=(row("a", *codes),),
        problems=(Reason(code=ReasonCode.LEDGER_UNFINISHED),),
        errors=("t: started: it did not finish",),
    )
    assert to_try_again(UNIT, 1, found) == ("a", "b")


def test_a_full_disk_of_a_node_is() -> None:
    """The node's own failure ended it: samples that it cut are tried elsewhere."""
    found = RunFindings(
        rows=(row("a", error="cancelled"), row("b")), errors=("no space",), failure_code=5
    )
    assert to_try_again(UNIT, 1, found) == ("a",)


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
    """Twice the samples' own limit and more for each round and each attempt after an error; none
    without a limit."""
    limit = deadline_s(Unit(number=1, samples=("a",) * 4), 2, 4, 600.0)
    assert limit is not None
    assert limit > 2 * 2 * 600.0
    again = deadline_s(Unit(number=1, samples=("a",) * 4), 2, 4, 600.0, retries=1)
    assert again is not None
    assert again > 2 * 2 * 2 * 600.0
    assert deadline_s(UNIT, 1, 1, None) is None


def test_all_epochs_of_a_sample_are_needed() -> None:
    """One of two epochs is missing: the sample is tried again."""
    found = RunFindings(rows=(row("a"), row("a", epoch=2), row("b")))
    assert to_try_again(UNIT, 2, found) == ("b",)


def test_an_error_of_the_task_is_not_tried_again() -> None:
    """It ended the evaluation, which is why another sample did not begin."""
    found = RunFindings(rows=(row("a", error="IndexError"),), errors=("t: error: IndexError",))
    assert to_try_again(UNIT, 1, found) == ()
