"""Writes verdicts into Inspect's log: a score per sample, and metrics of contained ones only.

Uses Inspect's log editing, which records author and reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from inspect_ai.log import (
    EvalLog,
    EvalSample,
    MetadataEdit,
    ProvenanceData,
    edit_eval_log,
    edit_score,
    invalidate_samples,
    list_eval_logs,
    read_eval_log,
    recompute_metrics,
    write_eval_log,
)
from inspect_ai.scorer import CORRECT, INCORRECT, NOANSWER, ScoreEdit

from belljar.harness.evidence import OWN_SCORE
from belljar.harness.sample_record import CONTAINMENT_KEY, DEGRADED_KEY
from belljar.probe.model import Verdict
from belljar.report.samples import Row, RunFindings

SCORE: Final = "containment"
SCORE_VERDICT: Final = "containment_verdict"
"""Key of each score's metadata."""
SIGNALS: Final = "belljar_signals"
"""Key of the sample's metadata."""
_AUTHOR: Final = "belljar"
_VALUES: Final = {Verdict.CONTAINED: CORRECT, Verdict.VOID: NOANSWER, Verdict.BREACHED: INCORRECT}


def bind_verdicts(log_dir: Path, findings: RunFindings, *, require_contained: bool) -> list[str]:
    """Write the verdicts into every log of a run.

    With `require_contained` metrics count contained samples only; returns the others, `id #epoch`.
    """
    rows = {row.transcript.uuid: row for row in findings.rows}
    dropped: list[str] = []
    for info in list_eval_logs(str(log_dir), descending=False):
        log = _bound(read_eval_log(info), rows, findings)
        if require_contained:
            log, left_out = _only_contained(log, rows)
            dropped += left_out
        write_eval_log(log, info.name)
    return dropped


def _bound(log: EvalLog, rows: Mapping[str, Row], findings: RunFindings) -> EvalLog:
    run_id = findings.run_id
    judged = [
        (sample, rows[sample.uuid])
        for sample in log.samples or []
        if sample.uuid and sample.uuid in rows
    ]
    for sample, row in judged:
        codes = [reason.code.value for reason in row.reasons]
        known = sample.metadata.get(CONTAINMENT_KEY)
        judgement = {"run_id": run_id, "verdict": row.verdict.value, "reasons": codes}
        sample.metadata[CONTAINMENT_KEY] = {
            **(known if isinstance(known, dict) else {}),
            **judgement,
        }
        sample.metadata[SIGNALS] = {
            "run_id": run_id,
            "signals": [signal.to_json() for signal in row.signals.signals],
            "blind": [spot.to_json() for spot in row.signals.blind],
        }
        causes = ", ".join(dict.fromkeys(each.cause for _, each in row.degraded))
        degraded = {DEGRADED_KEY: causes} if causes else {}
        for score in (sample.scores or {}).values():
            said_of_score = {SCORE_VERDICT: row.verdict.value, **degraded}
            score.metadata = {**(score.metadata or {}), **said_of_score}
        edit = ScoreEdit(
            value=_VALUES[row.verdict],
            answer=row.verdict.value,
            explanation="; ".join(map(str, row.reasons)) or "every piece of evidence is there",
            metadata={
                OWN_SCORE: run_id,
                "reasons": codes,
                "cells": [cell.cell_id for cell in row.cells],
                "probes": row.probed,
                "destroyed": row.destroyed,
                **degraded,
            },
            provenance=_provenance("the ledger's verdict"),
        )
        # A scorer of the task's own may have this name; its score is its author's.
        name = SCORE if SCORE not in (sample.scores or {}) else f"{_AUTHOR}_{SCORE}"
        edit_score(log, sample.id, name, edit, recompute_metrics=False, epoch=sample.epoch)
    counts = {
        verdict.value: sum(row.verdict is verdict for _, row in judged) for verdict in Verdict
    }
    return edit_eval_log(
        log, [MetadataEdit(metadata_set={SCORE: counts})], _provenance("verdicts of the samples")
    )


def _only_contained(log: EvalLog, rows: Mapping[str, Row]) -> tuple[EvalLog, list[str]]:
    # The log with metrics over contained samples only, and the names of those left out.
    samples = log.samples or []
    out = [sample for sample in samples if not _contained(sample, rows)]
    if not out:
        return log, []
    if log.results is not None and len(out) == len(samples):
        log = log.model_copy(
            update={"results": log.results.model_copy(update={"scores": []}), "reductions": None}
        )
    elif log.results is not None:
        counted = []
        for sample in samples:
            if _contained(sample, rows):
                scores = dict(sample.scores or {})
                scores.pop(f"{_AUTHOR}_{SCORE}" if f"{_AUTHOR}_{SCORE}" in scores else SCORE, None)
                counted.append(sample.model_copy(update={"scores": scores}))
        kept = log.model_copy(update={"samples": counted})
        recompute_metrics(kept)
        log = log.model_copy(update={"results": kept.results, "reductions": kept.reductions})
    marked = [sample.uuid for sample in out if sample.uuid]
    log = invalidate_samples(
        log, marked, _provenance("not contained: it does not count in the metrics")
    )
    return log, [f"{sample.id} #{sample.epoch}" for sample in out]


def _contained(sample: EvalSample, rows: Mapping[str, Row]) -> bool:
    row = rows.get(sample.uuid or "")
    return row is not None and row.verdict is Verdict.CONTAINED


def _provenance(reason: str) -> ProvenanceData:
    return ProvenanceData(author=_AUTHOR, reason=reason)
