"""Units' findings put together: one row a sample, the worst verdict, and nothing lost silently."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.fleet.test_units import row

from belljar.fleet.judge import Asked, Try, judge_fleet, summary
from belljar.fleet.units import Unit
from belljar.probe.model import Verdict
from belljar.report.left import Destination, Left, Way
from belljar.report.reasons import Reason, ReasonCode
from belljar.report.samples import RunFindings

ASKED = Asked(run_id="r", task="t", samples=("a", "b"), epochs=1)
FIRST = Unit(number=1, samples=("a",))
SECOND = Unit(number=2, samples=("b",))
CLEAN = Left(unknown=())


def found(*samples: str, **more: object) -> RunFindings:
    """A unit whose samples are contained."""
    made = RunFindings(rows=tuple(row(sample) for sample in samples), left=CLEAN)
    return replace(made, **more)  # type: ignore[arg-type]


def test_a_sample_that_never_came_back_is_void() -> None:
    """Its unit is named, exit code 2, and what left its node is not known."""
    lost = Try(unit=SECOND, node="n2", why="the node did not answer")
    whole = judge_fleet(ASKED, [Try(unit=FIRST, node="n1", findings=found("a")), lost])
    assert [each.verdict for each in whole.rows] == [Verdict.CONTAINED, Verdict.VOID]
    assert (whole.exit_code, whole.left.claim) == (2, "can't tell")
    assert "n2" in str(whole.problems[0])


def test_a_second_attempt_counts_and_the_first_stays_on_record() -> None:
    """Both are in the sample's note, with the score that does not count."""
    void = row("b", ReasonCode.LEDGER_UNFINISHED)
    void = replace(void, transcript=replace(void.transcript, scores={"s": "7"}))
    again = replace(SECOND, attempt=2)
    tries = [
        Try(unit=FIRST, node="n1", findings=found("a")),
        Try(unit=SECOND, node="n2", findings=RunFindings(rows=(void,), left=CLEAN), why="lost"),
        Try(unit=again, node="n1", findings=found("b")),
    ]
    whole = judge_fleet(ASKED, tries)
    assert whole.exit_code == 0
    (note,) = whole.rows[1].transcript.notes
    assert "score 7" in note
    assert "n2" in note
    assert "1 of 3 (33 %)" in summary(tries)[0]


def test_the_worst_unit_wins_and_a_breach_is_never_replaced() -> None:
    """Though another attempt at the same sample was contained."""
    problem = Reason(code=ReasonCode.PROBES_BREACHED)
    tries = [
        Try(unit=FIRST, node="n1", findings=found("a", problems=(problem,))),
        Try(unit=replace(FIRST, attempt=2), node="n2", findings=found("a")),
        Try(unit=SECOND, node="n3", findings=found("b")),
    ]
    assert judge_fleet(ASKED, tries).verdict is Verdict.BREACHED


def test_a_node_can_speak_for_its_own_samples_only() -> None:
    """A unit with another's sample, one twice, or of another task voids the run."""
    good = Try(unit=SECOND, node="n2", findings=found("b"))
    other = replace(row("a"), transcript=replace(row("a").transcript, task="other"))
    for forged in (found("a", "b"), found("a", "a"), RunFindings(rows=(other,), left=CLEAN)):
        whole = judge_fleet(ASKED, [Try(unit=FIRST, node="n1", findings=forged), good])
        assert ReasonCode.UNIT_FORGED in {reason.code for reason in whole.problems}
        assert whole.exit_code == 2
    # It can't replace what the sample's own unit says, whatever comes later.
    late = Try(
        unit=FIRST,
        node="n1",
        findings=RunFindings(rows=(row("a"), row("b", ReasonCode.SCORER_BREACHED)), left=CLEAN),
    )
    assert judge_fleet(ASKED, [good, late]).rows[1].verdict is Verdict.CONTAINED


def test_samples_with_one_uuid_are_forged() -> None:
    """Verdicts are written into the log by it: two samples can't share one."""
    twin = row("b")
    twin = replace(twin, transcript=replace(twin.transcript, uuid="a1"))
    tries = [
        Try(unit=FIRST, node="n1", findings=found("a")),
        Try(unit=SECOND, node="n2", findings=RunFindings(rows=(twin,), left=CLEAN)),
    ]
    assert ReasonCode.UNIT_FORGED in {r.code for r in judge_fleet(ASKED, tries).problems}


