"""Units' findings put together: one row a sample, the worst verdict, and nothing lost silently."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.fleet.test_units import row

from belljar.fleet.units import Asked, Try, Unit, judge_fleet, summary
from belljar.probe.model import Verdict
from belljar.report.left import Destination, Left, Way
from belljar.report.reasons import Reason, ReasonCode
from belljar.report.samples import Row, RunFindings

ASKED = Asked(run_id="r", task="t", samples=("a", "b"), epochs=1)
FIRST = Unit(number=1, samples=("a",))
SECOND = Unit(number=2, samples=("b",))
AGAIN = replace(FIRST, attempt=2)
CLEAN = Left(unknown=())


def found(*rows: Row | str, **more: object) -> RunFindings:
    """A unit with these rows, of which a name is a contained sample."""
    made = tuple(row(each) if isinstance(each, str) else each for each in rows)
    return replace(RunFindings(rows=made, left=CLEAN), **more)  # type: ignore[arg-type]


def tried(unit: Unit, node: str, *rows: Row | str, **more: object) -> Try:
    return Try(unit=unit, node=node, findings=found(*rows, **more))


def codes(whole: RunFindings) -> set[ReasonCode]:
    return {reason.code for reason in whole.problems}


def verdicts(whole: RunFindings) -> list[Verdict]:
    return [each.verdict for each in whole.rows]


LOST = Try(unit=SECOND, node="n2", why="the node did not answer")
KEPT_FROM = Try(
    unit=replace(SECOND, attempt=2), node="n1", began=False, why="interrupted before it began"
)


@pytest.mark.parametrize("how", ["lost", "stopped after it was lost", "not on record"])
def test_a_sample_that_never_came_back_is_void(how: str) -> None:
    """Exit code 2, and what left its node is not known; an end of the whole explains no attempt
    that had begun, and an error in one unit nothing of another while the fleet runs."""
    first, ends = tried(FIRST, "n1", "a"), how == "stopped after it was lost"
    others = {"lost": [LOST], "stopped after it was lost": [LOST, KEPT_FROM]}.get(how, [])
    if not others:
        first = tried(FIRST, "n1", "a", errors=("t: error: boom",))
    whole = judge_fleet(ASKED, [first, *others], interrupted=ends)
    assert (verdicts(whole), whole.exit_code) == ([Verdict.CONTAINED, Verdict.VOID], 2)
    assert whole.left.claim == ("can't tell" if others else "nothing")


@pytest.mark.parametrize("code", [1, 130])
def test_what_an_end_kept_from_beginning_is_not_missing(code: int) -> None:
    """An interruption or an error of the task's own, as on one machine."""
    more = {"errors": ("t: error: boom",)} if code == 1 else {}
    first = tried(FIRST, "n1", "a", **more)
    whole = judge_fleet(ASKED, [first], interrupted=code == 130, stopped=code == 1)
    assert (len(whole.rows), whole.exit_code) == (1, code)


def test_a_second_attempt_counts_and_the_first_stays_on_record() -> None:
    """Both are in the sample's note, with the score that does not count."""
    void = row("a", ReasonCode.LEDGER_UNFINISHED)
    void = replace(void, transcript=replace(void.transcript, scores={"s": "7"}))
    lost = replace(tried(FIRST, "n2", void), why="lost")
    tries = [tried(SECOND, "n1", "b"), lost, tried(AGAIN, "n1", "a")]
    whole = judge_fleet(ASKED, tries)
    assert whole.exit_code == 0
    (note,) = whole.rows[0].transcript.notes
    assert "score 7" in note
    assert "n2" in note
    assert "1 of 3 (33 %)" in summary(tries)[0]


@pytest.mark.parametrize("problem", [ReasonCode.PROBES_BREACHED, ReasonCode.RANGE_SURVIVORS])
def test_a_problem_of_a_replaced_attempt_stays(problem: ReasonCode) -> None:
    """Unless it is the infrastructure's, for which it was replaced: a breach never is."""
    void = row("a", ReasonCode.LEDGER_UNFINISHED)
    problems = (Reason(code=ReasonCode.LEDGER_UNFINISHED), Reason(code=problem))
    tries = [
        tried(FIRST, "n1", void, problems=problems),
        *(tried(AGAIN, "n2", "a"), tried(SECOND, "n3", "b")),
    ]
    whole = judge_fleet(ASKED, tries)
    assert codes(whole) == {problem}
    assert (whole.verdict is Verdict.BREACHED) == (problem is ReasonCode.PROBES_BREACHED)


def test_a_node_can_speak_for_its_own_samples_only() -> None:
    """A unit with another's sample, one twice, one of another task, or one uuid for two voids the
    run, and replaces nothing that the sample's own unit says, whatever comes later."""
    good = tried(SECOND, "n2", "b")
    other = replace(row("a"), transcript=replace(row("a").transcript, task="other"))
    twin = replace(row("a"), transcript=replace(row("a").transcript, uuid="b1"))
    for forged in (("a", "b"), ("a", "a"), (other,), (twin,)):
        whole = judge_fleet(ASKED, [tried(FIRST, "n1", *forged), good])
        assert ReasonCode.UNIT_FORGED in codes(whole)
        assert whole.exit_code == 2
    late = tried(FIRST, "n1", "a", row("b", ReasonCode.SCORER_BREACHED))
    assert judge_fleet(ASKED, [good, late]).rows[1].verdict is Verdict.CONTAINED


BAD, GOOD = row("a", ReasonCode.HOST_TOOL_CALLED), row("a")
BREACHED = row("a", ReasonCode.SCORER_BREACHED)


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [(BAD, GOOD, BAD), (GOOD, BAD, GOOD), (GOOD, BREACHED, BREACHED), (BREACHED, GOOD, BREACHED)],
)
def test_a_retry_replaces_only_what_infrastructure_took(first: Row, second: Row, kept: Row) -> None:
    """For one lost epoch: the other's verdict stays whatever the retry says, but for a breach."""
    lost = row("a", ReasonCode.LEDGER_UNFINISHED, epoch=2)
    tries = [tried(FIRST, "n1", first, lost), tried(AGAIN, "n2", second, row("a", epoch=2))]
    whole = judge_fleet(replace(ASKED, samples=("a",), epochs=2), tries)
    assert verdicts(whole) == [kept.verdict, Verdict.CONTAINED]
    (note,) = whole.rows[0].transcript.notes
    assert ("n1" if kept is second else "n2") in note


def test_what_left_each_node_is_added_up() -> None:
    """Calls and bytes of one destination from two nodes."""
    place = Destination(way=Way.MODEL, name="openai/x", calls=2, sent_bytes=10)
    part = Left(destinations=(place,), unknown=())
    tries = [tried(FIRST, "n1", "a", left=part), tried(SECOND, "n2", "b", left=part)]
    (whole,) = judge_fleet(ASKED, tries).left.destinations
    assert (whole.calls, whole.sent_bytes, place.calls) == (4, 20, 2)
