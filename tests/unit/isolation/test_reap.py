"""Reaping what is known by its name alone: what was being made or written when its owner died."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from belljar.isolation.reap import Reaped, list_cells, reap_now, reaped_event
from belljar.ledger.chain import canonical
from belljar.ledger.schema import MAX_SPILLED_BYTES, check_data
from belljar.store.journal import CellAbout, Journal, new_cell_id, own_entry
from belljar.store.scratch import MAKING, owned_name

CELL = "c-0123456789ab"
PLACES = ("tmp/{}", "templates/" + MAKING + "{}", "vmm/" + MAKING + "{}", "journal/.draft-{}")


def dead_name(what: str) -> str:
    with subprocess.Popen(["sleep", "60"]) as process:
        start = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19]
        process.kill()
    return f"{process.pid}-{start}-{what}"


def planted(home: Path, place: str, name: str) -> Path:
    """A directory with something in it, or a file where files are written."""
    path = home / place.format(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if "journal" in place:
        path.write_text("{")
        return path
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "memory").write_bytes(b"much")
    return path


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    """Asked for one cell, only that; a store that isn't there is no error."""
    lost = planted(tmp_path, PLACES[0], dead_name("scratch"))
    assert reap_now(tmp_path, CELL) == ()
    assert lost.exists()
    assert reap_now(tmp_path / "nowhere") == ()
    run = planted(tmp_path, "runs/" + MAKING + "{}", dead_name(CELL))
    reap_now(tmp_path)
    assert run.exists()


def told_of(*reaped: Reaped) -> dict[str, Any]:
    """What the record says of it, in a form that the ledger takes."""
    event = reaped_event(reaped)
    assert event.cell_id is None
    data: dict[str, Any] = dict(event.data)
    check_data(event.kind, data)
    assert len(canonical(data)) < MAX_SPILLED_BYTES
    return data


def test_what_was_reaped_is_told_in_bounds() -> None:
    """As many cells as a record has room for; nothing in it acts on a terminal."""
    few = Reaped(
        cell_id=CELL, kind="cell", removed=("process 1 (\x1b[2J)",), remaining=("mount /x",)
    )
    (told,) = told_of(few)["cells"]
    assert (told["cell_id"], told["kind"], told["remaining"]) == (CELL, "cell", ["mount /x"])
    assert "\x1b" not in told["removed"][0]
    crowd = Reaped(cell_id=CELL, kind="cell", removed=("p" * 5000,) * 1000, remaining=())
    many = told_of(*[crowd] * 1000)
    assert (many["count"], len(many["cells"])) == (1000, 64)
    assert len(many["cells"][0]["removed"]) == 32


@pytest.mark.parametrize("place", PLACES)
def test_what_a_dead_owner_was_making_is_removed(tmp_path: Path, place: str) -> None:
    """Half-made things of a dead process vanish; a living one's stay, and so do other names."""
    lost = planted(tmp_path, place, dead_name(CELL))
    working = planted(tmp_path, place, owned_name(what="c-0123456789ac"))
    other = planted(tmp_path, place.partition("/")[0] + "/{}", "another")
    reap_now(tmp_path)
    assert not lost.exists()
    assert working.exists()
    assert other.exists()


@pytest.mark.parametrize("damaged", ["{", "[]", '{"run_id": 1}', '{"who": ""}', "x" * (1 << 17)])
def test_what_a_cell_is_for_is_listed_and_forgotten_with_it(tmp_path: Path, damaged: str) -> None:
    """It is beside the entry. What can't be read says nothing, and hides nothing."""
    journal, mine = Journal(tmp_path), own_entry(new_cell_id(), "cell")
    journal.write(mine)
    assert list_cells(tmp_path)[0].about == CellAbout()
    about = CellAbout(run_id="r", sample="s", epoch=2, tier="gvisor", memory_limit_bytes=7)
    journal.describe(mine.cell_id, about)
    assert [cell.about for cell in list_cells(tmp_path)] == [about]
    (journal.directory / f"{mine.cell_id}.about").write_text(damaged)
    assert [cell.about for cell in list_cells(tmp_path)] == [CellAbout()]
    journal.remove(mine.cell_id)
    assert list(journal.directory.iterdir()) == []
