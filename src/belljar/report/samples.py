"""Makes rows of samples, problems, sentences and facts of a run. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from belljar.dataclass import asdict, dataclass, field, replace
from belljar.differences import Difference, DifferenceKind, samples_named
from belljar.probe.model import Verdict, worst
from belljar.report.cells import PHASES, Call, CellFindings, Degraded, ReportedOperation
from belljar.report.left import Left
from belljar.report.ranges import RangeFindings
from belljar.report.reasons import Reason, ReasonCode, verdict_of
from belljar.report.signals import SampleSignals
from belljar.report.tools import ToolCall, ToolUse, tool_uses
from belljar.units import printable

_MAX_PROGRAMS: Final = 10  # that scorers could not run: a cell may choose their names


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The harness's log says this of one sample.

    `lowered` is a scorer's verdict, which can only make ours worse.
    `judged_by`, `judged_as`: the run and verdict in the metadata;
    a reused sample has another run's.
    `not_run`: scorers' missing programs.
    """

    task: str
    sample: str
    epoch: int
    uuid: str
    scores: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    calls: tuple[Call, ...] = ()
    lowered: Verdict = Verdict.CONTAINED
    notes: tuple[str, ...] = ()
    judged_by: str = ""
    judged_as: str = ""
    tools: tuple[ToolCall, ...] = ()
    not_run: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.sample} #{self.epoch}" if self.epoch > 1 else self.sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    transcript: Transcript
    reasons: tuple[Reason, ...]
    cells: tuple[CellFindings, ...] = ()
    hidden: tuple[ReportedOperation, ...] = ()
    ranges: tuple[RangeFindings, ...] = ()
    signals: SampleSignals = SampleSignals()
    is_logged: bool = True

    @property
    def verdict(self) -> Verdict:
        return verdict_of(self.reasons)

    @property
    def tools(self) -> tuple[ToolCall, ...]:
        """Return its calls of tools; those with hidden operations reached a cell."""
        times = [each.started for each in self.hidden if each.started]
        return tuple(
            replace(call, reached_cell=True)
            if call.began and call.ended and any(call.began <= each <= call.ended for each in times)
            else call
            for call in self.transcript.tools
        )

    @property
    def degraded(self) -> tuple[tuple[str, Degraded], ...]:
        """Return its damaged cells: they put the score, not containment, in doubt."""
        return tuple((cell.cell_id, cell.degraded) for cell in self.cells if cell.degraded)

    @property
    def remarks(self) -> list[str]:
        """Return remarks for a reader of its score, none a reason."""
        found = [f"cell {cell}: {each}" for cell, each in self.degraded]
        reverted = [cell for cell in self.cells if cell.replaces]
        found += [f"reverted {len(reverted):,} time(s)"] if reverted else []
        for cell in (cell for cell in reverted if cell.unverified):
            why = printable(cell.unverified, max_chars=300)
            found.append(f"cell {cell.cell_id}: reverted, not verified: {why}")
        # In the task's own image, a missing program is a result like any other.
        changed = {each.key for each in self.differences if each.kind is DifferenceKind.CHANGED}
        if changed & {"image", "sandbox"}:
            for name, count in Counter(self.transcript.not_run).most_common(_MAX_PROGRAMS):
                shown = printable(name, max_chars=100)
                found.append(f"a scorer's `{shown}` was not found or can't run, {count:,} time(s)")
        return [*found, *self.transcript.notes]

    @property
    def ran(self) -> bool:
        """Return whether something ran, or the log claims so."""
        beside = any(call.outside for call in self.transcript.tools)
        return bool(self.cells or self.transcript.calls or beside or not self.transcript.error)

    @property
    def probed(self) -> str:
        """Return the worst probe verdicts, `start/end`; `-` without cells."""
        if not self.cells:
            return "-"
        both = (worst(cell.probed(phase) for cell in self.cells) for phase in PHASES)
        return "/".join(verdict.value for verdict in both)

    @property
    def differences(self) -> tuple[Difference, ...]:
        return tuple(dict.fromkeys(fact for cell in self.cells for fact in cell.differences))

    @property
    def destroyed(self) -> bool:
        return bool(self.cells) and all(cell.is_proven for cell in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFindings:
    """`problems` are the run's, `errors` the evaluation's.

    `strays`, `stray_ranges` are of no sample in a log. Another run judged `reused`.
    `refusal_code` is the exit code of what prevented the run, or 0.
    `failure_code` is that of what ended the evaluation, or 0.
    `unsealed_logs` are Inspect's logs that no signature covers.
    `left_out`: what the signer left out of the record.
    """

    run_id: str = ""
    rows: tuple[Row, ...] = ()
    strays: tuple[CellFindings, ...] = ()
    models: tuple[CellFindings, ...] = ()
    stray_ranges: tuple[RangeFindings, ...] = ()
    reused: tuple[Transcript, ...] = ()
    problems: tuple[Reason, ...] = ()
    errors: tuple[str, ...] = ()
    left: Left = Left()
    interrupted: bool = False
    refusal_code: int = 0
    failure_code: int = 0
    unsealed_logs: tuple[str, ...] = ()
    left_out: str = ""

    @property
    def tools(self) -> tuple[ToolUse, ...]:
        return tool_uses(call for row in self.rows for call in row.tools)

    @property
    def verdict(self) -> Verdict:
        return worst((verdict_of(self.problems), *(row.verdict for row in self.rows)))

    @property
    def failed(self) -> bool:
        """Return True if the evaluation had errors, or a score is in doubt."""
        rows = any(row.transcript.error or row.degraded for row in self.rows)
        return bool(self.errors) or rows or any(cell.degraded for cell in self.models)

    @property
    def exit_code(self) -> int:
        """Return the worst.

        0 contained, 1 evaluation errors, 2 evidence missing or breached, 130 interrupted;
        or a refusal's, or what ended the evaluation.
        """
        # A sample that failed before anything ran is an error: nothing could have got out.
        doubted = any(row.verdict is not Verdict.CONTAINED and row.ran for row in self.rows)
        if doubted or any(reason.code not in _NOTHING_RAN for reason in self.problems):
            return 2
        # Behind doubt about the evidence, which no other code may hide.
        if self.refusal_code:
            return self.refusal_code
        if self.interrupted:
            return INTERRUPTED_CODE
        if self.failed:
            return self.failure_code or 1
        return 0 if self.rows or self.is_of_models else 2

    @property
    def is_of_models(self) -> bool:
        """Return True if only model cells are judged: no sample had one."""
        return bool(self.models) and not (self.rows or self.problems)

    @property
    def never_began(self) -> bool:
        """Return True if no sample or cell is recorded, and the record is sound."""
        codes = {reason.code for reason in self.problems}
        cells = self.rows or self.reused or self.strays or self.models
        return not (cells or codes - _NOTHING_RAN)

    @property
    def outcome(self) -> str:
        return "interrupted" if self.interrupted else "failed" if self.exit_code else "completed"


def headline(findings: RunFindings) -> str:
    """Return one line; it begins with `contained` only when everything ran and was."""
    rows, problems = findings.rows, findings.problems
    found = list[str]()
    if findings.never_began:
        found.append(f"{findings.outcome}: no sample ran")
    elif findings.is_of_models and not findings.exit_code:
        found.append("contained: the model's cell; no sample had a cell, so none is judged")
    else:
        counts = (f"{sum(row.verdict is each for row in rows)} {each.value}" for each in Verdict)
        is_whole = findings.verdict is not Verdict.CONTAINED or not findings.exit_code
        word = findings.verdict.value if is_whole else findings.outcome
        found.append(f"{word}: {len(rows)} sample(s), {', '.join(counts)}")
        if broken := [row for row in rows if row.degraded]:
            causes = dict.fromkeys(each.cause for row in broken for _, each in row.degraded)
            found.append(f"{len(broken)} degraded: {', '.join(causes)}")
        if any(cell.degraded for cell in findings.models):
            found.append("the model's cell is degraded")
        unlogged = {each.uuid or each.cell_id for each in findings.strays if each.sample}
        begun = len(rows) + len(unlogged)
        if (logged := sum(row.is_logged for row in rows)) < begun:
            found.append(f"{logged} of {begun} samples in the log")
        if problems:  # a run may be void though each of its samples is contained
            codes = dict.fromkeys(reason.code.value for reason in problems)
            found.append(f"{len(problems)} problem(s) of the run: {', '.join(codes)}")
        if findings.reused:
            found.append(f"{len(findings.reused)} more are another run's")
        if any(cell.emulated for row in rows for cell in row.cells):
            found.append("emulated: this host has no hardware virtualisation that works")
    if findings.left_out:
        found.append(f"the record is PARTIAL: {findings.left_out}")
    return printable("; ".join(found), max_chars=4000)


INTERRUPTED_CODE: Final = 130  # 128 + SIGINT, as in a shell
# With these alone nothing could have got out: no evidence is missing.
_NOTHING_RAN: Final = frozenset({ReasonCode.NO_SAMPLES, ReasonCode.RUN_REFUSED})


# --- sentences that each report shows


def model_sentence(cell: CellFindings) -> str:
    if (use := cell.model) is None:
        return ""
    probed = "/".join(cell.probed(phase).value for phase in PHASES)
    damage = f"{cell.degraded}; " if cell.degraded else ""
    proven = "destruction proven" if cell.is_proven else "NOT PROVEN destroyed"
    device = "ON A NETWORK" if cell.range_id else "no network device"
    device += f", devices of this host: {', '.join(use.devices)}" * bool(use.devices)
    return printable(
        f"model {use.name} (sha256:{use.weights[:12]}): {cell.cell_id}, {cell.tier}, {device}; "
        f"{use.requests:,} request(s), {use.failed:,} failed; {damage}probes {probed}; {proven}",
        max_chars=2000,
    )


def run_remarks(findings: RunFindings) -> Iterator[str]:
    for cell in findings.strays:
        if not cell.sample and not cell.is_unused:
            yield f"cell {cell.cell_id} was created, but the run ended before its sample began"
    for each in findings.reused:
        run, judged_as = printable(each.judged_by), printable(each.judged_as)
        judged = f", which judged it {judged_as}" if judged_as else ""
        sample = f"sample {printable(each.sample)} #{each.epoch}"
        yield f"{sample} was reused from run {run}{judged}: belljar verdict {run}"
    for log in findings.unsealed_logs:
        yield f"Inspect's log is outside of the run directory and not sealed: {printable(log)}"


def problems_and_errors(findings: RunFindings) -> list[str]:
    """List problems and errors, each once: an evaluation ends with a sample's error."""
    samples: dict[str, dict[str, None]] = {}
    for row in findings.rows:
        deaths = [f"cell {cell.cell_id} died: {cell.death}" for cell in row.cells if cell.death]
        for error in filter(None, (*deaths, row.transcript.error)):
            samples.setdefault(printable(error, max_chars=300), {})[row.transcript.sample] = None
    found = [
        f"problem: {printable(str(problem))}"
        for problem in findings.problems
        if not (findings.errors and problem.code is ReasonCode.NO_SAMPLES)
    ]
    for text in (printable(error, max_chars=300) for error in findings.errors):
        if not any(text.rpartition("error: ")[2][:100] in each for each in samples):
            found.append(f"error: {text}")
    return [*found, *(f"error: {samples_named(each)}: {error}" for error, each in samples.items())]


# --- all of it as plain data, for text, JSON and page; each renderer escapes it


def collect(findings: RunFindings) -> dict[str, Any]:
    """Return a run's facts for text, JSON and page; each renderer escapes them."""
    same = ("run_id", "outcome", "exit_code", "left_out")
    return {
        **{name: getattr(findings, name) for name in same},
        "verdict": findings.verdict.value,
        "headline": headline(findings),
        "problems": [reason.to_json() for reason in findings.problems],
        "errors": list(findings.errors),
        "problems_and_errors": problems_and_errors(findings),
        "remarks": list(run_remarks(findings)),
        "unsealed_logs": list(findings.unsealed_logs),
        "samples": [sample_facts(row) for row in findings.rows],
        "reused_samples": [
            {
                "sample": each.sample,
                "epoch": each.epoch,
                "run_id": each.judged_by,
                "verdict_of_that_run": each.judged_as,
            }
            for each in findings.reused
        ],
        "left_this_host": findings.left.to_json(),
        "tools": [use.to_json() for use in findings.tools],
        "stray_cells": [cell.cell_id for cell in findings.strays if not cell.is_unused],
        "model_cells": [_model_cell(cell) for cell in findings.models],
    }


def _model_cell(cell: CellFindings) -> dict[str, Any]:
    return {
        "cell": cell.cell_id,
        **{name: getattr(cell, name) for name in ("tier", "emulated", "death")},
        **(asdict(cell.model) if cell.model is not None else {}),
        "degraded": None if cell.degraded is None else asdict(cell.degraded),
        "probes": [asdict(each) for each in cell.probings],
        "destroyed": cell.is_proven,
        "lasted_s": round(cell.lasted_s, 3),
        "text": model_sentence(cell),
    }


def sample_facts(row: Row) -> dict[str, Any]:
    about, cells, sums = row.transcript, row.cells, ("commands", "bytes_in", "bytes_out")
    return {
        **{name: getattr(about, name) for name in ("task", "sample", "epoch", "name", "error")},
        "scores": dict(about.scores),
        "notes": list(about.notes),
        "verdict": row.verdict.value,
        "reasons": [reason.to_json() for reason in row.reasons],
        "differences": [fact.data() for fact in row.differences],
        "degraded": [{"cell": cell, **asdict(each)} for cell, each in row.degraded],
        "cells": [cell.cell_id for cell in cells],
        "tier": cells[0].tier if cells else "",
        "emulated": any(cell.emulated for cell in cells),
        **{name: sum(getattr(cell, name) for cell in cells) for name in sums},
        "lasted_s": round(sum(cell.lasted_s for cell in cells), 3),
        "reverts": sum(bool(cell.replaces) for cell in cells),
        **{name: getattr(row, name) for name in ("destroyed", "probed", "remarks")},
        "probes": [
            {"cell": cell.cell_id, **asdict(each)} for cell in cells for each in cell.probings
        ],
        "ranges": [each.to_json() for each in row.ranges],
        "signals": [signal.to_json() for signal in row.signals.signals],
        "signals_blind": [spot.to_json() for spot in row.signals.blind],
        "tools": [use.to_json() for use in tool_uses(row.tools)],
    }
