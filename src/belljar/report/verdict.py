"""The one place where *contained* is decided: ledger and Inspect's logs → the verdict of each
sample and of the run. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field
from enum import StrEnum
from itertools import zip_longest
from typing import Final

from belljar.dataclass import dataclass
from belljar.events import Kind
from belljar.ledger import Line
from belljar.probe.model import Verdict
from belljar.report.cells import CellFindings, TranscriptGap, reconcile
from belljar.report.ranges import RangeFindings
from belljar.report.reasons import CAUSES_OF_STOPS, RECORD_IN_DOUBT, Reason, ReasonCode
from belljar.report.requests import UpstreamUse
from belljar.report.samples import Row, RunFindings, Transcript
from belljar.report.signals import SampleSignals, SignalGatherer
from belljar.report.tools import refused_calls

EVALUATION: Final = "run"
"""Kind of the runs of `belljar run`."""


@dataclass(slots=True, kw_only=True)
class RunRecord:
    """What the ledger records of the run as a whole.

    `ended`: the evaluation's end is recorded. `interrupted`: by a person. `stopped`: by a breach.
    `causes`: reason codes of `errors`, "" for none. `refusal`: why it could not begin. `logs`:
    Inspect's. `not_in_log`: why metrics of contained samples are missing.
    """

    run_id: str = ""
    kind: str = EVALUATION
    ended: bool = False
    interrupted: bool = False
    stopped: bool = False
    errors: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    refusal: str = ""
    refusal_code: int = 0
    logs: list[str] = field(default_factory=list)
    not_in_log: str = ""

    def take(self, line: Line) -> None:
        """One event more."""
        data = line.data
        if line.kind is Kind.RUN_STARTED:
            self.run_id, self.kind = str(data["run_id"]), str(data["kind"])
        elif line.kind is Kind.SAMPLE_STARTED:
            log = str(data.get("log") or "")
            self.logs += [log] if log and log not in self.logs else []
        elif line.kind is Kind.RUN_EVALUATED:
            self.ended, self.interrupted, self.stopped = (
                True,
                bool(data["interrupted"]),
                bool(data["stopped"]),
            )
            self.errors = [str(error) for error in data["errors"]]
            self.causes = [str(cause) for cause in data.get("causes", ())]
            self.refusal, self.refusal_code = (
                str(data.get("refusal", "")),
                int(data.get("refusal_code", 0)),
            )
        elif line.kind is Kind.RUN_FINISHED:
            self.not_in_log = str(data.get("verdicts_not_in_log", ""))


class LogStatus(StrEnum):
    """How an Inspect log says that it ended."""

    STARTED = "started"
    SUCCESS = "success"
    CANCELLED = "cancelled"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecord:
    """One of Inspect's logs.

    `problem`: why it can't be read. `expected`: the samples it claims, None if it claims nothing.
    """

    location: str = ""
    task: str = ""
    status: LogStatus = LogStatus.SUCCESS
    error: str = ""
    transcripts: tuple[Transcript, ...] = ()
    expected: int | None = None
    samples_logged: bool = True
    missing: bool = False
    problem: str = ""


class LedgerState(StrEnum):
    """What verification says of the ledger."""

    VERIFIED = "verified"
    OWN = "own"
    """Still being written by the process that judges, and nothing is wrong so far."""
    UNFINISHED = "unfinished"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a verdict rests on; `begun_elsewhere`: sample uuids by other runs of the store."""

    logs: Sequence[LogRecord] = ()
    cells: Mapping[str, CellFindings] = field(default_factory=dict)
    ranges: Mapping[str, RangeFindings] = field(default_factory=dict)
    upstreams: Sequence[UpstreamUse] = ()
    run: RunRecord = field(default_factory=RunRecord)
    signals: SignalGatherer = field(default_factory=SignalGatherer)
    begun_elsewhere: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ledger: LedgerState = LedgerState.VERIFIED
    ledger_problem: str = ""


