"""Listing the journal's cells: whose owner lives, whose is gone, and what can't be read."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from belljar.isolation.reap import list_cells
from belljar.process import identify
from belljar.store.journal import CellAbout, Journal, new_cell_id, own_entry


def test_a_cell_is_alive_as_long_as_its_owner_is(tmp_path: Path) -> None:
    """An owner that has ended leaves an orphan; a damaged entry is listed by its file's name."""
    journal = Journal(tmp_path)
    mine = own_entry(new_cell_id(), "cell")
    journal.write(mine)
    with subprocess.Popen(["sleep", "60"]) as process:
        owner = identify(process.pid)
        assert owner is not None
        process.kill()
    theirs = replace(mine, cell_id=new_cell_id(), owner=owner)
    journal.write(theirs)
    (journal.directory / "c-00000000dead.json").write_text("{")
    listed = {cell.cell_id: cell.state for cell in list_cells(tmp_path)}
    assert listed == {
        mine.cell_id: "alive",
        theirs.cell_id: "orphaned",
        "c-00000000dead": "unreadable",
    }
    assert list_cells(tmp_path / "nowhere") == ()
    shutil.rmtree(journal.directory)  # or the suite would take them for cells that it left


def test_what_a_cell_is_for_is_listed_and_forgotten_with_it(tmp_path: Path) -> None:
    """It is beside the entry, and no entry itself."""
    journal = Journal(tmp_path)
    mine = own_entry(new_cell_id(), "cell")
    journal.write(mine)
    assert list_cells(tmp_path)[0].about == CellAbout()
    about = CellAbout(run_id="r", sample="s", epoch=2, tier="gvisor", memory_limit_bytes=7)
    journal.describe(mine.cell_id, about)
    assert [cell.about for cell in list_cells(tmp_path)] == [about]
    journal.remove(mine.cell_id)
    assert list(journal.directory.iterdir()) == []


@pytest.mark.parametrize("damaged", ["{", "[]", '{"run_id": 1}', '{"who": ""}', "x" * (1 << 17)])
def test_a_cell_is_listed_whatever_is_said_of_it(tmp_path: Path, damaged: str) -> None:
    """What can't be read says nothing, and hides nothing."""
    journal = Journal(tmp_path)
    mine = own_entry(new_cell_id(), "cell")
    journal.write(mine)
    (journal.directory / f"{mine.cell_id}.about").write_text(damaged)
    assert [cell.about for cell in list_cells(tmp_path)] == [CellAbout()]
    journal.remove(mine.cell_id)
