"""Cells made ahead: each is a whole cell in record and proof, is had by one taker,
and dies with its owner."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
from tests.integration.processes import kill_tree

from belljar.cell.cell import Cell
from belljar.cell.parts import start_run
from belljar.cell.pool import UNUSED, Pool, open_pool
from belljar.events import Kind
from belljar.ledger.listing import read_events
from belljar.ledger.schema import Line
from belljar.ledger.verification import verify
from belljar.policy.load import load_policy
from belljar.policy.loaded import LoadedPolicy
from belljar.store.journal import Journal, JournalEntry

pytestmark = [pytest.mark.vm, pytest.mark.slow]
POLICY = (
    "belljar: 1\nrisk: low\ntier: container\nresources: {memory: 256MiB, disk: 64MiB, processes: 64,"
    " lifetime: 10m}\n"
)


def policy_of(folder: Path) -> LoadedPolicy:
    path = folder / "policy.yaml"
    path.write_text(POLICY)
    return load_policy(path)


def kinds(lines: list[Line], cell: str) -> list[Kind]:
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
    """Taken by one, with the right time in it; a dead one is given to nobody."""
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
    order = [
        said.index(kind) for kind in (Kind.PROBE_COMPLETED, Kind.CELL_TAKEN, Kind.EXEC_STARTED)
    ]
    assert order == sorted(order)
    (planned,) = (line for line in lines if (line.cell, line.kind) == (first.id, Kind.CELL_PLANNED))
    assert planned.data["ahead"] is True
    reasons = {
        line.cell: line.data["reason"] for line in lines if line.kind is Kind.CELL_DESTROYING
    }
    assert (reasons[dead.cell_id], reasons[unused.cell_id]) == (UNUSED, UNUSED)
    taken = [line.cell for line in lines if line.kind is Kind.CELL_TAKEN]
    assert len(taken) == len(set(taken))
    assert not {dead.cell_id, unused.cell_id} & set(taken)
    proofs = [line.data["clean"] for line in lines if line.kind is Kind.CELL_DESTROYED]
    assert proofs == [True] * len({line.cell for line in lines if line.kind is Kind.CELL_PLANNED})