def judge(evidence: Evidence) -> RunFindings:
    """The verdict of each sample and of the run, each with its reasons."""
    run = evidence.run
    by_uuid: dict[str, list[CellFindings]] = {}  # all attempts at one sample
    for cell in evidence.cells.values():
        if cell.uuid:
            by_uuid.setdefault(cell.uuid, []).append(cell)
    own: list[Transcript] = []
    reused: list[Transcript] = []
    for each in (transcript for log in evidence.logs for transcript in log.transcripts):
        (reused if each.uuid not in by_uuid and _is_reused(each, evidence) else own).append(each)
    doubts = list(_record_reasons(evidence))
    everywhere = tuple(reason for reason in doubts if reason.code in RECORD_IN_DOUBT)
    # By a person: after a breach Belljar itself interrupts the evaluation.
    cancelled = any(log.status is LogStatus.CANCELLED for log in evidence.logs)
    interrupted = (run.interrupted or cancelled) and not run.stopped
    broken_off = interrupted or any(log.status is LogStatus.ERROR for log in evidence.logs)
    unlogged = _unlogged(
        evidence.cells.values(), {each.uuid for each in (*own, *reused)}, broken_off=broken_off
    )
    rows = (
        *(_row(each, by_uuid.get(each.uuid, []), evidence, everywhere) for each in own),
        *(
            _row(_without_log(cells), cells, evidence, everywhere, is_logged=False)
            for cells in unlogged
        ),
    )
    taken_cells = {cell.cell_id for row in rows for cell in row.cells}
    taken_ranges = {found.range_id for row in rows for found in row.ranges}
    strays = tuple(cell for cell in evidence.cells.values() if cell.cell_id not in taken_cells)
    stray_ranges = tuple(
        found for found in evidence.ranges.values() if found.range_id not in taken_ranges
    )
    stray_signals = evidence.signals.of(
        [c.cell_id for c in strays], [r.range_id for r in stray_ranges]
    )
    problems = [*doubts, *_log_reasons(evidence)]
    problems += [reason for cell in strays for reason in cell.end_reasons]
    problems += [reason for each in stray_ranges for reason in each.end_reasons]
    problems += _carried(stray_signals)
    if not rows:
        problems.append(Reason(code=ReasonCode.NO_SAMPLES))
    return RunFindings(
        run_id=run.run_id,
        rows=rows,
        strays=strays,
        stray_ranges=stray_ranges,
        reused=tuple(reused),
        problems=tuple(problems),
        errors=tuple(_evaluation_errors(evidence)),
        upstreams=tuple(evidence.upstreams),
        controls=evidence.signals.controls,
        interrupted=interrupted,
        refusal_code=run.refusal_code,
        unsealed_logs=tuple(log.location for log in evidence.logs)
        if run.kind != EVALUATION
        else (),
    )


def _is_reused(transcript: Transcript, evidence: Evidence) -> bool:
    """`eval-retry` copies a sample with its metadata. A data set can write metadata, but no
    ledger; `belljar run` never reuses a sample.
    """
    begun = evidence.begun_elsewhere.get(transcript.judged_by, frozenset())
    return evidence.run.kind != EVALUATION and transcript.uuid in begun


def _row(
    transcript: Transcript,
    cells: Sequence[CellFindings],
    evidence: Evidence,
    everywhere: Sequence[Reason],
    *,
    is_logged: bool = True,
) -> Row:
    gap = reconcile(transcript.calls, cells) if is_logged else TranscriptGap()
    ranges = evidence.ranges
    its = tuple(
        ranges[each] for each in dict.fromkeys(cell.range_id for cell in cells) if each in ranges
    )
    signals = evidence.signals.of([cell.cell_id for cell in cells], [each.range_id for each in its])
    reasons = [
        *(reason for cell in cells for reason in cell.reasons),
        *(reason for each in its for reason in each.reasons),
        *_carried(signals),
        *(
            []
            if is_logged
            else [Reason(code=ReasonCode.SAMPLE_NOT_IN_LOG, detail=transcript.sample)]
        ),
        *_sample_reasons(transcript, cells, gap),
        *everywhere,
    ]
    return Row(
        transcript=transcript,
        cells=tuple(cells),
        transcript_gap=gap,
        reasons=tuple(reasons),
        ranges=its,
        signals=signals,
    )


def _carried(signals: SampleSignals) -> Iterator[Reason]:
    for carried in signals.carried:
        yield Reason(code=ReasonCode.DECOY_CARRIED, detail=carried)


