"""`belljar bench`, on the real tier."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.machine import PATIENCE_S

from belljar.bench.figures import Measure


def test_a_tier_is_measured() -> None:
    """Each measure of a tier has a sample, and the host is described."""
    argv = [sys.executable, "-m", "belljar", "bench", "--tier", "container", "--rounds", "1"]
    argv += ["--quick", "--in-flight", "1", "--json"]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["host"]["facts"]["cpus"] > 0
    assert found["memory_mib"]["container"] > 0
    rows = [row for row in found["series"] if row["subject"] == "container"]
    assert {row["measure"] for row in rows} == {*Measure}
    assert all(row["samples_ms"] and not row["failures"] for row in rows)