def test_an_interrupted_evaluation_has_no_void_rows_for_what_did_not_begin() -> None:
    """Exit code 130, as on one machine."""
    whole = judge_fleet(ASKED, [Try(unit=FIRST, node="n1", findings=found("a"))], interrupted=True)
    assert (len(whole.rows), whole.exit_code) == (1, 130)


def test_an_interruption_explains_no_attempt_that_was_lost() -> None:
    """A sample that began on a node which died has a void row, whatever became of its next try."""
    tries = [
        Try(unit=SECOND, node="n2", why="the node did not answer"),
        Try(unit=replace(SECOND, attempt=2), node="n1", began=False, why="interrupted"),
    ]
    whole = judge_fleet(
        ASKED, [Try(unit=FIRST, node="n1", findings=found("a")), *tries], interrupted=True
    )
    assert [row.verdict for row in whole.rows] == [Verdict.CONTAINED, Verdict.VOID]


def test_a_sample_that_a_running_fleet_lost_has_a_row() -> None:
    """An error in one unit explains nothing of another unless it stopped the fleet."""
    failed = found("a", errors=("t: error: boom",))
    whole = judge_fleet(ASKED, [Try(unit=FIRST, node="n1", findings=failed)])
    assert [row.verdict for row in whole.rows] == [Verdict.CONTAINED, Verdict.VOID]


def test_a_retry_replaces_only_what_infrastructure_took() -> None:
    """A sample is tried again for one lost epoch: the other's verdict stays, good or bad, whatever
    the retry says; only a breach is worse than any."""
    lost = row("a", ReasonCode.LEDGER_UNFINISHED, epoch=2)
    asked = replace(ASKED, samples=("a",), epochs=2)
    again = replace(FIRST, attempt=2)
    bad, clean = row("a", ReasonCode.HOST_TOOL_CALLED), row("a")
    breached = row("a", ReasonCode.SCORER_BREACHED)
    for first, second, kept in (
        (bad, clean, bad),
        (clean, bad, clean),
        (clean, breached, breached),
    ):
        tries = [
            Try(unit=FIRST, node="n1", findings=RunFindings(rows=(first, lost), left=CLEAN)),
            Try(
                unit=again,
                node="n2",
                findings=RunFindings(rows=(second, row("a", epoch=2)), left=CLEAN),
            ),
        ]
        whole = judge_fleet(asked, tries)
        assert [each.verdict for each in whole.rows] == [kept.verdict, Verdict.CONTAINED]
        (note,) = whole.rows[0].transcript.notes
        assert ("n1" if kept is breached else "n2") in note


def test_a_problem_of_a_replaced_attempt_stays() -> None:
    """Unless it is the infrastructure's, for which it was replaced."""
    void = row("a", ReasonCode.LEDGER_UNFINISHED)
    problems = (Reason(code=ReasonCode.LEDGER_UNFINISHED), Reason(code=ReasonCode.RANGE_SURVIVORS))
    tries = [
        Try(unit=FIRST, node="n1", findings=found(rows=(void,), problems=problems)),
        Try(unit=replace(FIRST, attempt=2), node="n2", findings=found("a")),
        Try(unit=SECOND, node="n3", findings=found("b")),
    ]
    codes = [reason.code for reason in judge_fleet(ASKED, tries).problems]
    assert codes == [ReasonCode.RANGE_SURVIVORS]


def test_an_error_of_the_task_ends_with_1() -> None:
    """Samples that it kept from beginning are not missing."""
    failed = found("a", errors=("t: error: boom",))
    whole = judge_fleet(ASKED, [Try(unit=FIRST, node="n1", findings=failed)], stopped=True)
    assert (len(whole.rows), whole.exit_code) == (1, 1)


def test_what_left_each_node_is_added_up() -> None:
    """Calls and bytes of one destination from two nodes."""
    place = Destination(way=Way.MODEL, name="openai/x", calls=2, sent_bytes=10)
    part = Left(destinations=(place,), unknown=())
    tries = [
        Try(unit=FIRST, node="n1", findings=found("a", left=part)),
        Try(unit=SECOND, node="n2", findings=found("b", left=part)),
    ]
    (whole,) = judge_fleet(ASKED, tries).left.destinations
    assert (whole.calls, whole.sent_bytes, place.calls) == (4, 20, 2)
