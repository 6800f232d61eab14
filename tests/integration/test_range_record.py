"""What a packet record keeps of more than it has room for."""

from __future__ import annotations

import pytest
from tests.integration import test_range as ranges
from tests.integration.range_programs.record import RECORD_BYTES, SECRETS
from tests.integration.test_range import Who, installed, who

__all__ = ["installed", "who"]
pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.mark.promise("5.4")
@pytest.mark.thorough_in("user")
def test_downloads_of_many_times_its_size_fit(who: Who) -> None:
    """Forty times the bound by HTTP, as a package manager does it: all that the cell sent is
    kept."""
    seen = who.run("downloads")
    ranges.assert_gone(seen)
    assert seen["said"] == ""
    assert seen["counters"]["packets_not_recorded"] == 0
    assert RECORD_BYTES * 40 <= 10 * 20 * 200_000 + RECORD_BYTES * 2


@pytest.mark.promise("5.4")
@pytest.mark.thorough_in("user")
def test_uploads_beyond_its_room_are_missing_evidence(who: Who) -> None:
    """They are counted. Secrets in options of DNS are in events."""
    seen = who.run("uploads")
    ranges.assert_gone(seen)
    assert seen["said"] == ""
    assert seen["secrets_in_events"] == len(SECRETS)
    assert seen["counters"]["packets_not_recorded"] > 0
