"""The one verdict function: what each kind of missing evidence makes of a sample and of a run."""

# ruff: noqa: ANN401 - fields of frozen data

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.report.stories import ENDED, line, planned, probing, ranges_of, story

from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.probe.model import Verdict
from belljar.report.cells import Call, TranscriptAction, gather_cells
from belljar.report.collect import collect
from belljar.report.reasons import ReasonCode as Code
from belljar.report.samples import RunFindings, Transcript, headline
from belljar.report.tools import Outside, ToolCall
from belljar.report.verdict import Evidence, LedgerState, LogRecord, LogStatus, RunRecord, judge

SAMPLE = Transcript(task="t", sample="s", epoch=1, uuid="u1")
LOG = LogRecord(location="l", task="t", transcripts=(SAMPLE,), expected=1)
RUN = RunRecord(run_id="R", ended=True)


def evidence(*logs: LogRecord, lines: list[Line] | None = None, **more: Any) -> Evidence:
    """A run of one sample of which everything is there."""
    lines = story() if lines is None else lines
    ready = Evidence(
        logs=logs or (LOG,), cells=gather_cells(lines), ranges=ranges_of(lines), run=RUN
    )
    return replace(ready, **more)


def sampled(**changes: Any) -> LogRecord:
    """The log, its sample changed."""
    return replace(LOG, transcripts=(replace(SAMPLE, **changes),))


PLANNED = planned("c2")
STARTING = line(Kind.CELL_STARTING, "c2", runtime="runc", tree="")
NO_ROOM = line(Kind.CELL_FAILED, "c2", error="HostError", reason="no space left")


def other_cell(uuid: str = "u1", *lines: Line, sample: str = "s", **more: Any) -> list[Line]:
    """The story, and a second cell that was never probed."""
    started = line(Kind.SAMPLE_STARTED, "c2", sample=sample, task="t", uuid=uuid, **more)
    return [*story(), PLANNED, started, *lines, line(Kind.CELL_DESTROYED, "c2", **ENDED)]


WORK = line(
    Kind.EXEC_STARTED,
    "c2",
    op=1,
    argv=["true"],
    cwd="/",
    user="",
    env_names=[],
    stdin=False,
    timeout_s=None,
)
FINISHED = line(Kind.SAMPLE_FINISHED, "c2", sample="s2", outcome="completed")
FAILED = replace(LOG, eval_id="e1", status=LogStatus.ERROR, expected=None)
RUNNING = line(Kind.SAMPLE_RUNNING, "c2", sample="s")
CHECK: dict[str, Any] = {"phase": "call", "op": 3, "cause": "shell_missing", "duration_ms": 1.0}
BROKEN = line(Kind.CELL_CHECKED, "c1", **CHECK)
CALL = Call(action=TranscriptAction.EXEC, what="never")
HOSTED = ToolCall(name="web_search", outside=Outside.WEB_SEARCH)


def allowing(*rules: list[str]) -> list[Line]:
    """The story, with a cell for each of these rules; each lets tools of these names act beside
    it."""

    def copied(each: Line, number: int) -> Line:
        rule = {"host_tools": rules[number]} if each.kind is Kind.SAMPLE_STARTED else {}
        return replace(each, cell=f"c{number}", data={**each.data, **rule})

    return [
        made
        for each in story()
        for made in (
            [copied(each, number) for number in range(len(rules))] if each.cell else [each]
        )
    ]


def cancelled(without: Kind | None = None) -> list[Line]:
    """The story, and a second sample of the same evaluation that ended; all of it is there, but
    for one kind of event."""
    probed = [replace(each, cell="c2") for phase in ("start", "end") for each in probing(phase)]
    lines = other_cell("u2", *probed[:2], WORK, *probed[2:], FINISHED, sample="s2", eval_id="e1")
    return [each for each in lines if each.cell != "c2" or each.kind is not without]


WAY: dict[str, Any] = {"name": "IPv4 UDP", "state": "can't tell", "how": "tried", "evidence": "x"}


def gap_at(phase: str, *ways: dict[str, Any]) -> Line:
    """A check of the air gap."""
    absent = {**WAY, "state": "absent"}
    data: dict[str, Any] = {"phase": phase, "air_gapped": not ways, "findings": [absent, *ways]}
    return line(Kind.AIR_GAP_CHECKED, None, **data)


GAP = gap_at("start")


def gapped(*lines: Line) -> RunRecord:
    """The record of a run whose policy requires an air gap."""
    record = replace(RUN, air_gap_unproven=False, air_gap_broken=[])
    for each in lines:
        record.take(each)
    return record


