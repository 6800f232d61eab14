"""The evidence of a run directory: read, judged, and shown at the end of `belljar run`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspect_ai.event import Event, SandboxEvent, SpanBeginEvent
from inspect_ai.log import EvalSample
from inspect_ai.scorer import Score
from tests.unit.harness.runs import one_sample

from belljar.cli.run import dropped, lines_of, show_findings, table
from belljar.differences import Difference, DifferenceKind
from belljar.harness.evaluate import RunOutcome
from belljar.harness.evidence import FINDINGS, read_sample, stored_evidence
from belljar.ledger.keys import local_fingerprint
from belljar.probe.model import Verdict
from belljar.report.cells import CellFindings
from belljar.report.reasons import ReasonCode as Code
from belljar.report.samples import Row, RunFindings, Transcript, collect, problems_and_errors
from belljar.report.verdict import Evidence, LogRecord, LogStatus, RunRecord, judge


@pytest.fixture
def outcome(tmp_path: Path) -> RunOutcome:
    return one_sample(tmp_path)


def codes(outcome: RunOutcome, *, key: str | None = None) -> set[Code]:
    key = key or local_fingerprint(outcome.path.parents[1])
    findings = judge(stored_evidence(outcome.path, expected_key=key))
    assert bool(findings.exit_code) == bool(findings.problems)
    return {
        reason.code
        for reason in (*findings.problems, *(r for row in findings.rows for r in row.reasons))
    }


@pytest.mark.promise("7.1")
def test_what_is_missing_or_changed_is_found(outcome: RunOutcome, tmp_path: Path) -> None:
    """Without a key to compare with, or with another, the record proves nothing either."""
    kept = shutil.copytree(outcome.path, tmp_path / "kept")
    assert not codes(outcome)
    (outcome.path / FINDINGS).write_text("{}")
    assert Code.LEDGER_BAD in codes(outcome)
    shutil.rmtree(outcome.path)
    shutil.copytree(kept, outcome.path)
    problems = judge(stored_evidence(outcome.path)).problems
    assert {reason.code for reason in problems} == {Code.LEDGER_BAD}
    assert Code.LEDGER_BAD in codes(outcome, key="0" * 64)


@pytest.mark.promise("7.2")
def test_a_scorers_word_makes_a_verdict_worse() -> None:
    """In whatever case; one that is not known is void, none at all changes nothing."""
    said: dict[Verdict, tuple[Any, ...]] = {
        Verdict.BREACHED: ("breached", "Breached"),
        Verdict.VOID: (" VOID\n", "escaped!", True, False, 0, [], {}),
        Verdict.CONTAINED: ("contained", "", None),
    }
    for expected, words in said.items():
        for word in words:
            score = Score(value="C", metadata={"containment": word})
            sample = EvalSample(id="s", epoch=1, input="x", target="", scores={"mine": score})
            assert read_sample("task", sample, "run").lowered is expected, word


def test_programs_that_scorers_could_not_run_stand_beside_the_score() -> None:
    """By name and count, where another image stands for the task's: the score may be wrong."""
    ran = [
        ("python -c 1", 127, "python: not found\n", "solvers"),
        *[("python -c 1", 127, "python: not found\n", "verify")] * 14,
        ("bash --login -c 'jq x'", 127, "bash: line 1: jq: command not found\n", "scorers"),
        ("sh -c ./run", 126, "sh: 1: ./run: Permission denied\n", "verify"),
        ("quiet x", 127, "", "verify"),
        ("false", 1, "tool: not found", "verify"),
    ]
    events: list[Event] = [
        SpanBeginEvent(id="scorers", name="scorers"),
        SpanBeginEvent(id="verify", name="verify", type="scorer", parent_id="scorers"),
        *[SandboxEvent(action="exec", cmd=c, result=r, output=o, span_id=s) for c, r, o, s in ran],
    ]
    sample = EvalSample(id="s", epoch=1, input="x", target="", events=events)
    transcript = read_sample("task", sample, "run")
    assert transcript.not_run == ("python",) * 14 + ("jq", "./run", "quiet")
    for kind, is_told in ((DifferenceKind.CHANGED, True), (DifferenceKind.DROPPED, False)):
        cell = CellFindings(cell_id="c-1", differences=(Difference(kind=kind, key="image"),))
        row = Row(transcript=transcript, reasons=(), cells=(cell,))
        _, shown = table(collect(RunFindings(rows=(row,))))
        assert ("a scorer's `python` was not found or can't run, 14 time(s)" in shown) is is_told


HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\u202egnp.exe"


def findings(text: str) -> RunFindings:
    cell = CellFindings(
        cell_id="c-1", uuid="u", destroyed=True, clean=True, emulated=True, sample=text
    )
    transcript = Transcript(
        task=text, sample=text, epoch=2, uuid="u", scores={text: text}, error=text, notes=(text,)
    )
    about: dict[str, Any] = {"task": text, "status": LogStatus.ERROR, "error": text, "problem": ""}
    logs = [LogRecord(transcripts=(transcript,), **about)]
    cells = {"c-1": cell, "c-2": CellFindings(cell_id="c-2", sample=text, survivors=[text])}
    run = RunRecord(run_id=text, ended=True, errors=[text], refusal=text)
    return judge(Evidence(logs=logs, cells=cells, run=run))


def test_nothing_reaches_the_terminal_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """No escape sequence, markup or direction mark of a sample acts on the reader's terminal."""
    found, path = findings(HOSTILE), Path("/runs/r")
    outcome = RunOutcome(findings=found, dropped=[f"{HOSTILE} #1"], path=path)
    show_findings(found, path, dropped(outcome))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "[bold red]" in shown
    assert "/runs/r" in shown


@given(st.text(max_size=60))
def test_any_text_can_be_shown(text: str) -> None:
    """The table never fails on what a task says."""
    found = findings(text)
    assert len(table(collect(found))) == 2  # its head is one
    assert all(
        "\x1b" not in line for line in (*lines_of(collect(found)), *problems_and_errors(found))
    )
