"""The end of `belljar run` as a person sees it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.cli.findings import dropped, remarks, show_findings, table
from belljar.harness.evaluate import RunOutcome
from belljar.report.cells import CellFindings
from belljar.report.collect import collect
from belljar.report.remarks import problems_and_errors
from belljar.report.samples import RunFindings, Transcript
from belljar.report.verdict import Evidence, LogRecord, LogStatus, RunRecord, judge

HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]x[/]\u202egnp.exe"


def findings(text: str, *, emulated: bool = True) -> RunFindings:
    """A run whose every word may be the guest's."""
    cell = CellFindings(
        cell_id="c-1", uuid="u", destroyed=True, clean=True, emulated=emulated, sample=text
    )
    transcript = Transcript(
        task=text, sample=text, epoch=2, uuid="u", scores={text: text}, error=text, notes=(text,)
    )
    about = {"task": text, "status": LogStatus.ERROR, "error": text, "problem": ""}
    logs = [LogRecord(transcripts=(transcript,), **about)]  # type: ignore[arg-type]
    cells = {"c-1": cell, "c-2": CellFindings(cell_id="c-2", sample=text, survivors=[text])}
    run = RunRecord(run_id=text, ended=True, errors=[text], refusal=text)
    return judge(Evidence(logs=logs, cells=cells, run=run))


def test_nothing_reaches_the_terminal_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """No escape sequence, no markup, no direction mark of a sample (also of one that the metrics do
    not count), a score, an error or a note acts on the reader's terminal."""
    found, path = findings(HOSTILE), Path("/runs/r")
    outcome = RunOutcome(
        findings=found, dropped=[f"{HOSTILE} #1"], run_id="r", path=path, exit_code=2
    )
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
        "\x1b" not in line for line in (*remarks(collect(found)), *problems_and_errors(found))
    )


@pytest.mark.promise("7.2")
def test_a_sample_without_a_cell(capsys: pytest.CaptureFixture[str]) -> None:
    """As when its range's target does not get healthy: there is no destruction to prove. A sample
    that no log has is a row."""
    failed = Transcript(
        task="t", sample="s", epoch=1, uuid="u", error="the target cell db does not serve"
    )
    begun = CellFindings(cell_id="c-1", destroyed=True, clean=True)
    left = CellFindings(cell_id="c-2", uuid="other", sample="gone", destroyed=True, clean=True)
    log = LogRecord(transcripts=(failed,))
    found = judge(Evidence(logs=[log], cells={"c-1": begun}, run=RunRecord(ended=True)))
    assert found.exit_code == 1
    found = judge(
        Evidence(logs=[log], cells={"c-1": begun, "c-2": left}, run=RunRecord(ended=True))
    )
    assert found.exit_code == 2
    show_findings(found, Path("/runs/r"))
    shown = capsys.readouterr().out
    assert "NOT PROVEN" not in shown
    assert "cell c-1 " in shown
    assert "sample gone is in no log" in shown
    assert [row.transcript.sample for row in found.rows] == ["s", "gone"]
