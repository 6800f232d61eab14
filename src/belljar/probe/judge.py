"""What the cell said and what the host saw → findings and a verdict.

Pure; the only place where a probe is judged.

The cell's word alone can make a breach. It can never make *contained* where the host is able to
look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from belljar.probe.model import Finding, Outcome, Probe, Side, Verdict, Witness, worst
from belljar.probe.parse import Answer, Answers


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What the host saw where it looked.

    Attributes:
        touched: True: something came through. False: nothing did. None: it could not look.
        what: in words.
    """

    touched: bool | None
    what: str


NOT_LOOKED = Sight(touched=None, what="the host did not look")


def judge(
    probes: Sequence[Probe], answers: Answers, sights: Mapping[Witness, Sight], *, tier: str
) -> tuple[Finding, ...]:
    """Each probe judged, and one finding more for every touched witness that none of them names."""
    findings = [
        judge_probe(probe, answers.by_name.get(probe.name), sights, tier=tier) for probe in probes
    ]
    named = {probe.witness for probe in probes}
    findings += [
        _touched(f"host.{witness}", None, sights[witness])
        for witness in sights
        if _stray(witness, named, sights)
    ]
    return tuple(findings)


def overall(findings: Sequence[Finding], problem: str) -> Verdict:
    """The verdict of a run: the worst of its findings, and no better than void when there is a
    problem.
    """
    verdict = worst(finding.verdict for finding in findings)
    return worst((verdict, Verdict.VOID)) if problem else verdict


def judge_probe(
    probe: Probe, answer: Answer | None, sights: Mapping[Witness, Sight], *, tier: str
) -> Finding:
    """One probe.

    What the host saw comes first, then what the cell said, then whether the host could have seen
    it.
    """
    sight = sights.get(probe.witness, NOT_LOOKED) if probe.witness is not None else None
    if sight is not None and sight.touched:
        return _touched(probe.name, answer, sight)
    if answer is None:
        return _finding(probe, Verdict.VOID, None, "no answer came", Side.HOST)
    if answer.outcome is Outcome.REACHED:
        known = probe.expected.get(tier, "")
        if known and (sight is None or sight.touched is False):
            return _finding(
                probe, Verdict.CONTAINED, answer, "the cell says reached", Side.GUEST, known=known
            )
        saw = f"; {sight.what}" if sight is not None else ""
        return _finding(probe, Verdict.BREACHED, answer, f"the cell says reached{saw}", Side.GUEST)
    if answer.outcome is Outcome.ERROR:
        return _finding(probe, Verdict.VOID, answer, "it could not be tried", Side.GUEST)
    if sight is None:
        return _finding(
            probe, Verdict.CONTAINED, answer, f"the cell says {answer.outcome}", Side.GUEST
        )
    verdict = Verdict.VOID if sight.touched is None else Verdict.CONTAINED
    return _finding(probe, verdict, answer, sight.what, Side.HOST)


def _stray(witness: Witness, named: set[Witness | None], sights: Mapping[Witness, Sight]) -> bool:
    return witness not in named and sights[witness].touched is True


def _touched(name: str, answer: Answer | None, sight: Sight) -> Finding:
    return Finding(
        name=name,
        verdict=Verdict.BREACHED,
        outcome=answer.outcome if answer else None,
        detail=answer.detail if answer else "",
        seen=sight.what,
        seen_by=Side.HOST,
    )


def _finding(
    probe: Probe, verdict: Verdict, answer: Answer | None, seen: str, by: Side, *, known: str = ""
) -> Finding:
    return Finding(
        name=probe.name,
        verdict=verdict,
        outcome=answer.outcome if answer else None,
        detail=answer.detail if answer else "",
        seen=seen,
        seen_by=by,
        known=known,
    )
