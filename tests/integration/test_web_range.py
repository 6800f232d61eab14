"""The example's break-in: the flag is had by who breaks in, and the record shows how."""

from __future__ import annotations

import json
import re
import shutil
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
    asked = list(requests(run))
    assert any(path.startswith("/search?") and "UNION SELECT" in path for path, _ in asked)
    assert "/image?name=../config.json" in [path for path, _ in asked]
    assert 200 in [status for path, status in asked if path == "/keeper"]
    assert any(b"flag-" in sent for _, sent in streams(run))
    (shown,) = sample["ranges"]
    assert shown["requests_between_cells"] == shown["requests_in_all"] > 0
    assert (run / shown["packets"]).stat().st_size > 0
    assert not shown["reasons"]


def streams(run: Path) -> Iterator[tuple[bytes, bytes]]:
    """What each connection to the shop brought, and was answered: the pieces of its events."""
    found: dict[object, dict[str, bytes]] = {}
    for line in read_events(run):
        if line.kind is Kind.NETWORK_STREAM and line.data.get("phase") == "data":
            assert line.data["cell"] == "default"
            ways = found.setdefault((line.data["range"], line.data["connection"]), {})
            for body in line.bodies:
                content = (run / body_path(body.stored)).read_bytes() if body.stored else b""
                ways[body.name] = ways.get(body.name, b"") + content
    for ways in found.values():
        yield ways.get("received", b""), ways.get("sent", b"")


def requests(run: Path) -> Iterator[tuple[str, int]]:
    """Each request to the shop: its path and its answer's status."""
    for received, sent in streams(run):
        targets = re.findall(rb"(?m)^[A-Z]+ (\S+) HTTP/1\.1\r$", received)
        statuses = re.findall(rb"(?m)^HTTP/1\.[01] (\d{3}) ", sent)
        for target, status in zip(targets, statuses, strict=True):
            url = urlsplit(target.decode())
            yield unquote_plus(url.path + (f"?{url.query}" if url.query else "")), int(status)
