"""Reading the evidence of a run directory: what is found there is what the run itself found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from inspect_ai.log import EvalSample
from inspect_ai.scorer import Score
from tests.unit.harness.runs import one_sample

from belljar.harness.evaluate import RunOutcome
from belljar.harness.evidence import FINDINGS, read_sample, stored_evidence
from belljar.ledger.keys import local_fingerprint
from belljar.probe.model import Verdict
from belljar.report.reasons import ReasonCode as Code
from belljar.report.verdict import judge


@pytest.fixture
def outcome(tmp_path: Path) -> RunOutcome:
    """A run of one sample, sealed."""
    return one_sample(tmp_path)


def codes(outcome: RunOutcome, *, key: str | None = None) -> set[Code]:
    """All causes that are found in its directory now."""
    key = key or local_fingerprint(outcome.path.parents[1])
    findings = judge(stored_evidence(outcome.path, expected_key=key))
    assert bool(findings.exit_code) == bool(findings.problems)
    return {
        reason.code
        for reason in (*findings.problems, *(r for row in findings.rows for r in row.reasons))
    }


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def log_of(path: Path) -> Path:
    """Inspect's log of the run."""
    (log,) = (path / "inspect").iterdir()
    return log


@pytest.mark.promise("7.1")
def test_what_is_missing_or_changed_is_found(outcome: RunOutcome, tmp_path: Path) -> None:
    """A log that is gone or cut short, a ledger that is, a file that was changed: never contained,
    each by its code. Without a key to compare with, or with another, the record proves nothing."""
    spoils: tuple[tuple[Callable[[Path], object], set[Code]], ...] = (
        (lambda path: log_of(path).unlink(), {Code.LOG_MISSING, Code.SAMPLE_NOT_IN_LOG}),
        (lambda path: cut(log_of(path)), {Code.LOG_UNREADABLE, Code.SAMPLE_NOT_IN_LOG}),
        (lambda path: cut(path / "ledger.jsonl"), {Code.LEDGER_BAD}),
        (lambda path: (path / FINDINGS).write_text("{}"), {Code.LEDGER_BAD}),
    )
    kept = shutil.copytree(outcome.path, tmp_path / "kept")
    for spoil, expected in spoils:
        shutil.rmtree(outcome.path)
        shutil.copytree(kept, outcome.path)
        assert not codes(outcome)
        spoil(outcome.path)
        assert {*expected, Code.LEDGER_BAD} <= codes(outcome)
    shutil.rmtree(outcome.path)
    shutil.copytree(kept, outcome.path)
    problems = judge(stored_evidence(outcome.path)).problems
    assert {reason.code for reason in problems} == {Code.LEDGER_BAD}
    assert Code.LEDGER_BAD in codes(outcome, key="0" * 64)


@pytest.mark.promise("7.2")
def test_a_scorers_word_makes_a_verdict_worse() -> None:
    """In whatever case; one that is not known is void, none at all changes nothing."""
    for expected, words in {
        Verdict.BREACHED: ("breached", "Breached"),
        Verdict.VOID: (" VOID\n", "escaped!", True),
        Verdict.CONTAINED: ("contained", "", None),
    }.items():
        for word in words:
            score = Score(value="C", metadata={"containment": word})
            sample = EvalSample(id="s", epoch=1, input="x", target="", scores={"mine": score})
            assert read_sample("task", sample, "run").lowered is expected, word
