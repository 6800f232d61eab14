"""One Inspect log of an evaluation that ran in parts, by Inspect's own log API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any, Final

from inspect_ai.log import EvalLog, EvalSample, read_eval_log, recompute_metrics, write_eval_log

from belljar.dataclass import dataclass
from belljar.harness.evidence import is_own_score, logs_in
from belljar.harness.selected import SelectedTask

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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """A directory with one log, and the samples of it (id, epoch) that count."""

    name: str
    directory: Path
    counted: Set[tuple[str, int]]


def merge_logs(parts: Iterable[LogPart], task: SelectedTask, into: Path) -> str:
    """Write the merged log; returns how parts differ in settings, "" if they don't.

    Samples are in the order of one evaluation, metrics are computed from all of them. Raises what
    Inspect raises, and `ValueError` without any log.
    """
    order = {sample: position for position, sample in enumerate(task.samples)}
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
                for total, part_of_it in (
                    (mine.model_usage, more.model_usage),
                    (mine.role_usage, more.role_usage),
                ):
                    for model, usage in part_of_it.items():
                        total[model] = total[model] + usage if model in total else usage
                if merged.status == "success" and log.status != "success":
                    merged.status, merged.error = log.status, log.error
            for sample in log.samples or []:
                if (str(sample.id), sample.epoch) in part.counted:
                    # The verdict of the whole run is written later, as for a run on one machine.
                    scores = {
                        name: score
                        for name, score in (sample.scores or {}).items()
                        if not is_own_score(score)
                    }
                    samples.append(sample.model_copy(update={"scores": scores}))
    if merged is None:
        raise ValueError("no unit has a log")
    samples.sort(key=lambda sample: (sample.epoch, order[str(sample.id)]))
    config = merged.eval.config
    config.limit, config.sample_id, config.max_samples, config.max_sandboxes = (None,) * 4
    ids = {str(sample.id): sample.id for sample in samples}
    merged.eval.dataset.sample_ids = [ids.get(each, each) for each in task.samples]
    merged.eval.task_file = None
    merged.samples = samples
    is_whole = len(samples) == len(task.samples) * task.epochs
    if is_whole and not any(sample.error for sample in samples):
        merged.status, merged.error = "success", None  # what failed was tried again
    elif not is_whole and merged.status == "success":
        merged.status = "cancelled"
    merged.results, merged.reductions = None, None
    if merged.status == "success":
        recompute_metrics(merged)
    write_eval_log(merged, str(into / Path(merged.location).name))
    return differing
