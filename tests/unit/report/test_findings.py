"""From ledger and transcript to rows and a verdict."""

# ruff: noqa: ANN401 - JSON values

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.report import stories
from tests.unit.report.stories import SAMPLE, findings_of, planned
from tests.unit.report.stories import probing as probed

from belljar.events import Kind
from belljar.ledger.schema import BodyRef, Line
from belljar.probe.model import Verdict
from belljar.report.cells import (
    CellFindings,
    ReportedOperation,
    TranscriptAction,
    gather_cells,
    reconcile,
)
from belljar.report.reasons import ReasonCode
from belljar.report.samples import RunFindings, collect


def line(kind: Kind, cell: str = "c1", /, **data: Any) -> Line:
    return stories.line(kind, cell, **data)


STDIN = BodyRef(name="stdin", sha256=None, kept_bytes=0, total_bytes=9)
SIZES: dict[str, Any] = {
    "stderr_bytes": 0,
    "stdout_dropped_bytes": 0,
    "stderr_dropped_bytes": 0,
    "duration_ms": 1.0,
}


STORY = [
    planned("c1", emulated=True),
    line(Kind.SAMPLE_STARTED, sample="s", epoch=2, task="t", uuid="u1"),
    *probed("start"),
    line(Kind.EXEC_STARTED, op=1, argv=["echo", "a b"], user="u", pty=False),
    replace(
        line(Kind.EXEC_COMPLETED, op=1, status="exited", code=0, stdout_bytes=4, **SIZES),
        bodies=(STDIN,),
    ),
    line(Kind.FILE_WRITE_STARTED, op=2, path="f", bytes=5),
    line(Kind.FILE_WRITE_COMPLETED, op=2),
    line(Kind.EXEC_STARTED, op=3, argv=["sleep", "9"], user="u", pty=False),
    line(Kind.EXEC_TIMED_OUT, op=3, timeout_s=1.0, stdout_bytes=3, **SIZES),
    line(Kind.LIMIT_HIT, limit="exec_timeout"),
    line(Kind.EXEC_STARTED, op=4, argv=["bash"], user="u", pty=True),
    line(Kind.EXEC_FAILED, op=4, reason="left"),
    *probed("end"),
    line(Kind.CELL_DESTROYED, clean=True, survivors=[], duration_ms=1.0),
    line(Kind.SAMPLE_FINISHED, sample="s", epoch=2, outcome="completed"),
]


def test_what_the_transcript_hides() -> None:
    """Calls that raised, and what has no event there; a person's terminal is no call."""
    (cell,) = gather_cells(STORY).values()
    known, unknown = (TranscriptAction.EXEC, "echo 'a b'"), (TranscriptAction.EXEC, "elsewhere")
    hidden, unfounded = reconcile([known, unknown, unknown], [cell])
    assert {operation.what for operation in hidden} == {"f", "sleep 9"}
    assert unfounded == 2


def test_commands_of_belljar_itself_are_none_of_the_sample() -> None:
    """A service's program and its health checks run in a probed cell before the sample begins."""
    ready = [
        *probed("start"),
        line(Kind.EXEC_STARTED, op=1, argv=["serve"], user="u", pty=False),
        line(Kind.EXEC_STARTED, op=2, argv=["curl", "localhost"], user="u", pty=False),
        line(Kind.EXEC_COMPLETED, op=2, status="exited", code=0, stdout_bytes=4, **SIZES),
        line(Kind.SAMPLE_STARTED, sample="s", epoch=1, task="t", uuid="u1"),
        line(Kind.EXEC_STARTED, op=3, argv=["attack"], user="u", pty=False),
        line(Kind.EXEC_COMPLETED, op=3, status="exited", code=0, stdout_bytes=5, **SIZES),
    ]
    (cell,) = gather_cells(ready).values()
    assert (cell.commands, cell.bytes_out) == (1, 5)
    assert [operation.what for operation in reconcile([], [cell])[0]] == ["attack"]


