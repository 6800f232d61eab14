"""Cells made ahead: each is a whole cell in record and proof, is had by one taker,
and dies with its owner."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.integration.processes import kill_tree, wait_for

from belljar.cell.cell import Cell
from belljar.cell.parts import start_run
from belljar.cell.pool import UNUSED, Pool, open_pool
from belljar.events import Kind
from belljar.isolation.kill import kill
from belljar.isolation.reap import reap
from belljar.ledger.listing import read_events
from belljar.ledger.schema import Line
from belljar.ledger.verification import Status, verify
from belljar.policy.load import load_policy
from belljar.policy.loaded import LoadedPolicy
from belljar.process import identify
from belljar.store.journal import Journal, JournalEntry

pytestmark = [pytest.mark.vm, pytest.mark.slow]
POLICY = (
    "belljar: 1\nrisk: low\ntier: container\nresources: {memory: 256MiB, disk: 64MiB, processes: 64,"
    " lifetime: 10m}\n"
)
OWNER = """
import sys, anyio
from pathlib import Path
from belljar.cell.pool import open_pool
from belljar.policy.load import load_policy

async def own() -> None:
    async with open_pool(load_policy(Path(sys.argv[1]))) as pool, pool.cell() as cell:
        await cell.exec(["true"])
        print(cell.id, flush=True)
        await anyio.sleep(1000)

anyio.run(own)
"""


def policy_of(folder: Path) -> LoadedPolicy:
    """A small one."""
    path = folder / "policy.yaml"
    path.write_text(POLICY)
    return load_policy(path)


def kinds(lines: list[Line], cell: str) -> list[Kind]:
    """What is on record of a cell, in order."""
    return [line.kind for line in lines if line.cell == cell]


async def standing(pool: Pool, home: Path, *taken: Cell) -> JournalEntry:
    """The one that stands ready, once there is one, as the journal has it."""
    pool.refill()
    assert await pool.filled() == 1
    ids = {cell.id for cell in taken}
    (entry,) = (
        entry
        for entry in Journal(home).entries()
        if entry.kind == "cell" and entry.cell_id not in ids
    )
    return entry


@pytest.mark.promise("3.4")
@pytest.mark.anyio
@pytest.mark.thorough_in("trio")
async def test_a_cell_made_ahead_is_a_whole_cell(home: Path, tmp_path: Path) -> None:
    """Taken by one, with the right time in it; a dead one is given to nobody; what nobody took is
    destroyed; all of it on record, with proof."""
    with start_run("test", "low", []) as run:
        async with open_pool(policy_of(tmp_path), run=run) as pool:
            assert await pool.filled() == 1
            async with pool.cell() as first:
                before_s = time.time()
                clock = await first.exec(["date", "+%s.%N"])
                assert before_s - 1 < float(clock.stdout) < time.time() + 1
                await first.exec(["touch", "/tmp/mine"])
                dead = await standing(pool, home, first)
                assert dead.child is not None
                await anyio.to_thread.run_sync(kill_tree, dead.child.pid)
                async with pool.cell() as second:
                    assert second.id not in {first.id, dead.cell_id}
                    assert (await second.exec(["test", "-e", "/tmp/mine"])).returncode == 1
            assert first.destruction is not None
            assert first.destruction.clean
            unused = await standing(pool, home)
    assert verify(run.path).ok(strict=True)
    lines = list(read_events(run.path))
    said = kinds(lines, first.id)
    assert (
        said.index(Kind.PROBE_COMPLETED)
        < said.index(Kind.CELL_TAKEN)
        < said.index(Kind.EXEC_STARTED)
    )
    assert [
        line.data.get("ahead")
        for line in lines
        if (line.cell, line.kind) == (first.id, Kind.CELL_PLANNED)
    ] == [True]
    reasons = {
        line.cell: line.data["reason"] for line in lines if line.kind is Kind.CELL_DESTROYING
    }
    assert (reasons[dead.cell_id], reasons[unused.cell_id]) == (UNUSED, UNUSED)
    taken = [line.cell for line in lines if line.kind is Kind.CELL_TAKEN]
    assert len(taken) == len(set(taken))
    assert not {dead.cell_id, unused.cell_id} & set(taken)
    proofs = [line.data["clean"] for line in lines if line.kind is Kind.CELL_DESTROYED]
    assert proofs == [True] * len({line.cell for line in lines if line.kind is Kind.CELL_PLANNED})


@pytest.mark.anyio
@pytest.mark.thorough_in("trio")
async def test_a_cell_in_the_making_that_is_killed(home: Path, tmp_path: Path) -> None:
    """By its id: it ends with proof and is given to nobody, the record says why, and the pool makes
    another for the next."""
    with start_run("test", "low", []) as run:
        async with open_pool(policy_of(tmp_path), run=run) as pool:
            while not (ids := [e.cell_id for e in Journal(home).entries() if e.kind == "cell"]):
                await anyio.lowlevel.checkpoint()
            (named,) = ids
            await kill(named, reason="enough", home=home)
            async with pool.cell() as cell:
                assert cell.id != named
                assert (await cell.exec(["true"])).returncode == 0
            assert pool.error is None
    lines = [line for line in read_events(run.path) if line.cell == named]
    said = [str(line.data["reason"]) for line in lines if "reason" in line.data]
    assert any("enough" in reason for reason in said)
    assert [line.data["clean"] for line in lines if line.kind is Kind.CELL_DESTROYED] == [True]
    assert not {Kind.CELL_TAKEN, Kind.EXEC_STARTED} & {line.kind for line in lines}


@pytest.mark.promise("3.4")
def test_cells_made_ahead_die_with_their_owner(home: Path, tmp_path: Path) -> None:
    """Its SIGKILL ends the cell that was taken and the one that stands; reaping removes what is
    left, and the ledger verifies up to there."""
    policy_of(tmp_path)
    before = set((home / "journal").glob("*")) if (home / "journal").is_dir() else set()
    argv = [sys.executable, "-c", OWNER, str(tmp_path / "policy.yaml")]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "BELLJAR_HOME": str(home)}
    ) as owner:
        try:
            taken = (owner.stdout or sys.stdin).readline().strip()
            wait_for(lambda: len(_standing(home, before)) == 2, "a second cell")
        finally:
            owner.send_signal(signal.SIGKILL)
    cells = _standing(home, before)
    assert taken in cells
    wait_for(lambda: not any(_lives(entry) for entry in cells.values()), "the end of both")
    reaped = anyio.run(reap, home)
    assert {each.cell_id for each in reaped} >= set(cells)
    assert not _standing(home, before)
    assert verify(sorted((home / "runs").iterdir())[-1]).status is Status.UNFINISHED


def _standing(home: Path, before: set[Path]) -> dict[str, dict[str, object]]:
    """The journal's new entries that have a running child, by cell."""
    found = {}
    for path in set((home / "journal").glob("c-*.json")) - before:
        try:
            entry = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if entry.get("child"):
            found[path.stem] = entry
    return found


def _lives(entry: dict[str, object]) -> bool:
    child = entry["child"]
    return (
        isinstance(child, dict)
        and (now := identify(child["pid"])) is not None
        and now.start_ticks == child["start_ticks"]
    )
