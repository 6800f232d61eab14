"""`belljar ps`, `reap`, `kill` and `release` over a journal that is real."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.cli.main import run
from belljar.isolation.hold import hold
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
    entry = own_entry(DEAD, "cell", directories=(directory,))
    entry = replace(entry, owner=ProcessId(pid=1, start_ticks=2**62))
    Journal(store).write(entry)
    return entry


def test_ps(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line a cell: alive, orphaned or damaged; no name or author's text acts on the terminal."""
    Journal(store).write(own_entry(MINE, "cell"))
    Journal(store).describe(MINE, CellAbout(sample="arith\x1b[2J", epoch=3, tier="gvisor"))
    orphan(store)
    (store / "journal" / "c-\x1b[2J.json").write_text("{")
    assert run(["ps"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines}
    assert (rows[MINE][0], rows[MINE][-2:]) == ("alive", [str(os.getpid()), "cell"])
    assert any(word.startswith("arith\\x1b[2J") for word in rows[MINE])
    assert (rows[DEAD][0], rows[DEAD][-2:]) == ("orphaned", ["1", "cell"])
    assert rows["c-\\x1b[2J"][0] == "unreadable"
    assert run(["ps", "--json"]) == 0
    listed = {cell["cell_id"]: cell["state"] for cell in json.loads(capsys.readouterr().out)}
    assert listed == {MINE: "alive", DEAD: "orphaned", "c-\x1b[2J": "unreadable"}


def test_what_is_not_proven_is_2(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Destroy means proven: what is still there, and a damaged entry of the journal, are named."""

    async def stubborn(_home: Path | None, *, cell_id: str | None = None) -> tuple[Reaped, ...]:
        return (Reaped(cell_id=DEAD, kind="cell", removed=("a",), remaining=("a mount\x1b",)),)

    (store / "journal").mkdir()
    (store / "journal" / f"{MINE}.json").write_text("{")
    assert run(["kill", "--all"]) == 2
    assert MINE in capsys.readouterr().out
    monkeypatch.setattr("belljar.cli.cells.reap_cells", stubborn)
    assert run(["reap"]) == 2
    assert capsys.readouterr().out == f"{DEAD}: still there: a mount\\x1b\n"


@pytest.mark.promise("6.4")
@pytest.mark.usefixtures("store")
def test_hold_and_release(capsys: pytest.CaptureFixture[str]) -> None:
    """`ps` says that the store is held and why; then it is released, once."""
    assert run(["kill", "--all", "--hold", "--reason", "incident 7"]) == 0
    capsys.readouterr()
    assert run(["ps"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "no cells\n"
    assert "incident 7" in shown.err
    assert run(["release", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["hold"]["reason"] == "incident 7"
    assert run(["release", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"released": False, "hold": None}
    assert run(["ps"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.promise("6.4")
@pytest.mark.parametrize("words", [["exec", "--", "id"], ["probe"], ["plan", "low"]])
def test_a_held_host_says_so(
    store: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever would make a cell is refused with the way out; a plan says it and goes on."""
    hold(store, "incident 7")
    assert run(words) != 0
    said = capsys.readouterr().err
    assert "incident 7" in said
    assert "belljar release" in said
