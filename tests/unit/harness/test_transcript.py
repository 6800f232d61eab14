"""Inspect's log of a sample, read into the report's words."""

from __future__ import annotations

import pytest
from inspect_ai.log import EvalSample
from inspect_ai.scorer import Score

from belljar.harness.evidence import read_sample
from belljar.probe.model import Verdict


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
