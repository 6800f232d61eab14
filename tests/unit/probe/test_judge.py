"""How a probe is judged: the cell's word can make a breach, never a contained where the host can
look."""

from __future__ import annotations

import itertools

import pytest
from tests.fakes.probing import PROBES

from belljar.probe.judge import Answers, AttemptReport, Sight, judge, judge_probe, overall
from belljar.probe.model import AttemptOutcome, Side, Verdict, Witness, worst

CANARY, SOCKET, MOUNT, HYPERVISOR = PROBES
TOUCHED, SILENT, BLIND = (Sight(touched=touched, what="w") for touched in (True, False, None))
DENIED, ABSENT, REACHED, ERROR = (AttemptReport(outcome=each) for each in AttemptOutcome)
C, V, B = Verdict.CONTAINED, Verdict.VOID, Verdict.BREACHED


@pytest.mark.promise("4.6")
@pytest.mark.parametrize(
    ("answer", "sight", "verdict"),
    [
        *((answer, TOUCHED, B) for answer in (DENIED, ABSENT, REACHED, ERROR, None)),
        *((REACHED, sight, B) for sight in (SILENT, BLIND)),
        *((answer, SILENT, C) for answer in (DENIED, ABSENT)),
        *((answer, BLIND, V) for answer in (DENIED, ABSENT)),
        *((answer, sight, V) for answer in (ERROR, None) for sight in (SILENT, BLIND)),
    ],
)
def test_the_hosts_side(answer: AttemptReport | None, sight: Sight, verdict: Verdict) -> None:
    """Touched is a breach whatever the cell says; untouched and denied contained; unseen void."""
    assert judge_probe(CANARY, answer, {Witness.CANARY: sight}, tier="microvm").verdict is verdict


def test_without_a_witness() -> None:
    """Where only the cell can see its word decides, and silence is void; where the host can, and
    did not look, a denial is void."""
    words = {DENIED: C, ABSENT: C, REACHED: B, ERROR: V, None: V}
    assert {word: judge_probe(MOUNT, word, {}, tier="microvm").verdict for word in words} == words
    assert judge_probe(CANARY, DENIED, {}, tier="microvm").verdict is V


def test_what_is_known_of_a_tier() -> None:
    """`reached` is contained in the tier that the catalogue names, a breach in any other."""
    known = judge_probe(HYPERVISOR, REACHED, {}, tier="microvm")
    assert (known.verdict, known.known) == (C, "a virtual machine has the flag")
    assert judge_probe(HYPERVISOR, REACHED, {}, tier="gvisor").verdict is B


def test_a_touched_witness_speaks_without_its_probe() -> None:
    """What the host saw touched is a breach although no probe of this run names it."""
    findings = judge(
        [MOUNT], Answers(by_name={MOUNT.name: DENIED}), {Witness.UDP: TOUCHED}, tier="microvm"
    )
    assert [(each.name, each.verdict, each.seen_by) for each in findings][1:] == [
        ("host.udp", B, Side.HOST)
    ]


def test_the_worst_decides() -> None:
    """Breached over void over contained; nothing is void; a problem is never contained."""
    for order in itertools.permutations([C, V, B]):
        assert worst(order) is B
    assert (worst([V, C]), worst([C]), worst([])) == (V, C, V)
    findings = judge([MOUNT], Answers(by_name={MOUNT.name: DENIED}), {}, tier="microvm")
    assert (overall(findings, ""), overall(findings, "cut")) == (C, V)
