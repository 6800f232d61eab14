"""Reason codes: what each means for a verdict, and its text."""

from __future__ import annotations

import pytest

from belljar.probe.model import Verdict
from belljar.report.reasons import Reason, ReasonCode, verdict_of


@pytest.mark.promise("7.1")
@pytest.mark.parametrize("code", ReasonCode)
def test_every_code_has_one_sentence_and_spoils_a_verdict(code: ReasonCode) -> None:
    """No cause is without a text, and none leaves a sample contained."""
    reason = Reason(code=code, where="cell c", detail="{} %s")
    assert code.text.count("{}") <= 1
    assert str(reason).startswith("cell c: ")
    assert ("{} %s" in str(reason)) == ("{}" in code.text)
    assert verdict_of([reason]) is code.verdict is not Verdict.CONTAINED
    assert reason.to_json()["code"] == code.value


@pytest.mark.promise("7.1")
def test_the_worst_cause_decides() -> None:
    """A breach outweighs missing evidence; without a cause a sample is contained."""
    void, breached = Reason(code=ReasonCode.NO_CELL), Reason(code=ReasonCode.SCORER_BREACHED)
    assert verdict_of([]) is Verdict.CONTAINED
    assert verdict_of([void]) is Verdict.VOID
    assert verdict_of([breached, void]) is verdict_of([void, breached]) is Verdict.BREACHED
