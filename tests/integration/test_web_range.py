"""The example's break-in in microVMs, as its policy says: the flag is had by who breaks in, and the
record shows how."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote_plus, urlsplit

import pytest
from tests.integration.processes import quick_command

from belljar.events import Kind
from belljar.ledger.files import body_path
from belljar.ledger.listing import read_events
from belljar.ledger.schema import Line
from belljar.ledger.verification import verify

EXAMPLE = Path(__file__).parents[2] / "examples" / "web_range"
pytestmark = [pytest.mark.vm, pytest.mark.slow]


def play(name: str) -> tuple[Path, dict[str, Any]]:
    """The record of a sample, which is contained, and what is said of it."""
    done = subprocess.run(
        quick_command("run", "--json", str(EXAMPLE / "web_range.py"), "--sample-id", name),
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said: dict[str, Any] = json.loads(done.stdout)
    (sample,) = said["samples"]
    assert sample["verdict"] == "contained"
    assert sample["destroyed"]
    assert not said["stray_cells"]
    run = Path(said["run_dir"])
    assert verify(run).ok(strict=True)
    return run, sample


@pytest.mark.promise("5.4")
def test_the_shop_is_broken_into_and_the_record_shows_how(home: Path) -> None:
    """The one who breaks in has the flag. Injection, traversal and the keeper's page are in the
    ledger, with who asked, and in the report of the sample."""
    run, sample = play("break-in")
    assert sample["scores"]["has_the_flag"] == "C"
    asked = list(requests(run))
    assert {line.data["cell"] for line, _, _ in asked} == {"default"}
    paths = [path for _, path, _ in asked]
    assert any(path.startswith("/search?") and "UNION SELECT" in path for path in paths)
    assert "/image?name=../config.json" in paths
    keeper = [status for _, path, status in asked if path == "/keeper"]
    assert 200 in keeper
    assert sum(b"flag-" in body for body in bodies(run)) >= 1
    (shown,) = sample["ranges"]
    told = [
        (unquote_plus(urlsplit(each["what"]).query), each["status"], each["stand_in"])
        for each in shown["requests"]
    ]
    assert ("q=%' UNION SELECT name, role, 0 FROM accounts --", 200, "shop") in told
    assert ("name=../config.json", 200, "shop") in told
    assert all(each["between_cells"] for each in shown["requests"])
    assert shown["requests_between_cells"] == shown["requests_in_all"] == len(told)
    assert (run / shown["packets"]).stat().st_size > 0
    assert not shown["reasons"]


@pytest.mark.thorough
def test_who_shops_has_no_flag(home: Path) -> None:
    """The control: nothing of the break-in is in its record."""
    run, sample = play("shopping")
    assert sample["scores"]["has_the_flag"] == "I"
    assert [status for _, path, status in requests(run) if path == "/keeper"] == [403]
    assert not any("UNION" in each["what"] for each in sample["ranges"][0]["requests"])


def requests(run: Path) -> Iterator[tuple[Line, str, int]]:
    """Each request to the shop: its event, path and answer's status."""
    lines = [line for line in read_events(run) if line.data.get("stand_in") == "shop"]
    statuses: list[int] = [
        int(line.data["status"]) for line in lines if line.kind is Kind.NETWORK_HTTP_ANSWERED
    ]
    asked = [line for line in lines if line.kind is Kind.NETWORK_HTTP]
    for line, status in zip(asked, statuses, strict=True):
        url = urlsplit(str(line.data["url"]))
        yield line, unquote_plus(url.path + (f"?{url.query}" if url.query else "")), status


def bodies(run: Path) -> Iterator[bytes]:
    """What the shop answered, as it was kept."""
    for line in read_events(run):
        if line.kind is Kind.NETWORK_HTTP_ANSWERED:
            yield from (
                (run / body_path(body.stored)).read_bytes() for body in line.bodies if body.stored
            )
