"""Ledger + transcript → one row per sample and a verdict for the run. Pure: the only place where *contained* is
decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from belljar.probe.model import Verdict, worst
from belljar.report.cells import CellFindings, Probing
from belljar.report.ranges import RangeFindings
from belljar.report.reconcile import Call, Difference, reconcile
from belljar.report.upstreams import UpstreamUse

NO_RANGES: Final[Mapping[str, RangeFindings]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """One sample as the harness's log has it. `lowered` is a verdict that a scorer reached from the host's side; it
    can only make ours worse.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sample in the table."""

    transcript: Transcript
    cells: tuple[CellFindings, ...]
    difference: Difference
    verdict: Verdict
    reasons: tuple[str, ...]
    ranges: tuple[RangeFindings, ...] = ()

    @property
    def commands(self) -> int:
        """Commands run in all of its cells."""
        return sum(cell.commands for cell in self.cells)

    @property
    def bytes_in(self) -> int:
        """Bytes that went into its cells."""
        return sum(cell.bytes_in for cell in self.cells)

    @property
    def bytes_out(self) -> int:
        """Bytes that came out of its cells."""
        return sum(cell.bytes_out for cell in self.cells)

    @property
    def lasted_s(self) -> float:
        """Seconds that its cells lived, together."""
        return sum(cell.lasted_s for cell in self.cells)

    @property
    def ran(self) -> bool:
        """Something was done in a cell, or claims to have been, or the sample claims to have ended well."""
        return bool(self.cells or self.transcript.calls or not self.transcript.error)

    @property
    def probed(self) -> str:
        """What the probes say at both ends, `start/end`, the worst of its cells; `-` where there are none."""
        if not self.cells:
            return "-"
        both = (worst(cell.probed(phase) for cell in self.cells) for phase in ("start", "end"))
        return "/".join(verdict.value for verdict in both)

    @property
    def destroyed(self) -> bool:
        """Every cell's destruction is proven."""
        return bool(self.cells) and all(cell.destroyed and cell.clean for cell in self.cells)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFindings:
    """The run as a whole. `strays` are cells of no sample (`stray_ranges` likewise), `spares` those of them that were made ahead and that nobody took;
    `problems` concern the run and void it; `upstreams` are real and were asked for.
    """

    rows: tuple[Row, ...]
    strays: tuple[CellFindings, ...]
    problems: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    upstreams: tuple[UpstreamUse, ...] = ()
    stray_ranges: tuple[RangeFindings, ...] = ()

    @property
    def spares(self) -> tuple[CellFindings, ...]:
        """Cells that were made ahead and not needed."""
        return tuple(cell for cell in self.strays if cell.is_spare)

    @property
    def verdict(self) -> Verdict:
        """The worst of its samples; void if there is none, or the record as a whole is in doubt."""
        verdicts = [row.verdict for row in self.rows]
        verdicts += [Verdict.BREACHED for cell in self.strays if _breaches(cell)]
        verdicts += [Verdict.BREACHED for each in self.stray_ranges if each.breached]
        if self.problems or not verdicts:
            verdicts.append(Verdict.VOID)
        return worst(verdicts)

    @property
    def failed(self) -> bool:
        """The evaluation itself had errors."""
        return bool(self.errors) or any(row.transcript.error for row in self.rows)

    @property
    def exit_code(self) -> int:
        """0 all contained, 1 evaluation errors, 2 containment evidence missing or breached. The worse news wins.

        A sample that failed before anything ran in a cell is an error, not missing evidence: there is nothing that could have got out.
        """
        doubted = any(row.verdict is not Verdict.CONTAINED and row.ran for row in self.rows)
        if doubted or self.problems or not (self.rows or self.errors):
            return 2
        return 1 if self.failed else 0


def find_rows(
    transcripts: Sequence[Transcript],
    cells: Mapping[str, CellFindings],
    *,
    problems: Sequence[str] = (),
    errors: Sequence[str] = (),
    upstreams: Sequence[UpstreamUse] = (),
    ranges: Mapping[str, RangeFindings] = NO_RANGES,
) -> RunFindings:
    """Join the harness's samples with the ledger's cells and judge each."""
    by_uuid: dict[str, list[CellFindings]] = {}
    for cell in cells.values():
        by_uuid.setdefault(cell.uuid, []).append(cell)
    rows = [_row(transcript, by_uuid.pop(transcript.uuid, []), ranges) for transcript in transcripts]
    strays = tuple(cell for left in by_uuid.values() for cell in left)
    unclean = [f"cell {cell.cell_id}: {fault}" for cell in strays for fault in (*_unclean(cell), *_breaches(cell))]
    taken = {each.range_id for row in rows for each in row.ranges}
    stray_ranges = tuple(each for each in ranges.values() if each.range_id not in taken)
    unclean += [f"range {each.range_id}: {fault}" for each in stray_ranges for fault in each.troubles]
    return RunFindings(
        rows=tuple(rows),
        strays=strays,
        stray_ranges=stray_ranges,
        problems=(*problems, *unclean),
        errors=tuple(errors),
        upstreams=tuple(upstreams),
    )


