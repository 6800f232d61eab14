"""What a live page is fed with: order, gaps, and records that are being written."""

from __future__ import annotations

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
def feed(tmp_path: Path) -> Iterator[Feed]:
    """A feed of the store."""
    with Feed(tmp_path) as made:
        yield made


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """A run that is being written."""
    with start_run("exec", "test", ["test"], home=tmp_path) as made:
        yield made


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
