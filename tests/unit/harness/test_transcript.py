"""Inspect's log of a sample, read into the report's words."""

from __future__ import annotations

import pytest
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
