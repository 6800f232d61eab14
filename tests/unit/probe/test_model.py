"""The words of the probes: what can't be meant is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fakes.probing import PROBES

from belljar.probe.model import ProbeReport, Side, Verdict, Witness


def test_an_entry_is_of_its_group_and_names_its_witness() -> None:
    """A name of another group, a host's side without a witness, a witness on the guest's side:
    refused where they are written."""
    host, *_, guest = PROBES
    for changes in ({"group": "other"}, {"witness": None}):
        with pytest.raises(ValueError, match=host.name):
            replace(host, **changes)
    with pytest.raises(ValueError, match=guest.name):
        replace(guest, witness=Witness.UDP, side=Side.GUEST)


def test_a_digest_is_of_the_findings() -> None:
    """How long it took does not matter to it, a problem does."""
    report = ProbeReport(verdict=Verdict.VOID, findings=(), which="quick", duration_ms=1)
    assert (
        report.digest
        == replace(report, duration_ms=2).digest
        != replace(report, problem="late").digest
    )
    assert report.to_json()["digest"] == report.digest