Expected = tuple[Verdict, int, set[Code]]


def contained(*, exit_code: int = 0) -> Expected:
    """What is found of a run of which no evidence is missing."""
    return Verdict.CONTAINED, exit_code, set()


def void(*codes: Code, exit_code: int = 2) -> Expected:
    """What is found of a run with these causes."""
    return Verdict.VOID, exit_code, set(codes)


CASES: dict[str, tuple[Evidence, Verdict, int, set[Code]]] = {
    "all there": (evidence(), *contained()),
    "a solver's error": (evidence(sampled(error="x")), *contained(exit_code=1)),
    "an evaluation's error": (
        evidence(replace(LOG, status=LogStatus.ERROR)),
        *contained(exit_code=1),
    ),
    "interrupted": (evidence(run=replace(RUN, interrupted=True)), *contained(exit_code=130)),
    "cancelled": (evidence(replace(LOG, status=LogStatus.CANCELLED)), *contained(exit_code=130)),
    "no cell": (evidence(lines=[]), *void(Code.NO_CELL)),
    "an error before anything ran": (
        evidence(sampled(error="x"), lines=[]),
        *void(Code.NO_CELL, exit_code=1),
    ),
    "an error after a tool beside the cell": (
        evidence(sampled(error="x", tools=(HOSTED,)), lines=[]),
        *void(Code.NO_CELL, Code.HOST_TOOL_CALLED),
    ),
    "a hosted tool of which no policy is on record": (
        evidence(sampled(tools=(HOSTED,))),
        *void(Code.HOST_TOOL_CALLED),
    ),
    "a hosted tool that one of two cells allows": (
        evidence(sampled(tools=(HOSTED,)), lines=allowing(["*"], ["memory"])),
        *void(Code.HOST_TOOL_CALLED),
    ),
    "a hosted tool that both cells allow": (
        evidence(sampled(tools=(HOSTED,)), lines=allowing(["*"], ["web_search"])),
        *contained(),
    ),
    "a call of no cell": (evidence(sampled(calls=(CALL,))), *void(Code.CALLS_OUTSIDE_CELL)),
    "a scorer's void": (evidence(sampled(lowered=Verdict.VOID)), *void(Code.SCORER_VOID)),
    "a scorer's breach": (
        evidence(sampled(lowered=Verdict.BREACHED)),
        Verdict.BREACHED,
        2,
        {Code.SCORER_BREACHED},
    ),
    "a void attempt before a clean one": (evidence(lines=other_cell()), *void(Code.PROBES_MISSING)),
    "a sample that no log has": (
        evidence(lines=other_cell("u2")),
        *void(Code.SAMPLE_NOT_IN_LOG, Code.PROBES_MISSING),
    ),
    "an interrupt before anything of the next sample ran": (
        evidence(lines=other_cell("u2"), run=replace(RUN, interrupted=True)),
        *contained(exit_code=130),
    ),
    "an interrupt hides no evidence that is missing": (
        evidence(lines=other_cell("u2", WORK), run=replace(RUN, interrupted=True)),
        *void(Code.SAMPLE_NOT_IN_LOG, Code.PROBES_MISSING),
    ),
    "an error before anything of the next sample ran": (
        evidence(replace(LOG, status=LogStatus.ERROR), lines=other_cell("u2")),
        *contained(exit_code=1),
    ),
    "an error hides no evidence that is missing": (
        evidence(replace(LOG, status=LogStatus.ERROR), lines=other_cell("u2", WORK)),
        *void(Code.SAMPLE_NOT_IN_LOG, Code.PROBES_MISSING),
    ),
    "an interrupt while Inspect prepared the next sample": (
        evidence(lines=other_cell("u2", WORK, preparing=True), run=replace(RUN, interrupted=True)),
        *contained(exit_code=130),
    ),
    "an error while Inspect prepared the next sample": (
        evidence(
            replace(LOG, status=LogStatus.ERROR), lines=other_cell("u2", WORK, preparing=True)
        ),
        *contained(exit_code=1),
    ),
    "an interrupt after the next sample's own work had begun": (
        evidence(
            lines=other_cell("u2", RUNNING, WORK, preparing=True),
            run=replace(RUN, interrupted=True),
        ),
        *void(Code.SAMPLE_NOT_IN_LOG, Code.PROBES_MISSING),
    ),
    "a sample that was only prepared, and no log says why": (
        evidence(lines=other_cell("u2", WORK, preparing=True)),
        *void(Code.SAMPLE_NOT_IN_LOG, Code.PROBES_MISSING),
    ),
    "a sample whose end met its cancellation for another's error": (
        evidence(FAILED, lines=cancelled()),
        *contained(exit_code=1),
    ),
    "a sample whose end met Ctrl-C": (
        evidence(replace(FAILED, status=LogStatus.CANCELLED), lines=cancelled()),
        *contained(exit_code=130),
    ),
    "a sample that is in no log of an evaluation that went well": (
        evidence(replace(FAILED, status=LogStatus.SUCCESS), lines=cancelled()),
        *void(Code.SAMPLE_NOT_IN_LOG),
    ),
    "a sample of another evaluation than that which failed": (
        evidence(replace(FAILED, eval_id="e2"), lines=cancelled()),
        *void(Code.SAMPLE_NOT_IN_LOG),
    ),
    "a sample in no log, which can't be read whole": (
        evidence(replace(FAILED, problem="x"), lines=cancelled()),
        *void(Code.SAMPLE_NOT_IN_LOG, Code.LOG_UNREADABLE),
    ),
    "a cancelled sample whose end is not on record": (
        evidence(FAILED, lines=cancelled(without=Kind.SAMPLE_FINISHED)),
        *void(Code.SAMPLE_NOT_IN_LOG),
    ),
    "a cancelled sample whose cell was not destroyed": (
        evidence(FAILED, lines=cancelled(without=Kind.CELL_DESTROYED)),
        *void(Code.SAMPLE_NOT_IN_LOG, Code.CELL_NOT_DESTROYED),
    ),
    "a cancelled sample that was not probed at its end": (
        evidence(FAILED, lines=cancelled(without=Kind.PROBE_COMPLETED)),
        *void(Code.PROBES_VOID),
    ),
    "a cell that was never made, for want of room": (
        evidence(sampled(error="x"), lines=[PLANNED, NO_ROOM], run=replace(RUN, failure_code=5)),
        *void(Code.NO_CELL, exit_code=5),
    ),
    "a cell of which nothing is known after its making had begun": (
        evidence(sampled(error="x"), lines=[PLANNED, STARTING, NO_ROOM]),
        *void(Code.NO_CELL, Code.CELL_NOT_DESTROYED),
    ),
    "evidence is missing, though the disk was full": (
        evidence(sampled(calls=(CALL,), error="x"), run=replace(RUN, failure_code=5)),
        *void(Code.CALLS_OUTSIDE_CELL),
    ),
    "a degraded sandbox": (evidence(lines=story(BROKEN)), *contained(exit_code=1)),
    "a degraded sandbox of an interrupted run": (
        evidence(lines=story(BROKEN), run=replace(RUN, interrupted=True)),
        *contained(exit_code=130),
    ),
    "a degraded sandbox, and evidence is missing": (
        evidence(sampled(calls=(CALL,)), lines=story(BROKEN)),
        *void(Code.CALLS_OUTSIDE_CELL),
    ),
    "a sound check": (
        evidence(lines=story(line(Kind.CELL_CHECKED, "c1", **{**CHECK, "cause": ""}))),
        *contained(),
    ),
    "a bad ledger": (evidence(ledger=LedgerState.BAD), *void(Code.LEDGER_BAD)),
    "a crash": (evidence(ledger=LedgerState.UNFINISHED), *void(Code.LEDGER_UNFINISHED)),
    "no end on record": (evidence(run=replace(RUN, ended=False)), *void(Code.RUN_END_MISSING)),
    "an air gap from start to end": (evidence(run=gapped(GAP, gap_at("end"))), *contained()),
    "an air gap that nobody checked at the end": (
        evidence(run=gapped(GAP)),
        *void(Code.AIR_GAP_UNPROVEN),
    ),
    "an interface that came up and went down again": (
        evidence(run=gapped(GAP, line(Kind.AIR_GAP_CHANGED, None, reason="x"), gap_at("end"))),
        *void(Code.AIR_GAP_BROKEN),
    ),
    "a way beyond the host at the end": (
        evidence(run=gapped(GAP, gap_at("end", WAY))),
        *void(Code.AIR_GAP_BROKEN),
    ),
    "an error that only the process knew": (
        evidence(run=replace(RUN, errors=["x"])),
        *void(Code.RUN_ERROR),
    ),
    "a sample that would have run elsewhere": (
        evidence(run=replace(RUN, errors=["x"], causes=["other_provider"])),
        *void(Code.OTHER_PROVIDER),
    ),
    "a tool that appeared later, and an error": (
        evidence(run=replace(RUN, errors=["x", "y"], causes=["late_host_tool"])),
        *void(Code.LATE_HOST_TOOL, Code.RUN_ERROR),
    ),
    "a cause that no error has": (
        evidence(run=replace(RUN, errors=["x"], causes=["scorer_breached", "other_provider"])),
        *void(Code.RUN_ERROR),
    ),
    "a log that is gone": (
        evidence(LogRecord(location="l", missing=True)),
        *void(Code.LOG_MISSING, Code.SAMPLE_NOT_IN_LOG),
    ),
    "a log that is cut short": (evidence(replace(LOG, problem="x")), *void(Code.LOG_UNREADABLE)),
    "a log that was not ended": (
        evidence(replace(LOG, status=LogStatus.STARTED)),
        *void(Code.LOG_UNFINISHED),
    ),
    "samples that were not logged": (
        evidence(replace(LOG, samples_logged=False)),
        *void(Code.LOG_WITHOUT_SAMPLES),
    ),
    "fewer samples than there were": (
        evidence(replace(LOG, expected=2)),
        *void(Code.LOG_INCOMPLETE),
    ),
    "metrics that could not be bound": (
        evidence(run=replace(RUN, not_in_log="x")),
        *void(Code.VERDICTS_NOT_IN_LOG),
    ),
    "a refusal": (
        evidence(logs=(), cells={}, ranges={}, run=replace(RUN, refusal="x", refusal_code=3)),
        *void(Code.RUN_REFUSED, Code.NO_SAMPLES, exit_code=3),
    ),
    "a refusal after samples of which evidence is missing": (
        evidence(sampled(calls=(CALL,)), run=replace(RUN, refusal="x", refusal_code=3)),
        *void(Code.RUN_REFUSED, Code.CALLS_OUTSIDE_CELL),
    ),
}


