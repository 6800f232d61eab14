"""The one verdict function: what each kind of missing evidence makes of a sample and of a run."""

# ruff: noqa: ANN401 - fields of frozen data

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.report.stories import ENDED, SAMPLE, line, planned, probing, ranges_of, story

from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.ledger.verification import Status
from belljar.probe.model import Verdict
from belljar.report.cells import Call, TranscriptAction, gather_cells
from belljar.report.reasons import Reason, verdict_of
from belljar.report.reasons import ReasonCode as Code
from belljar.report.samples import RunFindings, collect, headline
from belljar.report.tools import Outside, ToolCall
from belljar.report.verdict import Evidence, LogRecord, LogStatus, RunRecord, judge

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
    return replace(LOG, transcripts=(replace(SAMPLE, **changes),))


PLANNED = planned("c2")
STARTING = line(Kind.CELL_STARTING, "c2", runtime="runc", tree="")
NO_ROOM = line(Kind.CELL_FAILED, "c2", error="HostError", reason="no space left")


def other_cell(uuid: str = "u1", *lines: Line, sample: str = "s", **more: Any) -> list[Line]:
    """The story, and a second cell that was never probed."""
    started = line(Kind.SAMPLE_STARTED, "c2", sample=sample, task="t", uuid=uuid, **more)
    return [*story(), PLANNED, started, *lines, line(Kind.CELL_DESTROYED, "c2", **ENDED)]


TRUE: dict[str, Any] = {"argv": ["true"], "cwd": "/", "user": "", "env_names": [], "stdin": False}
WORK = line(Kind.EXEC_STARTED, "c2", **TRUE, op=1, timeout_s=None)
DONE = line(Kind.EXEC_FAILED, "c2", op=1, reason="cancelled")
CUT = line(Kind.EXEC_STARTED, "c1", **TRUE, op=1, timeout_s=None)
CUT_COPY = line(Kind.FILES_STARTED, "c1", op=1, action="upload", path="/x")
BREACHED_RANGE = line(Kind.RANGE_FAILED, error="ContainmentBreach", reason="a way out")
DEAD_RANGE = line(Kind.RANGE_FAILED, error="CellError", reason="it ended")
FINISHED = line(Kind.SAMPLE_FINISHED, "c2", sample="s2", outcome="completed")
FAILED = replace(LOG, eval_id="e1", status=LogStatus.ERROR, expected=None)
RUNNING = line(Kind.SAMPLE_RUNNING, "c2", sample="s")
CHECK: dict[str, Any] = {"phase": "call", "op": 3, "cause": "shell_missing", "duration_ms": 1.0}
BROKEN = line(Kind.CELL_CHECKED, "c1", **CHECK)
CALL = Call(action=TranscriptAction.EXEC, what="never")
HOSTED = ToolCall(name="web_search", outside=Outside.WEB_SEARCH)


def allowing(*rules: list[str]) -> list[Line]:
    """The story, with a cell for each of these rules, which let tools act beside it."""

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
    """The story, and a second sample that ended; all is there but one kind of event."""
    probed = probing("start", "c2") + probing("end", "c2")
    lines = other_cell(
        "u2", *probed[:2], WORK, DONE, *probed[2:], FINISHED, sample="s2", eval_id="e1"
    )
    return [each for each in lines if each.cell != "c2" or each.kind is not without]


WAY: dict[str, Any] = {"name": "IPv4 UDP", "state": "can't tell", "how": "tried", "evidence": "x"}


def gap_at(phase: str, *ways: dict[str, Any]) -> Line:
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


Case = tuple[Evidence, Verdict, int, set[Code]]


def void(*codes: Code, exit_code: int = 2, **given: Any) -> Case:
    """A run of one sample with these causes; `given`: log, lines and what its record says."""
    log, lines = given.pop("log", None), given.pop("lines", None)
    made = evidence(*([log] if log else []), lines=lines, run=replace(RUN, **given))
    return made, Verdict.VOID if codes else Verdict.CONTAINED, exit_code, set(codes)


def contained(
    exit_code: int = 0, log: LogRecord | None = None, lines: list[Line] | None = None, **run: Any
) -> Case:
    return void(exit_code=exit_code, log=log, lines=lines, **run)


def ended_by(status: LogStatus, **changes: Any) -> LogRecord:
    return replace(LOG, status=status, **changes)


