"""Listing the journal's cells: whose owner lives, whose is gone, and what can't be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.isolation.reap import list_cells
from belljar.store.journal import CellAbout, Journal, new_cell_id, own_entry


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