def codes(findings: RunFindings) -> set[Code]:
    """All causes, of the run and of its samples."""
    reasons = (*findings.problems, *(reason for row in findings.rows for reason in row.reasons))
    return {reason.code for reason in reasons}


@pytest.mark.promise("1.10", "7.1", "7.2")
@pytest.mark.parametrize("name", CASES)
def test_every_cause_has_its_verdict_and_exit_code(name: str) -> None:
    """Verdict, exit code and reason codes; `contained` stands at the head of the summary only when
    all of it was."""
    given, verdict, exit_code, expected = CASES[name]
    findings = judge(given)
    assert (findings.verdict, findings.exit_code, codes(findings)) == (verdict, exit_code, expected)
    assert headline(findings).startswith("contained") == (exit_code == 0)
    assert all(reason.code in headline(findings) for reason in findings.problems if findings.rows)
    lost = sum(not row.is_logged for row in findings.rows)
    told = f"{len(findings.rows) - lost} of {len(findings.rows)} samples in the log"
    assert not lost or told in headline(findings)
    assert collect(findings)["verdict"] == verdict.value


@pytest.mark.promise("7.5")
def test_a_degraded_sandbox_is_named_beside_the_verdict() -> None:
    """The first damage of each cell, with the operation at which it was noticed, in the summary and
    in the JSON."""
    later = line(Kind.CELL_CHECKED, "c1", **{**CHECK, "cause": "agent_died", "op": 9})
    findings = judge(evidence(lines=story(BROKEN, later)))
    assert "1 degraded: shell_missing" in headline(findings)
    (sample,) = collect(findings)["samples"]
    assert [(each["cell"], each["cause"], each["op"]) for each in sample["degraded"]] == [
        ("c1", "shell_missing", 3)
    ]


