"""What the terminal shows of signals."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.report.stories import FLOW, judged, line, story

from belljar.cli.findings import MAX_SIGNAL_LINES, signal_lines
from belljar.events import Kind
from belljar.report.collect import collect


def test_the_evidence_is_shown_when_asked_for_and_all_of_it_is_bounded() -> None:
    """One line for a signal; with `verbose` one for its evidence; many are cut and counted."""
    findings = judged(story(line(Kind.NETWORK_FLOW, **FLOW)))
    short, long = (signal_lines(collect(findings), verbose=verbose) for verbose in (False, True))
    assert len(long) == len(short) + 1
    many = replace(findings, rows=findings.rows * (MAX_SIGNAL_LINES + 5))
    assert len(signal_lines(collect(many))) == MAX_SIGNAL_LINES + 2
