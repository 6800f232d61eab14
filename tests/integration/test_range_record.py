"""What is left of a packet record that was full, and whether the evidence is whole all the same."""

from __future__ import annotations

import pytest
from tests.integration import test_range as ranges
from tests.integration.range_programs.record import RECORD_BYTES, SECRETS
from tests.integration.test_range import Who, installed, who

__all__ = ["installed", "who"]
pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.mark.promise("5.4")
def test_downloads_of_many_times_its_size_are_accounted_for(who: Who) -> None:
    """Forty times the bound by HTTP, as a package manager does it: packets were thrown away, and
    none that no event holds whole."""
    seen = who.run("downloads")
    ranges.assert_gone(seen)
    assert seen["said"] == ""
    assert seen["counters"]["packets_recorded_and_dropped"] > 500
    assert seen["counters"]["packets_not_recorded"] == 0
    assert seen["counters"]["packets_unaccounted"] == 0
    assert RECORD_BYTES * 40 <= 10 * 20 * 200_000 + RECORD_BYTES * 2


@pytest.mark.promise("5.4")
def test_uploads_that_overwrite_what_events_have_cut_are_missing_evidence(who: Who) -> None:
    """Secrets in options of DNS over TCP are in events; uploads of which events keep a part are
    nowhere whole, and counted."""
    seen = who.run("uploads")
    ranges.assert_gone(seen)
    assert seen["said"] == ""
    assert seen["secrets_in_events"] == len(SECRETS)
    assert seen["counters"]["packets_unaccounted"] > 0


@pytest.mark.promise("5.4")
def test_uploads_that_events_hold_whole_may_overwrite_each_other(who: Who) -> None:
    """The same with bodies that are kept whole: nothing is missing, and the secrets are in
    events."""
    seen = who.run("small_uploads")
    ranges.assert_gone(seen)
    assert seen["said"] == ""
    assert seen["secrets_in_events"] == len(SECRETS)
    assert seen["counters"]["packets_recorded_and_dropped"] > 100
    assert seen["counters"]["packets_unaccounted"] == 0
