"""Inspect's log of a run, read into the report's words. Reads files, decides nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inspect_ai.log import list_eval_logs, read_eval_log, read_eval_log_samples

from belljar.harness.containment import SOURCE
from belljar.probe.model import Verdict, worst
from belljar.report.cells import Action
from belljar.report.reconcile import Call
from belljar.report.samples import Transcript
from belljar.report.tools import EXTRA_BODY_TOOL, HOSTED_USE, Outside, ToolCall, extra_fields
from belljar.report.verdict import LogRecord, LogStatus
from belljar.units import printable

if TYPE_CHECKING:
    from inspect_ai.event import Event, ModelEvent
    from inspect_ai.log import EvalLog, EvalSample
    from inspect_ai.scorer import Score

CONTAINMENT: Final = "containment"
"""Key of a score's metadata by which a scorer that looked at the host can make a verdict worse:
`breached` or `void`. It can't make it better. Case does not matter; a word that is no verdict
counts as `void`.
"""
NOTE: Final = "containment_note"
OWN_SCORE: Final = "judged_by_run"
"""Key of the metadata of the score that Belljar makes: the run that says it."""


JUDGED: Final = "containment"
"""Key of the sample's metadata under which Belljar says what it knows, with the run that says it.
"""


def logs_in(directory: Path) -> list[str]:
    """The logs in a directory, oldest first; none when it is not there."""
    return (
        [info.name for info in list_eval_logs(str(directory), descending=False)]
        if directory.is_dir()
        else []
    )


def read_log(location: str, run_id: str) -> LogRecord:
    """One log of a run. What can't be read of it is its `problem`: nothing is raised."""
    if not (path := Path(location.removeprefix("file://"))).exists() and "://" not in str(path):
        return LogRecord(location=location, missing=True)
    transcripts: list[Transcript] = []
    try:
        header = read_eval_log(location, header_only=True)
        for sample in read_eval_log_samples(
            location, all_samples_required=False, resolve_attachments=True
        ):
            transcripts.append(read_sample(header.eval.task, sample, run_id))
        status = LogStatus(header.status)
    except Exception as error:  # noqa: BLE001
        # Inspect's format: a truncated archive, a version that it does not know.
        why = printable(f"{type(error).__name__}: {error}", max_chars=300)
        return LogRecord(location=location, transcripts=tuple(transcripts), problem=why)
    return LogRecord(
        location=location,
        task=printable(header.eval.task),
        status=status,
        error=printable(header.error.message, max_chars=400) if header.error else "",
        transcripts=tuple(transcripts),
        expected=_expected(header),
        samples_logged=header.eval.config.log_samples is not False,
    )


def _expected(header: EvalLog) -> int | None:
    results = header.results
    if results is None or results.early_stopping is not None:
        return None
    return results.total_samples if results.logged_samples is None else results.logged_samples


def read_sample(task: str, sample: EvalSample, run_id: str) -> Transcript:
    """One sample, without attempts that another run made: `eval-retry` copies them."""
    scores = sample.scores or {}
    said = [score.metadata or {} for score in scores.values()]
    judged = sample.metadata.get(JUDGED)
    judged = judged if isinstance(judged, dict) else {}
    return Transcript(
        task=task,
        sample=str(sample.id),
        epoch=sample.epoch,
        uuid=sample.uuid or "",
        scores={name: _shown(score) for name, score in scores.items() if not is_own_score(score)},
        error=_error(sample.error.message) if sample.error else "",
        calls=tuple(_calls(_all_events(sample, run_id))),
        tools=tuple(_tools(list(_all_events(sample, run_id)))),
        lowered=_lowered(metadata.get(CONTAINMENT) for metadata in said),
        notes=tuple(str(metadata[NOTE]) for metadata in said if NOTE in metadata),
        judged_by=str(judged.get("run_id", "")),
        judged_as=str(judged.get("verdict", "")),
    )


def _shown(score: Score) -> str:
    """A score in a table's cell: of many values those that aren't zero."""
    if not isinstance(score.value, dict):
        return str(score.value)
    return ", ".join(f"{name}={value}" for name, value in score.value.items() if value) or "0"


def is_own_score(score: Score) -> bool:
    """Whether Belljar made this score, when an earlier judgement was written into the log."""
    return OWN_SCORE in (score.metadata or {})


def _error(message: str) -> str:
    return "cancelled" if message.startswith(("CancelledError", "Cancelled")) else message


def _lowered(words: Iterable[object]) -> Verdict:
    """The worst of what scorers say, in whatever case; a word that is no verdict is void."""
    said = [str(word).strip().lower() for word in words if word is not None]
    known = set(Verdict)
    found = [Verdict(word) if word in known else Verdict.VOID for word in said if word]
    return worst([*found, Verdict.CONTAINED])


def _all_events(sample: EvalSample, run_id: str) -> Iterator[Event]:
    for attempt in sample.error_retries or []:
        events = attempt.events or []
        if not _of_another_run(events, run_id):
            yield from events
    yield from sample.events


def _of_another_run(events: Iterable[Event], run_id: str) -> bool:
    """Whether the attempt's own probes name another run, and none this one."""
    said = [event.data for event in events if event.event == "info" and event.source == SOURCE]
    runs = {data.get("run_id") for data in said if isinstance(data, dict)}
    return bool(runs) and run_id not in runs


def _calls(events: Iterable[Event]) -> Iterator[Call]:
    for event in events:
        if event.event == "sandbox":
            what = event.cmd if event.action == "exec" else event.file
            yield Call(
                action=Action(event.action),
                what=what or "",
                shown_bytes=len((event.output or "").encode("utf-8", "replace")),
            )


def _tools(events: Sequence[Event]) -> Iterator[ToolCall]:
    """The calls of tools.

    One reached a cell when an operation in a sandbox happened inside of its span.
    """
    parents = {event.id: event.parent_id for event in events if event.event == "span_begin"}
    reached: set[str] = set()
    for event in events:
        span = event.span_id if event.event == "sandbox" else None
        while span is not None and span not in reached:
            reached.add(span)
            span = parents.get(span)
    spans: dict[str, deque[str]] = {}
    for event in events:
        # Inspect makes the event of a call before its span, and writes it right after: it names the
        # span around
        if event.event == "span_begin" and event.type == "tool":
            spans.setdefault(event.name, deque()).append(event.id)
        elif event.event == "tool":
            mine = spans.get(event.function)
            yield ToolCall(
                name=event.function,
                reached_cell=bool(mine and mine.popleft() in reached),
                began=event.timestamp,
                ended=event.completed,
            )
        elif event.event == "model":
            yield from _hosted(event)


def _hosted(event: ModelEvent) -> Iterator[ToolCall]:
    """What the model's provider did by itself, as its answer says, or may have been asked to do by
    an `extra_body`.
    """
    if extra_fields(event.config.extra_body):
        yield ToolCall(name=EXTRA_BODY_TOOL, outside=Outside.EXTRA_BODY)
    for choice in event.output.choices:
        content = choice.message.content
        for each in content if isinstance(content, list) else ():
            if each.type == "tool_use":
                # of an MCP server the policy names the server, of the others the tool that was
                # offered
                name = (
                    (each.context or each.name) if each.tool_type == "mcp_call" else each.tool_type
                )
                yield ToolCall(name=name, outside=HOSTED_USE.get(each.tool_type, Outside.HOSTED))
