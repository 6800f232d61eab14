"""Reaping what is known by its name alone: what was being made or written when its owner died."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from belljar.isolation.reap import Reaped, reap_now, reaped_event
from belljar.ledger.chain import canonical
from belljar.ledger.schema import MAX_SPILLED_BYTES, check_data
from belljar.store.scratch import MAKING, owned_name

PLACES = ("tmp/{}", "templates/" + MAKING + "{}", "vmm/" + MAKING + "{}", "journal/.draft-{}")


def dead_name(what: str) -> str:
    """As `owned_name` of a process that is gone."""
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


def test_one_cell_is_only_that(tmp_path: Path) -> None:
    """Asked for one cell, nothing else is touched; a store that isn't there is no error."""
    lost = planted(tmp_path, PLACES[0], dead_name("scratch"))
    assert reap_now(tmp_path, "c-0123456789ab") == ()
    assert lost.exists()
    assert reap_now(tmp_path / "nowhere") == ()


def test_runs_are_not_looked_through(tmp_path: Path) -> None:
    """Nothing is made among them, and there may be ten thousand: whatever its name, a run stays."""
    run = planted(tmp_path, "runs/" + MAKING + "{}", dead_name("c-0123456789ab"))
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
    """Each cell with what was found of it and what stayed, as many as a record has room for;
    nothing in it acts on a terminal."""
    few = Reaped(
        cell_id="c-0123456789ab",
        kind="cell",
        removed=("process 1 (\x1b[2J)",),
        remaining=("mount /x",),
    )
    (told,) = told_of(few)["cells"]
    assert (told["cell_id"], told["kind"], told["remaining"]) == (
        "c-0123456789ab",
        "cell",
        ["mount /x"],
    )
    assert "\x1b" not in told["removed"][0]
    crowd = Reaped(
        cell_id="c-0123456789ab", kind="cell", removed=("p" * 5000,) * 1000, remaining=()
    )
    many = told_of(*[crowd] * 1000)
    assert (many["count"], len(many["cells"])) == (1000, 64)
    assert many["cells"][0]["removed"][-1] == "and 969 more"


@pytest.mark.parametrize("place", PLACES)
def test_what_a_dead_owner_was_making_is_removed(tmp_path: Path, place: str) -> None:
    """Half-made templates, roots, scratch and journal drafts of a process that is gone vanish; a
    living one's stay, and so does what has another name."""
    lost = planted(tmp_path, place, dead_name("c-0123456789ab"))
    working = planted(tmp_path, place, owned_name(what="c-0123456789ac"))
    other = planted(tmp_path, place.partition("/")[0] + "/{}", "another")
    reap_now(tmp_path)
    assert not lost.exists()
    assert working.exists()
    assert other.exists()