@pytest.mark.promise("7.1")
@pytest.mark.parametrize("name", ["a bad ledger", "a crash", "no end on record"])
def test_a_record_in_doubt_voids_every_sample(name: str) -> None:
    """No row says contained of a record that can't be trusted."""
    assert {row.verdict for row in judge(CASES[name][0]).rows} == {Verdict.VOID}


def test_a_breach_is_no_interrupt() -> None:
    """Belljar itself interrupted the evaluation: exit code 2, as a breach."""
    log = replace(LOG, status=LogStatus.CANCELLED)
    findings = judge(evidence(log, run=replace(RUN, stopped=True, errors=["a way out"])))
    assert (findings.interrupted, findings.exit_code) == (False, 2)


@pytest.mark.promise("7.2")
def test_a_reused_sample_is_the_other_runs() -> None:
    """`eval-retry` copies a sample with its verdict: it is listed with the run that gave it, and
    makes nothing contained here."""
    reused = replace(SAMPLE, uuid="old", judged_by="Q", judged_as="contained")
    log = replace(LOG, transcripts=(SAMPLE, reused), expected=2)
    plain = replace(RUN, kind="inspect")
    on_record = {"Q": frozenset({"old"})}
    findings = judge(evidence(log, run=plain, begun_elsewhere=on_record))
    assert [(each.judged_by, each.judged_as) for each in findings.reused] == [("Q", "contained")]
    assert (len(findings.rows), findings.exit_code) == (1, 0)
    (said,) = collect(findings)["reused_samples"]
    assert (said["run_id"], said["verdict_of_that_run"]) == ("Q", "contained")
    copied = replace(log, transcripts=(reused,), expected=1)
    alone = judge(evidence(copied, lines=[], run=plain, begun_elsewhere=on_record))
    assert (alone.verdict, alone.exit_code, codes(alone)) == (Verdict.VOID, 2, {Code.NO_SAMPLES})


