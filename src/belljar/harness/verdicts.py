"""Writes Inspect's logs: verdicts into a run's, and one log of an evaluation that ran in parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final, NamedTuple

from inspect_ai.log import (
    EvalLog,
    EvalSample,
    MetadataEdit,
    ProvenanceData,
    edit_eval_log,
    edit_score,
    invalidate_samples,
    read_eval_log,
    recompute_metrics,
    write_eval_log,
)
from inspect_ai.scorer import CORRECT, INCORRECT, NOANSWER, Score, ScoreEdit

from belljar.harness.evidence import CONTAINMENT_KEY, DEGRADED_KEY, OWN_SCORE, is_own_score, logs_in
from belljar.probe.model import Verdict
from belljar.report.samples import Row, RunFindings

SCORE: Final = "containment"
SCORE_VERDICT: Final = "containment_verdict"  # key of each score's metadata
SIGNALS: Final = "belljar_signals"  # key of the sample's metadata
# In Inspect's record of edits, and before a score's name that the task's scorer has too.
_AUTHOR: Final = "belljar"
# By Inspect's own values, so that its `accuracy` of this score is the share of contained ones.
_VALUES: Final = {Verdict.CONTAINED: CORRECT, Verdict.VOID: NOANSWER, Verdict.BREACHED: INCORRECT}


def bind_verdicts(log_dir: Path, findings: RunFindings, *, require_contained: bool) -> list[str]:
    """Return the samples that metrics leave out, `id #epoch`."""
    # By uuid: ids and epochs repeat in the logs of several tasks. None is for a sample without.
    rows = {row.transcript.uuid: row for row in findings.rows if row.transcript.uuid}
    dropped: list[str] = []
    for location in logs_in(log_dir):
        log = _bound(read_eval_log(location), rows, findings.run_id)
        if require_contained:
            log, left_out = _only_contained(log, rows)
            dropped += left_out
        write_eval_log(log, location)
    return dropped


def _bound(log: EvalLog, rows: Mapping[str, Row], run_id: str) -> EvalLog:
    samples = log.samples or []
    judged = [(each, rows[each.uuid]) for each in samples if each.uuid and each.uuid in rows]
    for sample, row in judged:
        codes = [reason.code.value for reason in row.reasons]
        known = sample.metadata.get(CONTAINMENT_KEY)
        judgement = {"run_id": run_id, "verdict": row.verdict.value, "reasons": codes}
        before = known if isinstance(known, dict) else {}
        sample.metadata[CONTAINMENT_KEY] = {**before, **judgement}
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
    found = [row.verdict for _, row in judged]
    counts = {each.value: found.count(each) for each in Verdict}
    edits = [MetadataEdit(metadata_set={SCORE: counts})]
    return edit_eval_log(log, edits, _provenance("verdicts of the samples"))


def _only_contained(log: EvalLog, rows: Mapping[str, Row]) -> tuple[EvalLog, list[str]]:
    # The log with metrics over contained samples only, and the names of those left out.
    samples = log.samples or []
    contained = {uuid for uuid, row in rows.items() if row.verdict is Verdict.CONTAINED}
    if not (out := [sample for sample in samples if sample.uuid not in contained]):
        return log, []
    if log.results is not None and len(out) == len(samples):
        results = log.results.model_copy(update={"scores": []})
        log = log.model_copy(update={"results": results, "reductions": None})
    elif log.results is not None:
        # Belljar's own score says nothing of samples that are all contained.
        counted = [
            sample.model_copy(update={"scores": _without_own(sample)})
            for sample in samples
            if sample.uuid in contained
        ]
        kept = log.model_copy(update={"samples": counted})
        recompute_metrics(kept)
        log = log.model_copy(update={"results": kept.results, "reductions": kept.reductions})
    marked = [sample.uuid for sample in out if sample.uuid]
    why = _provenance("not contained: it does not count in the metrics")
    log = invalidate_samples(log, marked, why)
    return log, [f"{sample.id} #{sample.epoch}" for sample in out]


def _without_own(sample: EvalSample) -> dict[str, Score]:
    return {name: each for name, each in (sample.scores or {}).items() if not is_own_score(each)}


def _provenance(reason: str) -> ProvenanceData:
    return ProvenanceData(author=_AUTHOR, reason=reason)


# Of a log's header: what says when, where and which part, not how the evaluation was made.
_OF_A_PART: Final[Any] = {
    "eval_id": True,
    "run_id": True,
    "created": True,
    "task_id": True,
    "task_file": True,
    "revision": True,
    "dataset": {"location", "samples", "sample_ids"},
    "config": {"limit", "sample_id", "max_samples", "max_sandboxes", "max_subprocesses"},
}


class LogPart(NamedTuple):
    """One log's directory, and its counting samples (id, epoch)."""

    name: str
    directory: Path
    counted: Set[tuple[str, int]]


def merge_logs(parts: Iterable[LogPart], names: Sequence[str], into: Path, *, epochs: int) -> str:
    """Write one log of an evaluation that ran in parts, of the samples with these names.

    Returns how parts differ in settings, "" if they don't. Raises `ValueError` without any log.
    """
    order = {sample: position for position, sample in enumerate(names)}
    merged: EvalLog | None = None
    settings: Mapping[str, Any] = {}
    samples: list[EvalSample] = []
    differing = ""
    for part in parts:
        for location in logs_in(part.directory):
            log = read_eval_log(location, resolve_attachments=True)
            found = log.eval.model_dump(mode="json", exclude=_OF_A_PART)
            if merged is None:
                merged, settings = log, found
            else:
                wrong = [name for name in settings if settings[name] != found[name]]
                if wrong and not differing:
                    differing = f"{part.name}: {', '.join(wrong)}"
                mine, more = merged.stats, log.stats
                mine.started_at = min(filter(None, (mine.started_at, more.started_at)), default="")
                mine.completed_at = max(mine.completed_at, more.completed_at)
                for which in ("model_usage", "role_usage"):
                    total = getattr(mine, which)
                    for model, usage in getattr(more, which).items():
                        total[model] = total[model] + usage if model in total else usage
                if merged.status == "success" and log.status != "success":
                    merged.status, merged.error = log.status, log.error
            for sample in log.samples or []:
                if (str(sample.id), sample.epoch) in part.counted:
                    # The verdict of the whole run is written later, as for a run on one machine.
                    samples.append(sample.model_copy(update={"scores": _without_own(sample)}))
    if merged is None:
        raise ValueError("no unit has a log")
    samples.sort(key=lambda sample: (sample.epoch, order[str(sample.id)]))
    config = merged.eval.config
    # These chose one unit's samples, and say nothing of the whole.
    config.limit, config.sample_id, config.max_samples, config.max_sandboxes = (None,) * 4
    # Inspect's ids keep their type: some are numbers.
    ids = {str(sample.id): sample.id for sample in samples}
    merged.eval.dataset.sample_ids = [ids.get(each, each) for each in names]
    merged.eval.task_file = None
    merged.samples = samples
    is_whole = len(samples) == len(names) * epochs
    if is_whole and not any(sample.error for sample in samples):
        merged.status, merged.error = "success", None  # what failed was tried again
    elif not is_whole and merged.status == "success":
        merged.status = "cancelled"
    merged.results, merged.reductions = None, None  # so far they are one unit's
    if merged.status == "success":
        recompute_metrics(merged)
    write_eval_log(merged, str(into / Path(merged.location).name))
    return differing
