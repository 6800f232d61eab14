"""A report of probes."""

from __future__ import annotations

from dataclasses import replace

from belljar.probe.model import ProbeReport, Verdict


def test_a_digest_is_of_the_findings() -> None:
    """How long it took does not matter to it, a problem does."""
    report = ProbeReport(verdict=Verdict.VOID, findings=(), which="quick", duration_ms=1)
    assert (
        report.digest
        == replace(report, duration_ms=2).digest
        != replace(report, problem="late").digest
    )
    assert report.to_json()["digest"] == report.digest
