"""Security events of a run."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.report.stories import ENDED, PROBED, line

from belljar.events import Kind
from belljar.export.ocsf import ocsf

UPSTREAM: dict[str, Any] = {"host": "h", "port": 443, "address": "", "reason": "", "problem": ""}


@pytest.mark.parametrize(
    ("verdict", "disposition"),
    [("dialled", 1), ("looked_up", 1), ("cut", 1), ("refused", 2), ("failed", 2)],
)
def test_what_left_is_not_called_blocked(verdict: str, disposition: int) -> None:
    """A look-up and a connection that was cut later have left this host."""
    (event,) = ocsf([line(Kind.NETWORK_UPSTREAM, "c", **UPSTREAM, verdict=verdict)], "R")
    assert event["disposition_id"] == disposition


def test_a_breach_is_a_critical_finding_and_a_good_end_is_none() -> None:
    """A survivor, a probe that found a way out and traces after a revert are findings."""
    probe = {**PROBED, "phase": "end"}
    traces = {"from": "c0", "planted": [], "not_checked": []}
    good = [
        line(Kind.PROBE_COMPLETED, "c", **probe),
        line(Kind.CELL_DESTROYED, "c", **ENDED),
        line(Kind.CELL_REVERT_VERIFIED, "c", **traces, found=[]),
    ]
    bad = [
        line(Kind.PROBE_COMPLETED, "c", **{**probe, "verdict": "breached"}),
        line(Kind.CELL_DESTROYED, "c", **{**ENDED, "clean": False, "survivors": ["process 7"]}),
        line(Kind.CELL_REVERT_VERIFIED, "c", **traces, found=["memory"]),
    ]
    assert list(ocsf(good, "R")) == []
    assert [(each["class_uid"], each["severity_id"]) for each in ocsf(bad, "R")] == [(2004, 5)] * 3
