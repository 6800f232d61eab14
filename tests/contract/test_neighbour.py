"""A cell beside one that only spins keeps its share of the processors.

It runs when nothing else does, and last of all files: who waits for the machine keeps all others
from beginning.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
from tests.contract.test_limits import POLICY, first_line, sh

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.policy.load import load_policy

pytestmark = pytest.mark.anyio
ROUNDS = 3
SPIN = "while :; do :; done & while :; do :; done & while :; do :; done & echo on; wait"
TRIES = 5
TURNS = {"container": 200_000, "gvisor": 400_000, "microvm": 12_000}


@pytest.mark.promise("8.1")
@pytest.mark.alone  # what others do at this moment would count as a neighbour's work
@pytest.mark.thorough_in("gvisor", "microvm")
async def test_a_neighbour_keeps_its_speed(tier: str, vm_home: Path, tmp_path: Path) -> None:
    """Beside a cell that does nothing but spin another keeps at least 40 % of its speed."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY.format(tier=tier, user="nobody"))
    loaded = load_policy(policy)
    async with open_cell(loaded, home=vm_home) as cell, open_cell(loaded, home=vm_home) as spinner:
        for _ in range(TRIES):  # what else this host does may spoil one
            alone, beside = [], []
            for _ in range(ROUNDS):
                alone.append(await work_s(cell, TURNS[tier]))
                async with spinner.open_exec(["sh", "-c", SPIN]) as spinning:
                    assert await first_line(spinning) == b"on\n"
                    beside.append(await work_s(cell, TURNS[tier]))
            if median(alone) >= 0.4 * median(beside):
                return
    pytest.fail(f"alone {alone}, beside the other {beside}")


async def work_s(cell: Cell, turns: int) -> float:
    """The seconds of a fixed piece of work, without its program's start, by the cell's clock."""
    loop = f"i=0; while [ $i -lt {turns} ]; do i=$((i+1)); done"
    done = await sh(cell, f"date +%s%N; {loop}; date +%s%N")
    began_ns, ended_ns = map(int, done.stdout.split())
    return (ended_ns - began_ns) / 1e9
