"""What is told of cells that talk to each other: what arrived, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.as_user import REPOSITORY
from tests.integration.range_programs.talk import ANSWER_BYTES

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.mark.promise("5.4")
def test_what_arrived_is_told_and_a_lie_is_not(tmp_path: Path) -> None:
    """Bodies each way are put together without a doubt; a forged SYN-ACK, and a request that the
    rules dropped, are no conversation; one of none is a flow."""
    env = {
        **os.environ,
        "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [sys.executable, "-m", "tests.integration.range_programs.talk", str(tmp_path)]
    done = subprocess.run(words, capture_output=True, check=False, env=env, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout)
    assert (seen["up"], seen["got"], seen["lie"], seen["clean"], seen["deaths"]) == (
        True,
        str(ANSWER_BYTES),
        "",
        True,
        [],
    )
    asked, answered = [event for event in seen["told"] if event["kind"].startswith("network.http")]
    assert (asked["method"], asked["bytes"], asked["cell"], asked["stand_in"]) == (
        "POST",
        100_000,
        "agent",
        "other",
    )
    assert (answered["status"], answered["bytes"]) == (200, ANSWER_BYTES)
    assert not any("ambiguous" in event for event in seen["told"])
    flows = [event for event in seen["told"] if event["kind"] == "network.flow"]
    assert [
        (flow["cell"], flow["name"], flow["port"], flow["reason"], flow["count"]) for flow in flows
    ] == [("agent", "other", 80, "segment", 1)]
    assert "forged" not in done.stdout.decode()
