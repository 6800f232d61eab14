"""What a live page is fed with: order, gaps, and records that are being written."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.cell.parts import start_run
from belljar.cli.main import run as belljar
from belljar.events import Event, JsonValue, Kind
from belljar.ledger.rundir import RunDirectory
from belljar.live.feed import Feed

CELL = "c-0123456789ab"


@pytest.fixture
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A feed of the store."""
    with Feed(tmp_path) as made:
        yield made


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """A run that is being written."""
    with start_run("exec", "test", ["test"], home=tmp_path) as made:
        yield made


def hit(number: int) -> Event:
    """An event with a number."""
    return Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": f"number {number}"}, cell_id=CELL)


def texts(feed: Feed, cursor: int = 0) -> list[str]:
    """The texts of all lines from the cursor on."""
    return [json.loads(line)["text"] for line in feed.since(cursor)[0]]


def test_hostile_text_is_escaped(run: RunDirectory, feed: Feed) -> None:
    """No control or bidi character of a guest is in a line."""
    reason = "\x1b]0;x\x07\u202e\u0000<script>"
    run.recorder.record(Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": reason}))
    feed.look()
    assert all(text.isprintable() for text in texts(feed))


def sample(kind: Kind, name: str, cell: str = CELL, **more: JsonValue) -> Event:
    """An event of a sample."""
    data: dict[str, JsonValue] = {"sample": name, "epoch": 1, "task": "t", "uuid": name, **more}
    return Event(kind=kind, cell_id=cell, data=data)


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