ERROR, CANCELLED = ended_by(LogStatus.ERROR), ended_by(LogStatus.CANCELLED)
OTHER, OTHER_RAN = other_cell("u2"), other_cell("u2", WORK, DONE)
PREPARED = other_cell("u2", WORK, preparing=True)
UNKNOWN = (Code.SAMPLE_NOT_IN_LOG, Code.PROBES_MISSING)
HOSTED_TOOL = sampled(tools=(HOSTED,))
CASES: dict[str, Case] = {
    "all there": contained(),
    "a solver's error": contained(1, sampled(error="x")),
    "an evaluation's error": contained(1, ERROR),
    "interrupted": contained(130, interrupted=True),
    "cancelled": contained(130, CANCELLED),
    "no cell": void(Code.NO_CELL, lines=[]),
    "an error before anything ran": void(
        Code.NO_CELL, exit_code=1, log=sampled(error="x"), lines=[]
    ),
    "an error after a tool beside the cell": void(
        Code.NO_CELL, Code.HOST_TOOL_CALLED, log=sampled(error="x", tools=(HOSTED,)), lines=[]
    ),
    "a hosted tool of which no policy is on record": void(Code.HOST_TOOL_CALLED, log=HOSTED_TOOL),
    "a hosted tool that one of two cells allows": void(
        Code.HOST_TOOL_CALLED, log=HOSTED_TOOL, lines=allowing(["*"], ["memory"])
    ),
    "a hosted tool that both allow": contained(0, HOSTED_TOOL, allowing(["*"], ["web_search"])),
    "a call of no cell": void(Code.CALLS_OUTSIDE_CELL, log=sampled(calls=(CALL,))),
    "a scorer's void": void(Code.SCORER_VOID, log=sampled(lowered=Verdict.VOID)),
    "a scorer's breach": (
        evidence(sampled(lowered=Verdict.BREACHED)),
        *(Verdict.BREACHED, 2, {Code.SCORER_BREACHED}),
    ),
    "a void attempt before a clean one": void(Code.PROBES_MISSING, lines=other_cell()),
    "a sample that no log has": void(*UNKNOWN, lines=OTHER),
    "an error before anything of the next ran": contained(1, ERROR, OTHER),
    "an error hides nothing missing": void(*UNKNOWN, log=ERROR, lines=OTHER_RAN),
    "an interrupt while the next was prepared": contained(130, lines=PREPARED, interrupted=True),
    "an interrupt after the next sample's own work had begun": void(
        *UNKNOWN, lines=other_cell("u2", RUNNING, WORK, DONE, preparing=True), interrupted=True
    ),
    "an end that met its cancellation for another's error": contained(1, FAILED, cancelled()),
    "a sample that is in no log of an evaluation that went well": void(
        Code.SAMPLE_NOT_IN_LOG, log=replace(FAILED, status=LogStatus.SUCCESS), lines=cancelled()
    ),
    "a sample of another evaluation than that which failed": void(
        Code.SAMPLE_NOT_IN_LOG, log=replace(FAILED, eval_id="e2"), lines=cancelled()
    ),
    "a sample in no log, which can't be read whole": void(
        Code.SAMPLE_NOT_IN_LOG,
        Code.LOG_UNREADABLE,
        log=replace(FAILED, problem="x"),
        lines=cancelled(),
    ),
    "a cancelled sample whose end is not on record": void(
        Code.SAMPLE_NOT_IN_LOG, log=FAILED, lines=cancelled(without=Kind.SAMPLE_FINISHED)
    ),
    "a cancelled sample whose cell was not destroyed": void(
        Code.SAMPLE_NOT_IN_LOG,
        Code.CELL_NOT_DESTROYED,
        log=FAILED,
        lines=cancelled(without=Kind.CELL_DESTROYED),
    ),
    "a cancelled sample that was not probed at its end": void(
        Code.PROBES_VOID, log=FAILED, lines=cancelled(without=Kind.PROBE_COMPLETED)
    ),
    "a cell that was never made, for want of room": void(
        Code.NO_CELL, exit_code=5, log=sampled(error="x"), lines=[PLANNED, NO_ROOM], failure_code=5
    ),
    "a cell of which nothing is known after its making had begun": void(
        Code.NO_CELL,
        Code.CELL_NOT_DESTROYED,
        log=sampled(error="x"),
        lines=[PLANNED, STARTING, NO_ROOM],
    ),
    "a cell made ahead whose making had begun, and whose end is not on record": void(
        Code.CELL_NOT_DESTROYED, lines=[*story(), planned("c2", ahead=True), STARTING, NO_ROOM]
    ),
    "a cell made ahead for which there was no room": contained(
        lines=[*story(), planned("c2", ahead=True), NO_ROOM]
    ),
    "a command without an end": void(Code.OPERATIONS_CUT_OFF, lines=story(CUT)),
    "a copy without an end": void(Code.OPERATIONS_CUT_OFF, lines=story(CUT_COPY)),
    "a range's breach before another error": (
        evidence(lines=story(BREACHED_RANGE, DEAD_RANGE)),
        *(Verdict.BREACHED, 2, {Code.RANGE_BREACHED}),
    ),
    "evidence is missing, though the disk was full": void(
        Code.CALLS_OUTSIDE_CELL, log=sampled(calls=(CALL,), error="x"), failure_code=5
    ),
    "a degraded sandbox": contained(1, lines=story(BROKEN)),
    "a degraded sandbox, and evidence is missing": void(
        Code.CALLS_OUTSIDE_CELL, log=sampled(calls=(CALL,)), lines=story(BROKEN)
    ),
    "a sound check": contained(
        lines=story(line(Kind.CELL_CHECKED, "c1", **{**CHECK, "cause": ""}))
    ),
    "a breach, by which Belljar interrupted it": void(
        Code.RUN_ERROR, log=CANCELLED, stopped=True, errors=["a way out"]
    ),
    "a transcript without an id, and a cell that no sample began in": void(
        Code.NO_CELL,
        Code.SAMPLE_NOT_IN_LOG,
        Code.CELL_NOT_DESTROYED,
        log=sampled(uuid=""),
        lines=[*story(), PLANNED],
    ),
    "no end on record": void(Code.RUN_END_MISSING, ended=False),
    "an error that only the process knew": void(Code.RUN_ERROR, errors=["x"]),
    "a sample that would have run elsewhere": void(
        Code.OTHER_PROVIDER, errors=["x"], causes=["other_provider"]
    ),
    "a tool that appeared later, and an error": void(
        Code.LATE_HOST_TOOL, Code.RUN_ERROR, errors=["x", "y"], causes=["late_host_tool"]
    ),
    "a cause that no error has": void(
        Code.RUN_ERROR, errors=["x"], causes=["scorer_breached", "other_provider"]
    ),
    "a log that is gone": void(
        Code.LOG_MISSING, Code.SAMPLE_NOT_IN_LOG, log=LogRecord(location="l", missing=True)
    ),
    "a log that is cut short": void(Code.LOG_UNREADABLE, log=replace(LOG, problem="x")),
    "a log that was not ended": void(Code.LOG_UNFINISHED, log=ended_by(LogStatus.STARTED)),
    "samples not logged": void(Code.LOG_WITHOUT_SAMPLES, log=replace(LOG, samples_logged=False)),
    "fewer samples than there were": void(Code.LOG_INCOMPLETE, log=replace(LOG, expected=2)),
    "metrics that could not be bound": void(Code.VERDICTS_NOT_IN_LOG, not_in_log="x"),
    "a refusal after samples of which evidence is missing": void(
        Code.RUN_REFUSED,
        Code.CALLS_OUTSIDE_CELL,
        log=sampled(calls=(CALL,)),
        refusal="x",
        refusal_code=3,
    ),
}
CLAIMS: dict[str, Any] = {"judged_by": "Q", "judged_as": "contained"}
PLAIN = replace(RUN, kind="inspect")
NO_CELLS: dict[str, Any] = {"cells": {}, "ranges": {}}
OF_THE_RUN: dict[str, tuple[dict[str, Any], int, set[Code]]] = {
    "a bad ledger": ({"ledger": Status.BAD}, 2, {Code.LEDGER_BAD}),
    "a crash": ({"ledger": Status.UNFINISHED}, 2, {Code.LEDGER_UNFINISHED}),
    "an air gap from start to end": ({"run": gapped(GAP, gap_at("end"))}, 0, set()),
    "one that nobody checked at the end": ({"run": gapped(GAP)}, 2, {Code.AIR_GAP_UNPROVEN}),
    "an interface that came up and went down again": (
        {"run": gapped(GAP, line(Kind.AIR_GAP_CHANGED, None, reason="x"), gap_at("end"))},
        *(2, {Code.AIR_GAP_BROKEN}),
    ),
    "a way beyond the host at the end": (
        {"run": gapped(GAP, gap_at("end", WAY))},
        *(2, {Code.AIR_GAP_BROKEN}),
    ),
    "a run without samples, as one of `exec`": (
        {"logs": (), "cells": {}, "ranges": {}, "run": replace(RUN, kind="exec")},
        *(2, {Code.NO_SAMPLES}),
    ),
    "a sample that two logs have, as its next attempt's": (
        {"logs": (LOG, replace(LOG, location="l2"))},
        *(0, set()),
    ),
    # Metadata takes no sample from the run that has its cell, nor from `belljar run`
    "a sample of ours that claims to be another run's": (
        {"logs": (sampled(**CLAIMS, calls=(CALL,)),), "run": PLAIN},
        *(2, {Code.CALLS_OUTSIDE_CELL}),
    ),
    "one without a cell, of `belljar run`": (
        {"logs": (sampled(**CLAIMS),), **NO_CELLS},
        *(2, {Code.NO_CELL}),
    ),
    # It may be its data set's, too: only a run that began this very sample has it
    **{
        f"one without a cell, and {why}": (
            {"logs": (sampled(**CLAIMS),), **NO_CELLS, "run": PLAIN, "begun_elsewhere": begun},
            *(2, {Code.NO_CELL}),
        )
        for why, begun in {
            "no such run": {},
            "a run with other samples": {"Q": frozenset({"another"})},
            "another run that has it": {"P": frozenset({"u1"})},
        }.items()
    },
    "a refusal": (
        {"logs": (), "cells": {}, "ranges": {}}
        | {"run": replace(RUN, refusal="x", refusal_code=3)},
        *(3, {Code.RUN_REFUSED, Code.NO_SAMPLES}),
    ),
}
CASES |= {
    name: (evidence(**given), Verdict.VOID if codes else Verdict.CONTAINED, exit_code, codes)
    for name, (given, exit_code, codes) in OF_THE_RUN.items()
}


