"""Reads a run's evidence for `report.verdict`."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belljar.errors import LedgerError, breach_stands
from belljar.events import JsonValue
from belljar.ledger.listing import read_events
from belljar.ledger.rundir import INSPECT_LOGS, RunDirectory
from belljar.ledger.schema import Line
from belljar.ledger.verification import Status, Verification, verify
from belljar.probe.model import Verdict, worst
from belljar.report.cells import CellGatherer, TranscriptAction, gather_cells
from belljar.report.left import LeftGatherer
from belljar.report.ranges import RangeGatherer
from belljar.report.reasons import ReasonCode
from belljar.report.samples import RunFindings, Transcript, collect
from belljar.report.signals import SignalGatherer
from belljar.report.timeline import Timelines
from belljar.report.tools import EXTRA_BODY_TOOL, HOSTED_USE, Outside, ToolCall, extra_fields
from belljar.report.verdict import EVALUATION, Evidence, LogRecord, LogStatus, RunRecord
from belljar.units import printable

if TYPE_CHECKING:
    from inspect_ai.event import Event
    from inspect_ai.log import EvalSample
    from inspect_ai.scorer import Score

CONTAINMENT_KEY: Final = "containment"  # of a scorer, and of a sample: what its cell proved
DEGRADED_KEY: Final = "sandbox_degraded"  # in a damaged sample's metadata, and its scores'
SOURCE: Final = "belljar probes"  # source of Belljar's transcript events
NOTE: Final = "containment_note"
OWN_SCORE: Final = "judged_by_run"  # metadata key of Belljar's own score
_MAX_SEARCHED_CHARS: Final = 4096  # of a command's output, which begins with its errors
# A missing program, as shells, `env` and `belljar.harness.provider` name it.
_MISSING: Final = re.compile(
    r"([^\s:]{1,80}): (?:(?:command )?not found|Permission denied|No such file or directory)"
)
# What the readers of events raise for data that no Belljar writes.
_NOT_UNDERSTOOD: Final = (AttributeError, KeyError, TypeError, ValueError)


def logs_in(directory: Path) -> list[str]:
    """Return the logs in a directory, oldest first."""
    if not directory.is_dir():
        return []
    from inspect_ai.log import list_eval_logs  # late: a run may be judged where Inspect is not

    return [info.name for info in list_eval_logs(str(directory), descending=False)]


def read_log(location: str, run_id: str, timelines: Timelines | None = None) -> LogRecord:
    """Read one log; an error becomes its `problem`."""
    place = location.removeprefix("file://")
    # As text: of `s3://` a `Path` makes one slash, and its `exists` raises for a name too long
    if "://" not in place and not os.path.exists(place):  # noqa: PTH110
        return LogRecord(location=location, missing=True)
    from inspect_ai.log import read_eval_log, read_eval_log_samples

    transcripts: list[Transcript] = []
    try:
        header = read_eval_log(location, header_only=True)
        for sample in read_eval_log_samples(
            location, all_samples_required=False, resolve_attachments=True
        ):
            transcripts.append(read_sample(header.eval.task, sample, run_id))
            if timelines is not None:
                timelines.take_transcript(sample.uuid or "", _turns(sample, run_id))
        status = LogStatus(header.status)
    except Exception as error:  # noqa: BLE001
        # Inspect's format: a truncated archive, a version that it does not know.
        why = printable(f"{type(error).__name__}: {error}", max_chars=300)
        return LogRecord(location=location, transcripts=tuple(transcripts), problem=why)
    expected = None
    if (results := header.results) is not None and results.early_stopping is None:
        logged = results.logged_samples
        expected = results.total_samples if logged is None else logged
    return LogRecord(
        location=location,
        task=printable(header.eval.task),
        eval_id=header.eval.eval_id,
        status=status,
        error=printable(header.error.message, max_chars=400) if header.error else "",
        transcripts=tuple(transcripts),
        expected=expected,
        samples_logged=header.eval.config.log_samples is not False,
    )


def read_sample(task: str, sample: EvalSample, run_id: str) -> Transcript:
    """Read a sample, without other runs' attempts, which `eval-retry` copies."""
    scores, events = sample.scores or {}, list(_all_events(sample, run_id))
    score_metadata = [score.metadata or {} for score in scores.values()]
    judged = sample.metadata.get(CONTAINMENT_KEY)
    judged = judged if isinstance(judged, dict) else {}
    # A word of a scorer that is no verdict counts as void.
    said = [each[CONTAINMENT_KEY] for each in score_metadata if CONTAINMENT_KEY in each]
    words = [str(each).strip().lower() for each in said if each is not None]
    known = set(Verdict)
    found = [Verdict(word) if word in known else Verdict.VOID for word in words if word]
    shown: dict[str, str] = {}
    for name, score in scores.items():
        value = score.value
        if isinstance(value, dict):
            value = ", ".join(f"{key}={each}" for key, each in value.items() if each) or "0"
        if not is_own_score(score):
            shown[name] = str(value)
    error = sample.error.message if sample.error else ""
    if error.startswith(("CancelledError", "Cancelled")):
        error = "cancelled"
    elif sample.error and "/tiktoken/" in sample.error.traceback:
        # Inspect counts tokens where a model reports no usage, also for mockllm
        error = f"tiktoken has no file (set TIKTOKEN_CACHE_DIR, or report `usage`): {error}"
    return Transcript(
        task=task,
        sample=str(sample.id),
        epoch=sample.epoch,
        uuid=sample.uuid or "",
        scores=shown,
        error=error,
        calls=tuple(
            (TranscriptAction(event.action), event.cmd or event.file or "")
            for event in events
            if event.event == "sandbox"
        ),
        tools=tuple(_tools(events)),
        not_run=tuple(_not_run_by_scorers(events)),
        lowered=worst([*found, Verdict.CONTAINED]),
        notes=tuple(str(metadata[NOTE]) for metadata in score_metadata if NOTE in metadata),
        judged_by=str(judged.get("run_id", "")),
        judged_as=str(judged.get("verdict", "")),
    )