def test_of_two_equal_calls_the_one_that_returned_is_in_the_transcript() -> None:
    """The first timed out, the second did not: one is hidden, and it is the first."""
    cell = CellFindings(cell_id="c")
    same: dict[str, Any] = {"action": TranscriptAction.EXEC, "what": "x"}
    for op, outcome in ((1, Kind.EXEC_TIMED_OUT), (2, Kind.EXEC_COMPLETED)):
        cell.operations[op] = ReportedOperation(op=op, outcome=outcome, **same)
    hidden, unfounded = reconcile([(TranscriptAction.EXEC, "x")], [cell])
    assert [operation.op for operation in hidden] == [1]
    assert not unfounded


def judged(*lines: Line, error: str = "") -> RunFindings:
    return findings_of([replace(SAMPLE, error=error)], lines)


@pytest.mark.promise("6.1")
@pytest.mark.parametrize(
    ("end", "code", "detail"),
    [
        ({"survivors": ["process 7"]}, ReasonCode.CELL_SURVIVORS, "process 7"),
        (
            {"survivors": [], "not_checked": ["mounts: Permission denied"]},
            ReasonCode.CELL_DESTRUCTION_UNPROVEN,
            "mounts: Permission denied",
        ),
    ],
)
def test_a_destruction_that_is_not_proven_means_void(
    end: dict[str, Any], code: ReasonCode, detail: str
) -> None:
    """What it left, or what could not be looked for; which is worse than an error."""
    destroyed = line(Kind.CELL_DESTROYED, clean=False, duration_ms=1.0, **end)
    findings = judged(*STORY[:-2], destroyed, error="too")
    assert (findings.verdict, findings.exit_code) == (Verdict.VOID, 2)
    assert [(each.code, each.detail) for each in findings.rows[0].reasons] == [(code, detail)]


BREACH: dict[str, Any] = {
    "verdict": "breached",
    "findings": [{"name": "files.canary", "verdict": "breached", "seen": "it was read"}],
}


@pytest.mark.promise("7.3")
@pytest.mark.parametrize("phase", ["start", "end"])
@pytest.mark.parametrize(
    ("lines", "verdict", "reason"),
    [
        (lambda _: [], Verdict.VOID, "it was not probed"),
        (lambda phase: probed(phase)[:1], Verdict.VOID, "cut off"),
        (lambda phase: probed(phase, verdict="void", problem="dead"), Verdict.VOID, "dead"),
        (lambda phase: probed(phase)[1:], Verdict.VOID, "void"),
        (lambda phase: probed(phase, **BREACH), Verdict.BREACHED, "files.canary: it was read"),
        (lambda phase: probed(phase) + probed("", **BREACH), Verdict.BREACHED, "files.canary"),
    ],
)
def test_the_worst_of_both_ends_decides(
    phase: str, lines: Callable[[str], list[Line]], verdict: Verdict, reason: str
) -> None:
    """Missing, cut off, void, unstarted or breached at either end: verdict, reason, exit code 2."""
    rest = [each for each in STORY if each.data.get("phase") != phase]
    findings = judged(*rest[:-2], *lines(phase), *rest[-2:])
    assert (findings.verdict, findings.exit_code) == (verdict, 2)
    assert any(reason in str(said) for said in findings.rows[0].reasons)
    assert verdict.value in findings.rows[0].probed or verdict is Verdict.BREACHED


def test_a_breach_in_a_stray_cell_is_the_runs() -> None:
    """A cell whose sample is not in the log can't hide a breach."""
    stray = findings_of([], [*STORY[:2], *probed("start", **BREACH), *STORY[-2:]])
    assert (stray.verdict, stray.exit_code) == (Verdict.BREACHED, 2)


def test_a_cell_made_ahead_that_nobody_took_is_no_stray() -> None:
    """It counts only by an unclean end, a way out, or something done in it."""
    made = planned("c9", ahead=True)
    gone = line(Kind.CELL_DESTROYED, "c9", clean=True, survivors=[], duration_ms=1.0)
    left = line(Kind.CELL_DESTROYED, "c9", clean=False, survivors=["a process"], duration_ms=1.0)

    def found(*lines: Line) -> RunFindings:
        return findings_of([SAMPLE], [*STORY, *lines])

    assert found(made, gone).exit_code == found().exit_code
    assert collect(found(made, gone))["stray_cells"] == []
    assert found(made, left).problems
    assert found(made).problems
    taken = found(made, line(Kind.CELL_TAKEN, "c9", waited_ms=1.0, age_ms=1.0), gone)
    assert collect(taken)["stray_cells"] == ["c9"]