def codes(findings: RunFindings) -> set[Code]:
    reasons = (*findings.problems, *(reason for row in findings.rows for reason in row.reasons))
    return {reason.code for reason in reasons}


@pytest.mark.promise("1.10", "7.1", "7.2")
@pytest.mark.parametrize("name", CASES)
def test_every_cause_has_its_verdict_and_exit_code(name: str) -> None:
    """Verdict, exit code and codes; `contained` heads the summary only when all of it was."""
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
    """The first damage of each cell, with the operation that noticed it, in summary and JSON."""
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


@pytest.mark.promise("7.2")
def test_a_reused_sample_is_the_other_runs() -> None:
    """`eval-retry` copies a sample: it is the run's that gave it, and contains nothing here."""
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


@pytest.mark.promise("7.1")
def test_the_worst_cause_decides() -> None:
    """A breach outweighs missing evidence; without a cause a sample is contained."""
    void, breached = Reason(code=Code.NO_CELL), Reason(code=Code.SCORER_BREACHED)
    assert verdict_of([]) is Verdict.CONTAINED
    assert verdict_of([void]) is Verdict.VOID
    assert verdict_of([breached, void]) is verdict_of([void, breached]) is Verdict.BREACHED


MODEL = {"name": "m", "weights": "ab" * 32}


