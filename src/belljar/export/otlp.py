"""Traces for OpenTelemetry: run → sample → command, file, request, model request.

Attributes follow the semantic conventions 1.37; what they have no name for is `belljar.*`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from belljar.events import Kind
from belljar.ledger.files import is_being_written
from belljar.ledger.listing import Tail
from belljar.ledger.schema import Line
from belljar.package import __version__
from belljar.report.timeline import place_of

BATCH_SPANS: Final = 512  # as the SDK's own batch processor
POLL_INTERVAL_S: Final = 0.5
# Attributes' names change between versions of the semantic conventions.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.37.0"
_STARTS: Final = (
    *(Kind.EXEC_STARTED, Kind.FILE_READ_STARTED, Kind.FILE_WRITE_STARTED, Kind.FILES_STARTED),
    *(Kind.CONNECT_STARTED, Kind.MODEL_REQUEST_STARTED, Kind.NETWORK_HTTP),
)
_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "exec": {"argv": "process.command_args", "code": "process.exit.code", "user": "process.owner"},
    "model.request": {
        "prompt_tokens": "gen_ai.usage.input_tokens",
        "completion_tokens": "gen_ai.usage.output_tokens",
    },
    "network.http": {
        "method": "http.request.method",
        "url": "url.full",
        "status": "http.response.status_code",
    },
}
# Requests to a model of other paths, as for a list of models, are no GenAI.
_CHATS: Final = ("/v1/chat/completions", "/v1/responses", "/v1/messages")


def follow(
    run_dir: Path, export: Callable[[Sequence[ReadableSpan]], bool], *, grace_s: float
) -> tuple[int, int]:
    """Export a run's spans while it is written; return the counts taken and not.

    The ledger is the queue: refused spans are tried again, and nothing is read meanwhile; after the
    run's end, for `grace_s` at most.
    """
    made, pending, sent, give_up = Spans(run_dir.name), list[ReadableSpan](), 0, float("inf")
    with closing(Tail(run_dir)) as tail:
        while True:
            # Before its lines are read: what is written between the two is read the next time
            is_over = not is_being_written(run_dir)
            if is_over and give_up == float("inf"):
                give_up = time.monotonic() + grace_s
            is_late = time.monotonic() > give_up
            lines = tail.lines(BATCH_SPANS) if is_late or len(pending) < BATCH_SPANS else []
            for line in lines:
                made.take(line)
            pending += made.closed()
            if is_late and lines:
                continue  # counts what is lost
            if is_over and not lines and len(pending) < BATCH_SPANS:
                pending += made.finished()
            if is_late or (is_over and not lines and not pending):
                return sent, len(pending)
            if pending and export(pending[:BATCH_SPANS]):
                sent += len(pending[:BATCH_SPANS])
                del pending[:BATCH_SPANS]
            elif not lines:
                time.sleep(POLL_INTERVAL_S)


class Spans:
    def __init__(self, run_id: str) -> None:
        self._trace = int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:16], "big")
        self._resource = Resource(
            {"service.name": "belljar", "service.version": __version__, "belljar.run": run_id},
            SCHEMA_URL,
        )
        self._open: dict[tuple[object, ...], dict[str, Any]] = {}
        self._samples: dict[str, SpanContext] = {}
        self._ranges: dict[str, str] = {}
        self._run: SpanContext | None = None
        self._done: list[ReadableSpan] = []
        self._last_ns = 0

    def take(self, line: Line) -> None:
        self._last_ns = int(datetime.fromisoformat(line.time).timestamp() * 1e6) * 1000
        # A range's exchanges are numbered from 1, and belong to the sample of its cells
        place = place_of(line)
        key: tuple[object, ...]
        if line.kind is Kind.RUN_STARTED:
            self._run = self._begin(("run",), "run", line, None)
        elif line.kind is Kind.CELL_PLANNED:
            self._ranges[place] = str(line.data.get("range") or "")
        elif line.kind is Kind.SAMPLE_STARTED:
            key, name = ("sample", place), f"sample {line.data['sample']}"
            context = self._samples.get(self._ranges.get(place) or place)
            context = context or self._begin(key, name, line, self._run)
            self._samples[place] = context
            if self._ranges.get(place):
                self._samples[self._ranges[place]] = context
        elif line.kind in _STARTS:
            name = line.kind.value.removesuffix(".started")
            key = (name, place, _number(line))
            self._begin(key, name, line, self._samples.get(place, self._run))
            if line.data.get("verdict", "allowed") != "allowed":  # nothing answers it
                self._close(self._open.pop(key), Status(StatusCode.ERROR))
        else:
            self._end(line, place)

    def _begin(
        self, key: tuple[object, ...], name: str, line: Line, parent: SpanContext | None
    ) -> SpanContext:
        context = SpanContext(self._trace, line.seq + 1, is_remote=False, trace_flags=TraceFlags(1))
        self._open[key] = {
            "name": name,
            "context": context,
            "parent": parent,
            "start_time": self._last_ns,
            "attributes": _attributes(name, line),
        }
        return context

    def _end(self, line: Line, place: str) -> None:
        subject = line.kind.value.rpartition(".")[0]
        key: tuple[object, ...] = (subject, place, _number(line))
        if line.kind is Kind.RUN_FINISHED:
            key = ("run",)
        elif line.kind is Kind.SAMPLE_FINISHED:
            key = ("sample", place)
        is_end = line.kind.value.endswith((".completed", ".failed", ".timed_out", ".answered"))
        if (is_end or line.kind.value.endswith(".finished")) and key in self._open:
            found = self._open.pop(key)
            found["attributes"] |= _attributes(str(found["name"]), line)
            is_bad = line.kind.value.endswith((".failed", ".timed_out"))
            self._close(found, Status(StatusCode.ERROR if is_bad else StatusCode.UNSET))

    def _close(self, found: dict[str, Any], status: Status) -> None:
        kind = SpanKind.CLIENT if found["name"] == "model.request" else SpanKind.INTERNAL
        scope = InstrumentationScope("belljar", __version__, SCHEMA_URL)
        self._done.append(
            ReadableSpan(
                **found,
                kind=kind,
                status=status,
                resource=self._resource,
                instrumentation_scope=scope,
                end_time=self._last_ns,
            )
        )

    def closed(self) -> list[ReadableSpan]:
        """Return the spans that ended since the last call."""
        done, self._done = self._done, []
        return done

    def finished(self) -> list[ReadableSpan]:
        """Close what is still open, and return all spans."""
        for found in reversed(self._open.values()):
            found["attributes"]["belljar.unfinished"] = True
            self._close(found, Status(StatusCode.UNSET))
        self._open.clear()
        return self.closed()


def _number(line: Line) -> int | None:
    found = line.data.get("op", line.data.get("request", line.data.get("exchange")))
    return found if isinstance(found, int) else None  # no kind's own may have any shape


def _attributes(name: str, line: Line) -> dict[str, Any]:
    known = _NAMES.get(name.partition(" ")[0], {})
    found: dict[str, Any] = {"belljar.trust": line.trust.value}
    if line.cell:
        found["belljar.cell"] = line.cell
    if name == "model.request" and str(line.data.get("path")).partition("?")[0] in _CHATS:
        found |= {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "belljar"}
    for field, value in line.data.items():
        if isinstance(value, str | bool | int | float):
            found[known.get(field, f"belljar.{field}")] = value
        elif isinstance(value, Sequence) and all(isinstance(each, str) for each in value):
            found[known.get(field, f"belljar.{field}")] = tuple(value)
    return found
