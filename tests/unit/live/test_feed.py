"""What a live page is fed with: order, gaps, and records that are being written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.cell.parts import start_run
from belljar.cli.main import run as belljar
from belljar.events import Event, Kind
from belljar.ledger.rundir import RunDirectory
from belljar.live.feed import Feed

CELL = "c-0123456789ab"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """A run that is being written."""
    with start_run("exec", "test", ["test"], home=tmp_path) as made:
        yield made


def test_one_that_falls_behind_is_told_what_it_missed(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ring is all that is kept of a flood; its text acts on no terminal and hides nothing."""
    monkeypatch.setattr("belljar.live.feed.RING_LINES", 10)
    with Feed(tmp_path) as feed:
        for number in range(30):
            data = {"reason": f"\x1b]0;x\x07\u202e<script>{number}"}
            run.recorder.record(Event(kind=Kind.PROTOCOL_VIOLATION, data=data))
        feed.look()
        lines, cursor, missed = feed.since(0)
    texts = [json.loads(each)["text"] for each in lines]
    assert (len(texts), cursor, missed) == (10, feed.last, feed.last - 10)
    assert texts[-1].endswith("<script>29")
    assert all(text.isprintable() for text in texts)


def test_watch_shows_what_runs_now(
    run: RunDirectory,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each cell of a run that lasts, with its last command as text; a run that is over has none."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    planned = {"policy_sha256": "", "tier": "gvisor", "emulated": False, "layers": []}
    started = {"op": 1, "argv": ["ls", "\x1b[2J"], "cwd": "/", "user": "", "env_names": []}
    for kind, data in (
        (Kind.CELL_PLANNED, planned),
        (Kind.EXEC_STARTED, {**started, "stdin": False, "timeout_s": None}),
    ):
        run.recorder.record(Event(kind=kind, data=data, cell_id=CELL))  # type: ignore[arg-type]
    assert belljar(["watch", "--once"]) == 0
    shown = capsys.readouterr().out
    assert "1 runs, 1 cells" in shown
    assert CELL in shown
    assert "gvisor" in shown
    assert "\x1b[2J" not in shown