def _row(transcript: Transcript, cells: Sequence[CellFindings], ranges: Mapping[str, RangeFindings]) -> Row:
    difference = reconcile(transcript.calls, cells)
    its = tuple(ranges[each] for each in dict.fromkeys(cell.range_id for cell in cells) if each in ranges)
    reasons = [reason for cell in cells for reason in _faults(cell)]
    reasons += [f"range {each.range_id}: {fault}" for each in its for fault in each.faults]
    if not cells:
        reasons.append("no cell is on record for this sample")
    if difference.unfounded:
        reasons.append(f"{len(difference.unfounded)} call(s) of the transcript never reached a cell")
    verdict = worst(
        (
            transcript.lowered,
            Verdict.VOID if reasons else Verdict.CONTAINED,
            *(_probed(cell) for cell in cells),
            *(Verdict.BREACHED for each in its if each.breached),
        )
    )
    if transcript.lowered is not Verdict.CONTAINED:
        reasons.append(f"a scorer says {transcript.lowered.value}")
    return Row(
        transcript=transcript,
        cells=tuple(cells),
        difference=difference,
        verdict=verdict,
        reasons=tuple(reasons),
        ranges=its,
    )


def _probed(cell: CellFindings) -> Verdict:
    """The worst of everything that was probed in this cell, at any time, and of both ends of its sample."""
    return worst((cell.probed("start"), cell.probed("end"), *(probing.verdict for probing in cell.probings)))


def _faults(cell: CellFindings) -> list[str]:
    """Why the cell of a sample is not contained."""
    faults = (*_unclean(cell), *_breaches(cell), *_unproven(cell))
    return [f"cell {cell.cell_id}: {fault}" for fault in faults]


def _unclean(cell: CellFindings) -> list[str]:
    if cell.is_spare and cell.never_stood and not cell.destroyed:
        return []
    if not cell.destroyed:
        return ["its destruction is not on record"]
    if cell.clean:
        return []
    if cell.survivors or not cell.not_checked:
        return [f"its destruction left {', '.join(cell.survivors) or 'something'}"]
    return [f"its destruction is not proven; not looked for: {'; '.join(cell.not_checked)}"]


def _breaches(cell: CellFindings) -> list[str]:
    return [f"breached: {breach}" for probing in cell.probings for breach in probing.breaches]


def _unproven(cell: CellFindings) -> list[str]:
    missing = [phase for phase in ("start", "end") if not any(probing.phase == phase for probing in cell.probings)]
    void = [probing for probing in cell.probings if probing.verdict is Verdict.VOID]
    return [
        *(f"it was not probed at its {phase}" for phase in missing),
        *(
            f"its probes at its {each.phase or 'own time'} are void: {each.problem or 'not all could be tried'}"
            for each in void
        ),
    ]


def as_json(findings: RunFindings) -> dict[str, Any]:
    """The findings as JSON values, for `--json` and for the run directory."""
    return {
        "verdict": findings.verdict.value,
        "exit_code": findings.exit_code,
        "problems": list(findings.problems),
        "errors": list(findings.errors),
        "samples": [_row_json(row) for row in findings.rows],
        "upstreams": [use.to_json() for use in findings.upstreams],
        "stray_cells": [cell.cell_id for cell in findings.strays if not cell.is_spare],
        "spare_cells": [cell.cell_id for cell in findings.spares],
    }


def _probing_json(cell: CellFindings, probing: Probing) -> dict[str, Any]:
    return {
        "cell": cell.cell_id,
        "phase": probing.phase,
        "verdict": probing.verdict.value,
        "probes": probing.probes,
        "duration_ms": probing.duration_ms,
        "problem": probing.problem,
        "breaches": list(probing.breaches),
    }


def _row_json(row: Row) -> dict[str, Any]:
    difference = row.difference
    return {
        "task": row.transcript.task,
        "sample": row.transcript.sample,
        "epoch": row.transcript.epoch,
        "scores": dict(row.transcript.scores),
        "error": row.transcript.error,
        "notes": list(row.transcript.notes),
        "verdict": row.verdict.value,
        "reasons": list(row.reasons),
        "cells": [cell.cell_id for cell in row.cells],
        "tier": row.cells[0].tier if row.cells else "",
        "emulated": any(cell.emulated for cell in row.cells),
        "commands": row.commands,
        "bytes_in": row.bytes_in,
        "bytes_out": row.bytes_out,
        "lasted_s": round(row.lasted_s, 3),
        "destroyed": row.destroyed,
        "probes": [_probing_json(cell, probing) for cell in row.cells for probing in cell.probings],
        "ranges": [each.to_json() for each in row.ranges],
        "limits_hit": sorted({limit for cell in row.cells for limit in cell.limits}),
        "not_in_transcript": {
            "raised": len(difference.raised),
            "terminal": len(difference.terminal),
            "silent": len(difference.silent),
            "shortened": difference.shortened,
            "missing_bytes": difference.missing_bytes,
        },
        "only_in_transcript": len(difference.unfounded),
    }
