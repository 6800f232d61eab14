"""Finding and listing runs, whole and broken."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from belljar.dataclass import json_of, replace
from belljar.errors import LedgerError
from belljar.events import Event, JsonValue, Kind
from belljar.ledger import listing
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.schema import Line

from .conftest import exec_events, make_run


def test_runs_and_their_ends(home: Path) -> None:
    """Kind, what and outcome come from the ledger itself."""
    with RunDirectory(home, "run", ["a", "b"], what="task") as run:
        assert listing.summarise(run.path).outcome == "running"
        shutil.copytree(run.path, home / "copy")
        run.finish("failed", exit_code=2, note="x" * (100 << 10))
    copy, whole = listing.summarise(home / "copy"), listing.summarise(run.path)
    assert (copy.outcome, copy.what) == ("unfinished", "task")
    assert (whole.kind, whole.what, whole.outcome, whole.exit_code) == ("run", "task", "failed", 2)
    assert json.loads(json.dumps(json_of(whole)))["run_id"] == run.path.name
    (run.path / "manifest.json").unlink()
    assert listing.summarise(run.path).outcome == "unfinished"


@pytest.mark.promise("6.4", "7.5")
def test_a_killed_run_says_so(home: Path) -> None:
    """The first use of the switch is the reason, with a later one on record too."""
    with RunDirectory(home, "run", []) as run:
        for reason in ("a decoy was used", "again"):
            data: dict[str, JsonValue] = {"scope": "run", "rule": "decoy_used", "reason": reason}
            run.recorder.record(Event(kind=Kind.KILL_TRIGGERED, data=data))
    assert listing.summarise(run.path).killed == "decoy_used: a decoy was used"


@pytest.mark.parametrize("content", [b"", b"{}\n", b"\xff\n", b"x" * (2 << 20)])
def test_broken_runs_are_listed(home: Path, content: bytes) -> None:
    """Whatever is in a run directory, the list shows it and goes on."""
    whole = make_run(home)
    broken = home / "runs" / "20000101-000000000-000000"
    broken.mkdir()
    (broken / "ledger.jsonl").write_bytes(content)
    (piped := broken.with_name("20000101-000000000-000001")).mkdir()
    os.mkfifo(piped / "ledger.jsonl")
    (home / "runs" / "a-file").write_text("")
    (home / "runs" / "a-link").symlink_to("/")
    outcomes = [(run.run_id, run.outcome) for run in listing.list_runs(home)[0]]
    ended = (whole.name, "completed")
    assert outcomes == [(broken.name, "broken"), (piped.name, "broken"), ended]


def test_reading_tells_what_is_no_event(home: Path) -> None:
    """A bad line is given as the reason, the others as events."""
    event = exec_events(1)[0]
    argv = ["x" * (1 << 20)]
    with RunDirectory(home, "exec", []) as run:
        run.recorder.record(replace(event, data={**event.data, "argv": argv}))
        ledger = run.path / "ledger.jsonl"
        lines = ledger.read_bytes()
        ledger.write_bytes(lines + b"half")
        _, whole = listing.read_events(run.path)
        assert whole.data["argv"] == argv
        ledger.write_bytes(lines + b"{}\nhalf")
        *events, bad, half = [event for _, event in listing.read_lines(run.path)]
        with pytest.raises(LedgerError, match="not an event"):
            list(listing.read_events(run.path))
        ledger.write_bytes(lines)
    assert [type(event) for event in events] == [Line, Line]
    assert isinstance(bad, ValueError)
    assert "incomplete" in str(half)
