"""Collects a run's facts once, as plain data for text, JSON and page. Pure.

Texts are as recorded: each renderer escapes them.
"""

from __future__ import annotations

from typing import Any, Final

from belljar.dataclass import asdict
from belljar.report import samples
from belljar.report.cells import CellFindings
from belljar.report.tools import tool_uses

_SUMS: Final = ("commands", "bytes_in", "bytes_out")  # of a sample's cells


def collect(findings: samples.RunFindings) -> dict[str, Any]:
    """Return a run's facts for text and JSON."""
    return {
        **{
            name: getattr(findings, name) for name in ("run_id", "outcome", "exit_code", "left_out")
        },
        "verdict": findings.verdict.value,
        "headline": samples.headline(findings),
        "problems": [reason.to_json() for reason in findings.problems],
        "errors": list(findings.errors),
        "problems_and_errors": samples.problems_and_errors(findings),
        "remarks": samples.run_remarks(findings),
        "differences": samples.differing(findings.rows),
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
        "host_processes": dict(findings.left.host_processes),
        "stray_cells": [cell.cell_id for cell in findings.strays if not cell.is_unused],
        "model_cells": [_model_cell(cell) for cell in findings.models],
        "unused_cells": [cell.cell_id for cell in findings.unused],
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
        "text": samples.model_sentence(cell),
    }


def sample_facts(row: samples.Row) -> dict[str, Any]:
    """A sample's facts as JSON values."""
    about, cells = row.transcript, row.cells
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
        **{name: sum(getattr(cell, name) for cell in cells) for name in _SUMS},
        "lasted_s": round(sum(cell.lasted_s for cell in cells), 3),
        **{name: getattr(row, name) for name in ("reverts", "destroyed", "probed", "remarks")},
        "probes": [
            {"cell": cell.cell_id, **asdict(each)} for cell in cells for each in cell.probings
        ],
        "ranges": [each.to_json() for each in row.ranges],
        "signals": [signal.to_json() for signal in row.signals.signals],
        "signals_blind": [spot.to_json() for spot in row.signals.blind],
        "limits_hit": sorted({limit for cell in cells for limit in cell.limits}),
        "tools": [use.to_json() for use in tool_uses(about.tools)],
    }
