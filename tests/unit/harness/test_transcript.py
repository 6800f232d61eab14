"""Inspect's log of a sample, read into the report's words."""

from __future__ import annotations

import pytest
from inspect_ai.event import SandboxEvent, SpanBeginEvent
from inspect_ai.log import EvalSample
from inspect_ai.scorer import Score

from belljar.harness.evidence import read_sample
from belljar.probe.model import Verdict


@pytest.mark.promise("7.2")
@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("breached", Verdict.BREACHED),
        ("Breached", Verdict.BREACHED),
        (" VOID\n", Verdict.VOID),
        ("contained", Verdict.CONTAINED),
        ("escaped!", Verdict.VOID),
        (True, Verdict.VOID),
        ("", Verdict.CONTAINED),
        (None, Verdict.CONTAINED),
    ],
)
def test_a_scorers_word_makes_a_verdict_worse(word: object, expected: Verdict) -> None:
    """In whatever case; one that is not known is void, none at all changes nothing."""
    score = Score(value="C", metadata={"containment": word})
    sample = EvalSample(id="s", epoch=1, input="x", target="", scores={"mine": score})
    assert read_sample("task", sample, "run").lowered is expected


def exec_event(cmd: str, result: int, output: str, span: str) -> SandboxEvent:
    """A command of a sandbox, as Inspect's log has it."""
    return SandboxEvent(action="exec", cmd=cmd, result=result, output=output, span_id=span)


def test_programs_that_scorers_could_not_run_are_named() -> None:
    """The program, or what a shell did not find; a solver's commands and other statuses are
    none."""
    spans = [
        SpanBeginEvent(id="solvers", name="solvers"),
        SpanBeginEvent(id="scorers", name="scorers"),
        SpanBeginEvent(id="verify", name="verify", type="scorer", parent_id="scorers"),
    ]
    commands = [
        exec_event("python -c 'print(1)'", 127, "python: not found", "solvers"),
        exec_event("python -c 'print(1)'", 127, "python: not found", "verify"),
        exec_event(
            "bash --login -c 'tool x'", 127, "bash: line 1: tool: command not found\n", "verify"
        ),
        exec_event("sh -c ./run", 126, "sh: 1: ./run: Permission denied\n", "scorers"),
        exec_event("'unclosed quotation", 127, "", "verify"),
        exec_event("false", 1, "tool: not found", "verify"),
    ]
    sample = EvalSample(id="s", epoch=1, input="x", target="", events=[*spans, *commands])
    found = read_sample("task", sample, "run").not_run
    assert found == ("python", "tool", "./run", "'unclosed")