def is_own_score(score: Score) -> bool:
    return OWN_SCORE in (score.metadata or {})


def _all_events(sample: EvalSample, run_id: str) -> Iterator[Event]:
    for attempt in sample.error_retries or []:
        events = attempt.events or []
        probed = [each.data for each in events if each.event == "info" and each.source == SOURCE]
        runs = {data.get("run_id") for data in probed if isinstance(data, dict)}
        if not runs or run_id in runs:  # not an attempt of another run
            yield from events
    yield from sample.events


def _turns(sample: EvalSample, run_id: str) -> Iterator[tuple[str, str, str]]:
    known = set[str | None]()
    for event in _all_events(sample, run_id):
        found = list[tuple[datetime, str, str]]()
        if event.event == "model":
            output = [choice.message for choice in event.output.choices[:1]]
            for time, message in (
                *((event.timestamp, each) for each in event.input),
                *((event.completed or event.timestamp, each) for each in output),
            ):
                # A tool's result has its own event, which says when
                is_new = message.role != "tool" and message.id not in known
                known.add(message.id)
                calls = (message.role == "assistant" and message.tool_calls) or ()
                said = [message.text, *(f"→ {each.function} {each.arguments}" for each in calls)]
                if is_new:
                    found.append((time, message.role, "\n".join(filter(None, said))))
        elif event.event == "tool":
            result = event.error.message if event.error else str(event.result)
            found.append((event.completed or event.timestamp, f"tool {event.function}", result))
        for time, who, text in found:
            yield time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"), who, text


def _tools(events: Sequence[Event]) -> Iterator[ToolCall]:
    # A call reached a cell when a sandbox operation happened inside its span.
    parents = {event.id: event.parent_id for event in events if event.event == "span_begin"}
    reached: set[str] = set()
    for event in events:
        span = event.span_id if event.event == "sandbox" else None
        while span is not None and span not in reached:
            reached.add(span)
            span = parents.get(span)
    spans: dict[str, deque[str]] = {}
    for event in events:
        # A call's event is made before its span, and written right after: it names the span around.
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
            if extra_fields(event.config.extra_body):  # asked of a model's provider
                yield ToolCall(name=EXTRA_BODY_TOOL, outside=Outside.EXTRA_BODY)
            messages = [choice.message.content for choice in event.output.choices]
            lists = (content for content in messages if isinstance(content, list))
            for use in (each for each in chain(*lists) if each.type == "tool_use"):
                # Of an MCP server the policy names the server, of others the tool that was offered.
                is_mcp = use.tool_type == "mcp_call"
                name = (use.context or use.name) if is_mcp else use.tool_type
                outside = HOSTED_USE.get(use.tool_type, Outside.HOSTED)
                yield ToolCall(name=name, outside=outside)


def _not_run_by_scorers(events: Sequence[Event]) -> Iterator[str]:
    scorers = set[str | None]()
    for event in events:
        if event.event == "span_begin" and (event.name == "scorers" or event.parent_id in scorers):
            scorers.add(event.id)
        # A shell's statuses for a program that is missing, or is none.
        elif event.event == "sandbox" and event.span_id in scorers and event.result in {126, 127}:
            missing = _MISSING.search((event.output or "")[:_MAX_SEARCHED_CHARS])
            yield missing[1] if missing else (event.cmd or "").partition(" ")[0]


FINDINGS: Final = "findings.json"  # the findings in a run directory, when it was sealed


def own_evidence(run: RunDirectory) -> Evidence:
    key = run.recorder.key.fingerprint
    return _evidence(run.path, check_ledger(run), (), key, is_remote=True)


def put_on_record(run: RunDirectory, findings: RunFindings, dropped: Sequence[str] = ()) -> None:
    details: dict[ReasonCode, str] = {each.code: each.detail for each in findings.problems}
    more: dict[str, JsonValue] = {"verdict": findings.verdict.value}
    if ReasonCode.VERDICTS_NOT_IN_LOG in details:
        more["verdicts_not_in_log"] = details[ReasonCode.VERDICTS_NOT_IN_LOG]
    refused = details.get(ReasonCode.RUN_REFUSED)
    with breach_stands(findings.verdict, hint=f"see {run.path}"):
        run.write_json(FINDINGS, {**collect(findings), "not_in_metrics": list(dropped)})
        run.finish(findings.outcome, exit_code=findings.exit_code, error=refused, **more)


