"""`belljar ps` and `belljar reap` over a journal that is real."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.cli.main import run
from belljar.isolation.reap import Reaped
from belljar.process import ProcessId
from belljar.store.journal import CellAbout, Journal, JournalEntry, own_entry

MINE, DEAD = "c-000000000001", "c-000000000002"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of the test's own; what the test left in its journal is forgotten."""
    monkeypatch.setenv("BELLJAR_HOME", str(tmp_path))
    yield tmp_path
    shutil.rmtree(tmp_path / "journal", ignore_errors=True)


def orphan(store: Path) -> JournalEntry:
    """A cell whose owner is gone, with a directory that is still there."""
    directory = store / f"jail-{DEAD}"
    directory.mkdir()
    (directory / "file").write_text("")
    entry = replace(
        own_entry(DEAD, "cell", directories=(directory,)), owner=ProcessId(pid=1, start_ticks=2**62)
    )
    Journal(store).write(entry)
    return entry


def test_ps(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line a cell: alive, orphaned, or a damaged entry; neither its name nor what a task's
    author wrote acts on the terminal."""
    monkeypatch.delenv("COLUMNS", raising=False)
    Journal(store).write(own_entry(MINE, "cell"))
    Journal(store).describe(MINE, CellAbout(sample="arith\x1b[2J", epoch=3, tier="gvisor"))
    orphan(store)
    (store / "journal" / "c-\x1b[2J.json").write_text("{")
    assert run(["ps"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:5] == ["CELL", "STATE", "AGE", "TIER", "SAMPLE"]
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert (rows[MINE][0], rows[MINE][-2:]) == ("alive", [str(os.getpid()), "cell"])
    assert "gvisor" in rows[MINE]
    assert any(word.startswith("arith\\x1b[2J") for word in rows[MINE])
    assert (rows[DEAD][0], rows[DEAD][-2:]) == ("orphaned", ["1", "cell"])
    assert rows["c-\\x1b[2J"][0] == "unreadable"
    assert run(["ps", "--json"]) == 0
    listed = {cell["cell_id"]: cell for cell in json.loads(capsys.readouterr().out)}
    assert {name: cell["state"] for name, cell in listed.items()} == {
        MINE: "alive",
        DEAD: "orphaned",
        "c-\x1b[2J": "unreadable",
    }
    known = {"cell_id", "state", "kind", "owner_pid", "supervisor_pid", "started_s_ago", "cpu_s"}
    assert set(listed[MINE]) == known | {"about", "memory_bytes"}


def test_reap_removes_what_dead_owners_left(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The orphan's directory and entry are gone and named; a living owner's cell is not touched."""
    entry = orphan(store)
    Journal(store).write(own_entry(MINE, "cell"))
    assert run(["reap"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{DEAD}: removed ")
    assert str(entry.directories[0]) in said
    assert not entry.directories[0].exists()
    assert [left.cell_id for left in Journal(store).entries()] == [MINE]


def test_reap_of_one_cell(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the one that was named; as JSON, what was found and what is left of it."""
    orphan(store)
    assert run(["reap", "c-nothing"]) == 2
    assert "there is no cell c-nothing" in capsys.readouterr().err
    assert run(["reap", DEAD, "--json"]) == 0
    (reaped,) = json.loads(capsys.readouterr().out)
    assert (reaped["cell_id"], reaped["remaining"]) == (DEAD, [])
    assert reaped["removed"]


def test_what_could_not_be_removed_is_2(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Destroy means proven: what is still there is told, and the exit code says so."""

    async def stubborn(_home: Path | None, *, cell_id: str | None = None) -> tuple[Reaped, ...]:
        return (Reaped(cell_id=DEAD, kind="cell", removed=("a",), remaining=("a mount\x1b",)),)

    monkeypatch.setattr("belljar.isolation.reap.reap", stubborn)
    assert run(["reap"]) == 2
    assert capsys.readouterr().out == f"{DEAD}: still there: a mount\\x1b\n"
