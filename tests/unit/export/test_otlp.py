"""Traces of runs with several samples at once."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra `otel` is not installed")
from opentelemetry.trace import StatusCode
from tests.unit.report.stories import line, taken

from belljar.events import Event, JsonValue, Kind
from belljar.export.otlp import Spans, follow
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.schema import Line

REQUEST: dict[str, Any] = {"reason": "", "bytes": 0, "stand_in": "site", "method": "GET"}
ANSWER: dict[str, Any] = {"stand_in": "site", "bytes": 1, "duration_ms": 1.0, "cell": "default"}


def story() -> list[Line]:
    """Two samples, each with a range, whose exchanges are numbered alike; then a refusal."""
    found = [line(Kind.RUN_STARTED, "x", run_id="R", kind="run", argv=[], key="0" * 64, belljar="")]
    planned: dict[str, Any] = {"policy_sha256": "", "tier": "gvisor", "emulated": False}
    for at in ("1", "2"):
        data = {**planned, "layers": [], "range": f"r{at}", "name": "default"}
        found.append(line(Kind.CELL_PLANNED, f"c{at}", **data))
        found.append(line(Kind.SAMPLE_STARTED, f"c{at}", sample=at))
    for at, verdict, number in (("1", "allowed", 1), ("2", "allowed", 1), ("1", "refused", 2)):
        data = {**REQUEST, "cell": "default", "exchange": number, "verdict": verdict}
        found.append(line(Kind.NETWORK_HTTP, None, **{**data, "url": at, "range": f"r{at}"}))
    for at, status in (("1", 201), ("2", 202)):
        data = {**ANSWER, "exchange": 1, "status": status, "range": f"r{at}"}
        found.append(line(Kind.NETWORK_HTTP_ANSWERED, None, **data))
    return [replace(each, seq=seq) for seq, each in enumerate(found)]


def test_exchanges_of_two_samples_stay_apart() -> None:
    """Each sample's request is its child and has its own answer; a refused one ends at once."""
    found: list[Any] = taken(story(), Spans("R")).finished()
    samples = {each.context.span_id: each.name for each in found if each.name != "network.http"}
    requests = [each for each in found if each.name == "network.http"]
    known: dict[tuple[str, Any], list[Any]] = {}
    for each in requests:
        assert each.parent is not None
        assert each.attributes is not None
        key = samples[each.parent.span_id], each.attributes["url.full"]
        known.setdefault(key, []).append(each.attributes.get("http.response.status_code"))
    assert known == {("sample 1", "1"): [None, 201], ("sample 2", "2"): [202]}
    refused = next(each for each in requests if each.status.status_code is StatusCode.ERROR)
    assert refused.end_time == refused.start_time


def test_what_is_refused_is_kept_and_sent_again_in_order(tmp_path: Path) -> None:
    """A collector that is away for a while loses nothing, and nothing is held but one batch."""
    got: list[str] = []
    refusals = iter([False, False, True])
    with RunDirectory(tmp_path, "exec", ["x"]) as run:

        def export(found: object) -> bool:
            assert isinstance(found, list)
            if next(refusals, True):
                got.extend(span.name for span in found)
                return True
            return False

        result: list[tuple[int, int]] = []
        thread = threading.Thread(
            target=lambda: result.append(follow(run.path, export, grace_s=20))
        )
        thread.start()
        for op in range(1, 4):
            data: dict[str, JsonValue] = {"op": op, "path": "/x"}
            run.recorder.record(Event(kind=Kind.FILE_READ_STARTED, cell_id="c", data=data))
            end: dict[str, JsonValue] = {"op": op, "bytes": 1}
            run.recorder.record(Event(kind=Kind.FILE_READ_COMPLETED, cell_id="c", data=end))
    thread.join(60)
    assert result == [(4, 0)]
    assert got == ["file.read", "file.read", "file.read", "run"]
