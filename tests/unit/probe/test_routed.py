"""What probes mean in a cell on a range's network."""

from __future__ import annotations

import pytest

from belljar.probe.catalogue import PROBES
from belljar.probe.judge import AttemptReport, NoRouter, Sight, judge_probe, known_answers, routed
from belljar.probe.model import AttemptOutcome, Probe, Side, Verdict, Witness

BY_NAME = {probe.name: probe for probe in PROBES}
WELL = Sight(touched=False, what="as planned")


class ARouter(NoRouter):
    """A router of which this is known."""


def in_range(name: str, **known: bool) -> Probe:
    """A probe as it is meant there."""
    answers = known_answers(**{"sinks": False, "simulates": False, "metadata": False, **known})
    (probe,) = routed([BY_NAME[name]], ARouter(interface="eth0", known=answers), tier="container")
    return probe


def verdict(probe: Probe, outcome: AttemptOutcome, sight: Sight = WELL) -> Verdict:
    """What comes of an answer and a look."""
    answer = AttemptReport(outcome=outcome)
    return judge_probe(probe, answer, {Witness.ROUTER: sight}, tier="container").verdict


def test_without_a_router_nothing_changes() -> None:
    """The catalogue is as it stands."""
    assert routed(PROBES, None, tier="microvm") == tuple(PROBES)


def test_what_leads_beyond_is_the_routers_to_witness() -> None:
    """Every probe that sends packets to the outside; those that look at the cell itself are as they
    are."""
    for probe in routed(PROBES, ARouter(), tier="container"):
        if probe.witness is Witness.ROUTER:
            assert (probe.group, probe.side) == ("network", Side.HOST)
        else:
            assert probe == BY_NAME[probe.name]
    beyond = {
        probe.name
        for probe in routed(PROBES, ARouter(), tier="gvisor")
        if probe.witness is Witness.ROUTER
    }
    assert {
        "network.tcp4",
        "network.udp6",
        "network.metadata",
        "network.dns_public",
        "network.raw4",
    } <= beyond


@pytest.mark.promise("2.5")
def test_silence_counts_only_with_the_routers_word() -> None:
    """Rules as planned: contained. Changed: breached, whatever the cell says. Not to be read:
    void."""
    probe = in_range("network.tcp4")
    assert verdict(probe, AttemptOutcome.DENIED) is Verdict.CONTAINED
    assert (
        verdict(probe, AttemptOutcome.DENIED, Sight(touched=True, what="flushed"))
        is Verdict.BREACHED
    )
    assert verdict(probe, AttemptOutcome.DENIED, Sight(touched=None, what="?")) is Verdict.VOID


@pytest.mark.promise("2.5")
@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("network.tcp4", "sinks"),
        ("network.dns_configured", "simulates"),
        ("network.metadata", "metadata"),
    ],
)
def test_an_answer_is_a_breach_unless_the_policy_wants_it(name: str, by: str) -> None:
    """And even then only while the rules are the plan's."""
    assert verdict(in_range(name), AttemptOutcome.REACHED) is Verdict.BREACHED
    assert verdict(in_range(name, **{by: True}), AttemptOutcome.REACHED) is Verdict.CONTAINED
    wanted = in_range(name, **{by: True})
    assert (
        verdict(wanted, AttemptOutcome.REACHED, Sight(touched=None, what="?")) is Verdict.BREACHED
    )
    assert (
        verdict(wanted, AttemptOutcome.REACHED, Sight(touched=True, what="x")) is Verdict.BREACHED
    )
