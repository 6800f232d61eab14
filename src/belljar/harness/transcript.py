"""Inspect's log of a run, read into the report's words. Reads files, decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_samples

from belljar.probe.model import Verdict, worst
from belljar.report.cells import Action
from belljar.report.reconcile import Call
from belljar.report.samples import Transcript
from belljar.units import printable

if TYPE_CHECKING:
    from inspect_ai.event import Event
    from inspect_ai.log import EvalLog, EvalSample

CONTAINMENT: Final = "containment"
"""Key of a score's metadata by which a scorer that looked at the host can make a verdict worse: `breached` or `void`.
It can't make it better.
"""
NOTE: Final = "containment_note"


class Logs(NamedTuple):
    """What Inspect's logs say: the samples, the errors of the evaluations as a whole, and whether a person ended one."""

    transcripts: list[Transcript]
    errors: list[str]
    interrupted: bool


def read_logs(log_dir: Path) -> Logs:
    """Every log in `log_dir`."""
    transcripts: list[Transcript] = []
    errors: list[str] = []
    interrupted = False
    for info in list_eval_logs(str(log_dir), descending=False):
        header = read_eval_log(info, header_only=True)
        errors.extend(_errors(header))
        interrupted = interrupted or header.status == "cancelled"
        transcripts.extend(_samples(info, header))
    return Logs(transcripts, errors, interrupted)


def _errors(header: EvalLog) -> Iterator[str]:
    if header.status != "success":
        why = printable(header.error.message, max_chars=400) if header.error else "it did not finish"
        yield f"{printable(header.eval.task)}: {header.status}: {why}"


def _samples(info: Any, header: EvalLog) -> Iterator[Transcript]:  # noqa: ANN401 - EvalLogInfo is not exported for typing everywhere
    for sample in read_eval_log_samples(info, all_samples_required=False, resolve_attachments=True):
        yield read_sample(header.eval.task, sample)


def read_sample(task: str, sample: EvalSample) -> Transcript:
    """One sample."""
    scores = sample.scores or {}
    said = [score.metadata or {} for score in scores.values()]
    return Transcript(
        task=task,
        sample=str(sample.id),
        epoch=sample.epoch,
        uuid=sample.uuid or "",
        scores={name: str(score.value) for name, score in scores.items()},
        error=_error(sample.error.message) if sample.error else "",
        calls=tuple(_calls(_all_events(sample))),
        lowered=_lowered(str(metadata.get(CONTAINMENT, "")) for metadata in said),
        notes=tuple(str(metadata[NOTE]) for metadata in said if NOTE in metadata),
    )


def _error(message: str) -> str:
    return "cancelled" if message.startswith(("CancelledError", "Cancelled")) else message


def _lowered(words: Iterable[str]) -> Verdict:
    found = [Verdict(word) for word in words if word in set(Verdict)]
    return worst([*found, Verdict.CONTAINED])


def _all_events(sample: EvalSample) -> Iterator[Event]:
    for attempt in sample.error_retries or []:
        yield from getattr(attempt, "events", None) or []
    yield from sample.events


def _calls(events: Iterable[Event]) -> Iterator[Call]:
    for event in events:
        if event.event == "sandbox":
            what = event.cmd if event.action == "exec" else event.file
            yield Call(
                action=Action(event.action),
                what=what or "",
                shown_bytes=len((event.output or "").encode("utf-8", "replace")),
            )
