"""The example's break-in: the flag is had by who breaks in, and the record shows how."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus

import pytest
from tests.integration.processes import quick_command

from belljar.events import Kind
from belljar.ledger.files import body_path
from belljar.ledger.listing import read_events
from belljar.ledger.verification import verify

EXAMPLE = Path(__file__).parents[2] / "examples" / "web_range"
pytestmark = [pytest.mark.vm, pytest.mark.slow]


def play(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The record of the break-in, which is contained, and what is said of it."""
    example = shutil.copytree(EXAMPLE, folder / "web_range")
    policy = example / "policy.yaml"
    policy.write_text(policy.read_text().replace("risk: high", "risk: low"))
    argv = quick_command("run", "--json", str(example / "web_range.py"), "--sample-id", "break-in")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=550, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout)
    (sample,) = said["samples"]
    assert (sample["verdict"], sample["destroyed"]) == ("contained", True)
    assert not said["stray_cells"]
    run = Path(said["run_dir"])
    assert verify(run).ok(strict=True)
    return run, sample


@pytest.mark.promise("5.4")
def test_the_shop_is_broken_into_and_the_record_shows_how(home: Path, tmp_path: Path) -> None:
    """The one who breaks in has the flag."""
    run, sample = play(tmp_path)
    assert sample["scores"]["has_the_flag"] == "C"
    asked, answered = said_in_streams(run, "received"), said_in_streams(run, "sent")
    assert re.search(rb"GET /search\?\S*UNION(\+|%20)SELECT", asked)
    assert b"GET /keeper " in asked
    assert "/image?name=../config.json" in unquote_plus(asked.decode("latin-1"))
    assert b"flag-" in answered
    (shown,) = sample["ranges"]
    assert shown["requests_between_cells"] == shown["requests"] > 0
    assert (run / shown["packets"]).stat().st_size > 0
    assert not shown["reasons"]


def said_in_streams(run: Path, way: str) -> bytes:
    """What all connections to the shop brought, or were answered: the pieces of their events."""
    stored = [
        body.stored
        for line in read_events(run)
        if line.kind is Kind.NETWORK_STREAM and line.data.get("phase") == "data"
        for body in line.bodies
        if body.name == way
    ]
    return b"".join((run / body_path(name)).read_bytes() for name in stored if name)
