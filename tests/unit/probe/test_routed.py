"""What probes mean in a cell on a range's network."""

from __future__ import annotations

import pytest

from belljar.probe.catalogue import PROBES
from belljar.probe.judge import AttemptReport, Router, Sight, judge_probe, known_answers, routed
from belljar.probe.model import AttemptOutcome, Probe, Verdict, Witness

BY_NAME = {probe.name: probe for probe in PROBES}
WELL = Sight(touched=False, what="as planned")


def in_range(name: str, **known: bool) -> Probe:
    answers = known_answers(**{"sinks": False, "simulates": False, "metadata": False, **known})
    (probe,) = routed([BY_NAME[name]], Router(interface="eth0", known=answers), tier="container")
    return probe


def verdict(probe: Probe, outcome: AttemptOutcome, sight: Sight = WELL) -> Verdict:
    answer = AttemptReport(outcome=outcome)
    return judge_probe(probe, answer, {Witness.ROUTER: sight}, tier="container").verdict


def test_what_leads_beyond_is_the_routers_to_witness() -> None:
    """Every probe that sends packets outside; those that look at the cell are as they are."""
    for probe in routed(PROBES, Router(), tier="container"):
        if probe.witness is Witness.ROUTER:
            assert probe.group == "network"
        else:
            assert probe == BY_NAME[probe.name]
    probes = routed(PROBES, Router(), tier="gvisor")
    beyond = {probe.name for probe in probes if probe.witness is Witness.ROUTER}
    some = ("tcp4", "udp6", "metadata", "dns_public", "raw4")
    assert {f"network.{name}" for name in some} <= beyond


CHANGED, UNREAD = Sight(touched=True, what="flushed"), Sight(touched=None, what="?")
D, R = AttemptOutcome.DENIED, AttemptOutcome.REACHED


@pytest.mark.promise("2.5")
@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("network.tcp4", "sinks"),
        ("network.dns_configured", "simulates"),
        ("network.metadata", "metadata"),
    ],
)
def test_silence_and_answers_count_only_with_the_routers_word(name: str, by: str) -> None:
    """Rules as planned: silence is contained, and an answer that the policy wants."""
    unwanted, wanted = in_range(name), in_range(name, **{by: True})
    for probe, outcome, sight, expected in (
        (unwanted, D, WELL, Verdict.CONTAINED),
        (unwanted, D, CHANGED, Verdict.BREACHED),
        (unwanted, D, UNREAD, Verdict.VOID),
        (unwanted, R, WELL, Verdict.BREACHED),
        (wanted, R, WELL, Verdict.CONTAINED),
        (wanted, R, UNREAD, Verdict.BREACHED),
        (wanted, R, CHANGED, Verdict.BREACHED),
    ):
        assert verdict(probe, outcome, sight) is expected, (outcome, sight)