def model_cell(*phases: str, verdict: str = "contained", **ended: object) -> list[Line]:
    """The story beside a model cell that was probed in these phases."""
    about = {"path": "/v1", "bytes": 10, "sha256": "ab" * 32}
    lines = [
        planned("c9", tier="gvisor", model=MODEL),
        line(Kind.MODEL_REQUEST_STARTED, "c9", request=1, **about),
    ]
    answered = {"status": 200, "prompt_tokens": 3, "completion_tokens": 2}
    times = {"first_byte_ms": 1.0, "duration_ms": 2.0}
    completed = {**about, **answered, **times}
    lines.append(line(Kind.MODEL_REQUEST_COMPLETED, "c9", request=1, **completed))
    lines += [each for phase in phases for each in probing(phase, "c9", verdict=verdict)]
    return [*story(), *lines, line(Kind.CELL_DESTROYED, "c9", **{**ENDED, **ended})]


@pytest.mark.promise("2.8")
@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (model_cell("start", "end"), Verdict.CONTAINED),
        (model_cell("start"), Verdict.VOID),
        (model_cell("start", "end", verdict="void"), Verdict.VOID),
        (model_cell("start", "end", verdict="breached"), Verdict.BREACHED),
        (model_cell("start", "end", clean=False, survivors=["p"]), Verdict.VOID),
    ],
)
def test_a_model_cells_evidence_counts_for_the_run(lines: list[Line], verdict: Verdict) -> None:
    """All samples depend on it. What was asked of it is in the findings."""
    found = judge(evidence(lines=lines))
    assert found.verdict is verdict
    assert [row.verdict for row in found.rows] == [Verdict.CONTAINED]
    (shown,) = collect(found)["model_cells"]
    assert (shown["requests"], shown["failed"]) == (1, 0)
    assert collect(found)["stray_cells"] == []


