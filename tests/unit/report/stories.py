"""Ledgers of a sample in a range, for tests of the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from belljar.events import Actor, Kind, Trust
from belljar.ledger.kinds import SCHEMA_VERSION
from belljar.ledger.schema import Line
from belljar.report.cells import gather_cells
from belljar.report.ranges import RangeFindings, RangeGatherer
from belljar.report.samples import RunFindings, Transcript
from belljar.report.signals import SignalGatherer
from belljar.report.verdict import Evidence, LogRecord, LogStatus, RunRecord, judge

RANGE = "r-0123456789ab"
SAMPLE = Transcript(task="t", sample="s", epoch=1, uuid="u1")
HOSTILE = "\x1b]0;owned\x07[bold]x[/]\u202e\n"
REQUEST: dict[str, Any] = {"cell": "default", "exchange": 1, "stand_in": "shop", "method": "GET"}
REQUEST |= {"url": "http://shop.example/", "verdict": "allowed", "reason": "", "bytes": 0}
FLOW: dict[str, Any] = {"cell": "default", "protocol": "tcp", "address": "10.9.9.9", "port": 22}
FLOW |= {"verdict": "refused", "reason": "address", "bytes": 60, "count": 1}
NAME: dict[str, Any] = {"cell": "default", "type": "A", "longest_label": 4, "entropy": 1.0}
PROBED: dict[str, Any] = {"which": "quick", "user": "", "verdict": "contained", "probes": 3}
PROBED |= {"digest": "0" * 64, "duration_ms": 80.0, "problem": ""}
CONTACT: dict[str, Any] = {"decoy": "aws", "value": "aws/secret_access_key", "decoding": []}
CONTACT |= {"operation": "http.body", "evidence": 7}
ENDED: dict[str, Any] = {"clean": True, "survivors": [], "duration_ms": 1.0}


def line(kind: Kind, cell: str | None = None, /, **data: Any) -> Line:  # noqa: ANN401 - JSON values
    """A ledger line; of the range when it is no cell's."""
    return Line.read(
        {
            "v": SCHEMA_VERSION,
            "seq": 0,
            "prev": "0" * 64,
            "time": "2026-11-20T22:00:00.000000Z",
            "mono_ns": "1",
            "kind": kind,
            "cell": cell,
            "actor": Actor.HARNESS,
            "trust": Trust.HOST_OBSERVED,
            "data": data if cell else {"range": RANGE, **data},
            "bodies": [],
        }
    )


def planned(cell: str, **more: Any) -> Line:  # noqa: ANN401 - JSON values
    plan = {"tier": "microvm", "emulated": False, "policy_sha256": "", "layers": []}
    return line(Kind.CELL_PLANNED, cell, **{**plan, **more})


def probing(phase: str, cell: str = "c1", **said: Any) -> list[Line]:  # noqa: ANN401 - JSON values
    return [
        line(Kind.PROBE_STARTED, cell, which="quick", phase=phase, user=""),
        line(Kind.PROBE_COMPLETED, cell, **{**PROBED, "phase": phase, **said}),
    ]


def story(*lines: Line, **end: Any) -> list[Line]:  # noqa: ANN401 - JSON values
    """A sample in a cell of a range that did this, and the range's end."""
    return [
        line(Kind.RANGE_OPENING, prefix="10.0.0.0/22", directory="2ce5a06e"),
        planned("c1", range=RANGE, name="default"),
        line(Kind.SAMPLE_STARTED, "c1", sample="s", task="t", uuid="u1"),
        *probing("start"),
        *lines,
        *probing("end"),
        line(Kind.CELL_DESTROYED, "c1", **ENDED),
        *([line(Kind.RANGE_DESTROYED, **{**ENDED, **end})] if end.get("destroyed", True) else []),
    ]


Gatherer = TypeVar("Gatherer", bound=Any)


def taken(lines: Iterable[Line], gatherer: Gatherer) -> Gatherer:
    for each in lines:
        gatherer.take(each)
    return gatherer


def ranges_of(lines: Iterable[Line]) -> dict[str, RangeFindings]:
    return taken(lines, RangeGatherer())


def findings_of(
    transcripts: Sequence[Transcript], lines: Sequence[Line], *, error: str = ""
) -> RunFindings:
    status = LogStatus.ERROR if error else LogStatus.SUCCESS
    return judge(
        Evidence(
            logs=[LogRecord(transcripts=tuple(transcripts), status=status, error=error)],
            cells=gather_cells(lines),
            ranges=ranges_of(lines),
            signals=taken(lines, SignalGatherer()),
            run=RunRecord(run_id="R", ended=True),
        )
    )


def judged(lines: list[Line]) -> RunFindings:
    return findings_of([SAMPLE], lines)
