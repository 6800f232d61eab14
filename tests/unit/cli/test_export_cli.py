"""`belljar export` and `belljar replay` of runs that are broken, or that a player has to wait for."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.ledger.conftest import exec_events

from belljar.cell.parts import start_run
from belljar.cli.main import run as belljar


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one command in a terminal, which is resized halfway."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    begun, ended = exec_events(1)
    with start_run("exec", "test", ["test"], home=tmp_path) as made:
        terminal = {**begun.data, "pty": True, "cols": 91, "rows": 27}
        made.recorder.record(replace(begun, data=terminal))
        time.sleep(0.2)
        made.recorder.record(replace(ended, data={**ended.data, "size_times": [[100, 70, 20]]}))
    return made.path


@pytest.mark.parametrize("kind", ["jsonl", "timesketch", "ocsf"])
def test_an_empty_record_is_not_exported_without_a_word(
    finished: Path, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    """A whole one is; of an emptied one nothing is written, and a line says why."""
    assert belljar(["export", "last", "--format", kind]) == 0
    whole = capfd.readouterr()
    assert whole.out
    assert "no end" not in whole.err
    (finished / "ledger.jsonl").write_bytes(b"")
    assert belljar(["export", "last", "--format", kind]) == 0
    emptied = capfd.readouterr()
    assert emptied.out == ""
    assert "it is empty or can't be read" in emptied.err