@pytest.mark.parametrize(
    ("kind", "phases", "verdict"),
    [
        ("inspect", ("start", "end"), Verdict.CONTAINED),
        ("inspect", ("start",), Verdict.VOID),
        ("run", ("start", "end"), Verdict.VOID),
    ],
)
def test_without_a_sample_in_a_cell_a_model_is_judged_alone(
    kind: str, phases: tuple[str, ...], verdict: Verdict
) -> None:
    """Only under plain `inspect eval`, whose samples need no cell; `belljar run` gives each one."""
    lines = [each for each in model_cell(*phases) if each.cell == "c9"]
    found = judge(Evidence(cells=gather_cells(lines), run=RunRecord(kind=kind, ended=True)))
    assert found.verdict is verdict
    assert (found.exit_code == 0) is (verdict is Verdict.CONTAINED)
    assert ("no sample had a cell" in headline(found)) is (verdict is Verdict.CONTAINED)


def test_a_reverted_cell_is_of_its_sample() -> None:
    """It needs its own probes and proof; what is left of the old machine in it is a breach."""
    ended = line(Kind.CELL_DESTROYED, "c9", **ENDED)
    exchange = {"from": "c1", "to": "c9", "from_pool": False, "duration_ms": 1.0}
    reverted = line(Kind.CELL_REVERTED, "c9", **exchange)
    probed = probing("start", "c9") + probing("end", "c9")
    found = judge(evidence(lines=[*story(), *probed, reverted, ended]))
    assert found.verdict is Verdict.CONTAINED
    assert "reverted 1 time(s)" in found.rows[0].remarks
    for lines in ([reverted, ended], [*probed, reverted]):
        assert judge(evidence(lines=[*story(), *lines])).rows[0].verdict is Verdict.VOID
    vacuous = {"from": "c1", "planted": [], "found": [], "not_checked": ["port: not left"]}
    unverified = line(Kind.CELL_REVERT_VERIFIED, "c9", **vacuous)
    [row] = judge(evidence(lines=[*story(), unverified, *probed, reverted, ended])).rows
    assert any("not verified: port: not left" in remark for remark in row.remarks)
    assert row.verdict is Verdict.CONTAINED
    left = {"from": "c1", "planted": ["memory"], "found": ["memory"], "not_checked": []}
    unclean = line(Kind.CELL_REVERT_VERIFIED, "c9", **left)
    [row] = judge(evidence(lines=[*story(), unclean, ended])).rows
    assert row.verdict is Verdict.BREACHED
    assert Code.REVERT_UNCLEAN in {reason.code for reason in row.reasons}


@pytest.mark.promise("3.6")
def test_a_forked_cell_is_of_its_sample() -> None:
    """Whoever forked it, or a fork of it: without probes and proof of its own the sample is void."""
    probed = probing("start", "c9") + probing("end", "c9")
    ended = line(Kind.CELL_DESTROYED, "c9", **ENDED)
    between = line(Kind.CELL_FORKED, "c8", **{"snapshot": "s-1", "from": "c1"})
    for source in ("c1", "c8"):
        forked = line(Kind.CELL_FORKED, "c9", **{"snapshot": "s-1", "from": source})
        for lines, verdict in (
            ((*probed, ended), Verdict.CONTAINED),
            ((ended,), Verdict.VOID),
            (probed, Verdict.VOID),
        ):
            before = [between] if source == "c8" else []
            found = judge(evidence(lines=[*story(), *before, forked, *lines]))
            assert found.rows[0].verdict is (Verdict.VOID if before else verdict)
            assert "c9" in {cell.cell_id for cell in found.rows[0].cells}