def _sample_reasons(
    transcript: Transcript, cells: Sequence[CellFindings], gap: TranscriptGap
) -> Iterator[Reason]:
    if not cells:
        yield Reason(code=ReasonCode.NO_CELL)
    if gap.unfounded:
        yield Reason(code=ReasonCode.CALLS_OUTSIDE_CELL, detail=str(len(gap.unfounded)))
    allowed = [cell.host_tools for cell in cells] or [()]
    refused = (tool for names in allowed for tool in refused_calls(transcript.tools, names))
    for tool in dict.fromkeys(refused):
        yield Reason(code=ReasonCode.HOST_TOOL_CALLED, detail=tool)
    if transcript.lowered is Verdict.VOID:
        yield Reason(code=ReasonCode.SCORER_VOID)
    if transcript.lowered is Verdict.BREACHED:
        yield Reason(code=ReasonCode.SCORER_BREACHED)


def _record_reasons(evidence: Evidence) -> Iterator[Reason]:
    run = evidence.run
    if evidence.ledger is LedgerState.BAD:
        yield Reason(code=ReasonCode.LEDGER_BAD, detail=evidence.ledger_problem)
    if evidence.ledger is LedgerState.UNFINISHED:
        yield Reason(code=ReasonCode.LEDGER_UNFINISHED, detail=evidence.ledger_problem)
    if not run.ended:
        yield Reason(code=ReasonCode.RUN_END_MISSING)
    if run.refusal:
        yield Reason(code=ReasonCode.RUN_REFUSED, detail=run.refusal)
    for error, cause in zip_longest(run.errors, run.causes[: len(run.errors)], fillvalue=""):
        code = ReasonCode(cause) if cause in CAUSES_OF_STOPS else ReasonCode.RUN_ERROR
        yield Reason(code=code, detail=error)
    if run.not_in_log:
        yield Reason(code=ReasonCode.VERDICTS_NOT_IN_LOG, detail=run.not_in_log)


def _log_reasons(evidence: Evidence) -> Iterator[Reason]:
    for log in evidence.logs:
        if code := _log_trouble(log):
            counts = f"{len(log.transcripts)} of {log.expected}"
            detail = counts if code is ReasonCode.LOG_INCOMPLETE else log.problem
            yield Reason(code=code, where=f"log {log.location}", detail=detail)


def _log_trouble(log: LogRecord) -> ReasonCode | None:
    if log.missing:
        return ReasonCode.LOG_MISSING
    if log.problem:
        return ReasonCode.LOG_UNREADABLE
    if log.status is LogStatus.STARTED:
        return ReasonCode.LOG_UNFINISHED
    if not log.samples_logged:
        return ReasonCode.LOG_WITHOUT_SAMPLES
    if (
        log.status is LogStatus.SUCCESS
        and log.expected is not None
        and len(log.transcripts) < log.expected
    ):
        return ReasonCode.LOG_INCOMPLETE
    return None


def _unlogged(
    cells: Iterable[CellFindings], logged: Set[str], *, broken_off: bool
) -> Iterable[Sequence[CellFindings]]:
    """The cells of each sample that began and that no log has.

    Inspect logs no sample that it was still preparing when it was interrupted or when another
    failed: only its set-up commands may have run. Nor one whose own error meets its cancellation.
    """
    found: dict[str, list[CellFindings]] = {}
    for cell in cells:
        never_ran = cell.preparing or not cell.operations
        if cell.sample and cell.uuid not in logged and not (broken_off and never_ran):
            found.setdefault(cell.uuid or cell.cell_id, []).append(cell)
    return found.values()


def _without_log(cells: Sequence[CellFindings]) -> Transcript:
    first = cells[0]
    return Transcript(
        task=first.task,
        sample=first.sample,
        epoch=first.epoch,
        uuid=first.uuid,
        error="Inspect's log doesn't have it",
    )


def _evaluation_errors(evidence: Evidence) -> Iterator[str]:
    for log in evidence.logs:
        if not log.problem and not log.missing and log.status is not LogStatus.SUCCESS:
            yield f"{log.task}: {log.status}: {log.error or 'it did not finish'}"
    if not evidence.logs:
        yield "the evaluation did not run"