def check_ledger(run: RunDirectory) -> tuple[Status, str]:
    key = run.recorder.key.fingerprint
    try:
        result = verify(run.path, expected_key=key, expected_run=run.run_id)
    except (OSError, LedgerError) as error:
        return Status.BAD, str(error)
    # This process's own record is unfinished until it is sealed, which is no fault.
    if result.problem is None and result.status is Status.UNFINISHED and not run.is_sealed:
        return Status.OWN, ""
    return _state(result)


def stored_evidence(
    path: Path,
    *,
    logs: Sequence[str] = (),
    expected_key: str | None = None,
    expected_run: str | None = None,
    timelines: Timelines | None = None,
    result: Verification | None = None,
) -> Evidence:
    """Return the evidence of any run directory. Raises `OSError`.

    `logs`: where Inspect's logs are now; default: as recorded. `expected_key`: the fingerprint that
    must have signed; without it the ledger counts as bad. `timelines` take all events and messages.
    `result`: of `verify` with these, if that was done.
    """
    result = result or verify(path, expected_key=expected_key, expected_run=expected_run)
    state, problem = _state(result)
    if state in {Status.VERIFIED, Status.PARTIAL} and not result.key_checked:
        state = Status.BAD
        problem = f"signed by {result.key}, which was compared with no known key"
    found = _evidence(path, (state, problem), logs, expected_key, timelines, is_remote=False)
    if any(name.startswith(f"{INSPECT_LOGS}/") for name in result.files_left_out):
        gone = LogRecord(location=INSPECT_LOGS, missing=True)  # whichever samples it had
        found = replace(found, logs=[*(log for log in found.logs if not log.missing), gone])
    return replace(found, verification=result)


def _state(result: Verification) -> tuple[Status, str]:
    is_whole = result.status is Status.VERIFIED
    why = str(result.problem) if result.problem else "; ".join(() if is_whole else result.warnings)
    return result.status, why


def _evidence(
    path: Path,
    ledger: tuple[Status, str],
    logs: Sequence[str],
    key: str | None,
    timelines: Timelines | None = None,
    *,
    is_remote: bool,
) -> Evidence:
    record, cells, signals = RunRecord(), CellGatherer(), SignalGatherer()
    ranges, left = RangeGatherer(), LeftGatherer()
    for line in _readable(path):
        try:
            for each in (record, cells, ranges, left, signals):
                each.take(line)
        except _NOT_UNDERSTOOD as error:
            if ledger[0] is not Status.BAD:
                why = f"event {line.seq} can't be understood: {type(error).__name__}"
                ledger = Status.BAD, why
        if timelines is not None:
            timelines.take(line)
    read = partial(read_log, run_id=record.run_id, timelines=timelines)
    if record.kind != EVALUATION:
        # An address in the record is not fetched offline: whoever wrote the record chose it.
        found = [
            read(location)
            if is_remote or logs or "://" not in location or location.startswith("file://")
            else LogRecord(location=location, problem="it is not on this host; give it with --log")
            for location in logs or record.logs
        ]
    elif places := logs_in(path / INSPECT_LOGS):
        found = [
            replace(read(place), location=f"{INSPECT_LOGS}/{Path(place).name}") for place in places
        ]
    else:
        has_samples = any(cell.sample for cell in cells.values())
        found = [LogRecord(location=INSPECT_LOGS, missing=True)] if has_samples else []
    return Evidence(
        logs=found,
        begun_elsewhere=_begun_elsewhere(path, record, found, key),
        cells=cells,
        ranges=ranges,
        left=left,
        signals=signals,
        run=record,
        ledger=ledger[0],
        ledger_problem=ledger[1],
    )


def _begun_elsewhere(
    path: Path, record: RunRecord, logs: Sequence[LogRecord], key: str | None
) -> dict[str, frozenset[str]]:
    if record.kind == EVALUATION:
        return {}
    named = {each.judged_by for log in logs for each in log.transcripts} - {record.run_id}
    begun: dict[str, frozenset[str]] = {}
    runs = path.parent.iterdir() if any(named) else ()
    for run in (each for each in runs if each.name in named and each.is_dir()):
        with suppress(OSError, LedgerError, *_NOT_UNDERSTOOD):  # a neighbour's must verify, too
            if verify(run, expected_key=key, expected_run=run.name).problem is None:
                cells = gather_cells(_readable(run)).values()
                begun[run.name] = frozenset(cell.uuid for cell in cells if cell.uuid)
    return begun


def _readable(path: Path) -> Iterator[Line]:
    """Yield the events before the first unreadable one."""
    with suppress(OSError, LedgerError):
        yield from read_events(path)