def test_a_run_without_samples_says_what_it_is() -> None:
    """One of `belljar exec`, say: nothing is contained, and nothing failed to run either."""
    findings = judge(evidence(lines=[], logs=(), run=replace(RUN, kind="exec")))
    assert (findings.verdict, findings.exit_code, findings.errors) == (Verdict.VOID, 2, ())
    (problem,) = [each for each in findings.problems if each.code is Code.NO_SAMPLES]
    assert "exec" in problem.detail


@pytest.mark.promise("7.2")
def test_a_sample_with_a_cell_here_is_ours_whatever_it_says() -> None:
    """Metadata can't take a sample away from the run that has its cell, nor from `belljar run`,
    which reuses nothing."""
    claims = replace(SAMPLE, judged_by="Q", judged_as="contained", calls=(CALL,))
    log = replace(LOG, transcripts=(claims,))
    assert codes(judge(evidence(log, run=replace(RUN, kind="inspect")))) == {
        Code.CALLS_OUTSIDE_CELL
    }
    assert Code.NO_CELL in codes(judge(evidence(log, lines=[])))


@pytest.mark.promise("7.2")
@pytest.mark.parametrize("begun", [{}, {"Q": frozenset({"another"})}, {"P": frozenset({"u1"})}])
def test_a_sample_is_reused_only_from_a_run_that_has_it(begun: dict[str, frozenset[str]]) -> None:
    """Its metadata may be its data set's: without a run of that name that began this very sample,
    it has no cell."""
    log = replace(LOG, transcripts=(replace(SAMPLE, judged_by="Q", judged_as="contained"),))
    findings = judge(
        evidence(log, lines=[], run=replace(RUN, kind="inspect"), begun_elsewhere=begun)
    )
    assert (len(findings.reused), findings.exit_code, codes(findings)) == (0, 2, {Code.NO_CELL})


def test_a_sample_that_two_logs_have_has_its_cells_in_both() -> None:
    """Inspect copies a sample into the log of its next attempt."""
    findings = judge(evidence(LOG, replace(LOG, location="l2")))
    assert [len(row.cells) for row in findings.rows] == [1, 1]
    assert findings.exit_code == 0


def test_a_transcript_without_an_id_has_no_cells() -> None:
    """Its cells are those of a sample that no log has; cells that no sample began in are
    nobody's."""
    findings = judge(evidence(sampled(uuid=""), lines=[*story(), PLANNED]))
    assert [len(row.cells) for row in findings.rows] == [0, 1]


def test_the_run_is_gathered_from_its_events() -> None:
    """Who made it, where Inspect's logs are, how the evaluation ended, and what could not be
    bound."""
    started = line(Kind.RUN_STARTED, run_id="R", kind="inspect", argv=[], key="0" * 64, belljar="1")
    ended = line(
        Kind.RUN_EVALUATED,
        interrupted=True,
        stopped=True,
        errors=["e"],
        refusal="no",
        refusal_code=3,
    )
    sample = line(Kind.SAMPLE_STARTED, "c1", sample="s", log="/logs/a.eval")
    finished = line(Kind.RUN_FINISHED, outcome="failed", exit_code=2, verdicts_not_in_log="n")
    run = RunRecord()
    for each in (started, sample, sample, ended, finished):
        run.take(each)
    assert run == RunRecord(
        run_id="R",
        kind="inspect",
        ended=True,
        interrupted=True,
        stopped=True,
        errors=["e"],
        refusal="no",
        refusal_code=3,
        logs=["/logs/a.eval"],
        not_in_log="n",
    )
