"""Times of cells of one tier: each is used as a library's user would use it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import anyio

from belljar.bench.figures import BenchRow, Figures, Measure
from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.errors import BelljarError, CellError, ContainmentBreach
from belljar.isolation.cgroup import memory_bytes
from belljar.ledger.rundir import RunDirectory

# The smallest policy in which all tiers run all measures: 100 cells at once are 25 GiB at most,
# and far less as long as they are idle.
POLICY: Final[dict[str, Any]] = {
    "belljar": 1,
    "risk": "low",
    "resources": {"memory": "256MiB", "disk": "128MiB"},
}
# The first is slower, as it fills the page cache; with three the median is none of the extremes.
_FILE_ROUNDS: Final = 3
_BLOB: Final = "/tmp/blob"  # noqa: S108 - the guest's


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The extent of the measurement in one tier.

    Attributes:
        rounds: of each measure, one after the other.
        in_flight: how many whole lives at once, each a measure of its own.
        blob: the content of the file that is copied in and out.
    """

    tier: str
    rounds: int
    in_flight: tuple[int, ...]
    blob: bytes

    @property
    def policy(self) -> dict[str, Any]:
        """The small policy in this tier."""
        return {**POLICY, "tier": self.tier}


async def time_tier(work: Workload, figures: Figures, report: Callable[[str], None]) -> None:
    """Measure everything in one tier.

    Raises:
        PolicyError, HostError: the tier can't be used here.
        CellError: a cell answered something else, or was not destroyed clean.
        ContainmentBreach: as `open_cell` does.
    """
    with start_run("bench", work.tier, sys.argv) as run:
        report(f"{work.tier}: making what its cells share")
        async with open_cell(work.policy, run=run):
            pass
        report(f"{work.tier}: one cell")
        async with open_cell(work.policy, run=run) as cell:
            await _use(cell, work, figures)
        report(f"{work.tier}: snapshots and forks")
        async with open_cell({**work.policy, "snapshots": True}, run=run) as cell:
            await _save(cell, work, figures)
        for count in work.in_flight:
            report(f"{work.tier}: {count} at once")
            for _ in range(work.rounds if count == 1 else 1):
                await _lives(work, run, figures, count)


async def _use(cell: Cell, work: Workload, figures: Figures) -> None:
    for _ in range(work.rounds):
        with figures.timed(BenchRow(work.tier, Measure.EXEC)):
            await cell.exec(["true"])
    groups = cell._live.groups.paths
    used_bytes = memory_bytes(groups["memory"]) if "memory" in groups else None
    if used_bytes is not None:
        figures.memory_mib[work.tier] = round(used_bytes / (1 << 20), 1)
    for _ in range(_FILE_ROUNDS):
        with figures.timed(BenchRow(work.tier, Measure.FILE_IN)):
            await cell.write_file(_BLOB, work.blob)
        with figures.timed(BenchRow(work.tier, Measure.FILE_OUT)):
            back = await cell.read_file(_BLOB, max_bytes=len(work.blob))
        if back != work.blob:
            raise CellError("a file came back changed", where=f"cell {cell.id}")
    for _ in range(work.rounds):
        await cell.exec(["sh", "-c", f"echo used >{_BLOB}"])
        with figures.timed(BenchRow(work.tier, Measure.REVERT)):
            await cell.revert(verify=False)


async def _save(cell: Cell, work: Workload, figures: Figures) -> None:
    await cell.exec(["sh", "-c", f"echo used >{_BLOB}"])
    for _ in range(_FILE_ROUNDS):
        with figures.timed(BenchRow(work.tier, Measure.SNAPSHOT)):
            snapshot = await cell.snapshot()
        began = perf_counter()
        async with snapshot.fork() as fork:
            figures.add(BenchRow(work.tier, Measure.FORK), (perf_counter() - began) * 1e3)
            output = await fork.exec(["cat", _BLOB])
        if output.stdout != b"used\n":
            raise CellError("a fork lacks what its cell had", where=f"cell {fork.id}")


async def _lives(work: Workload, run: RunDirectory, figures: Figures, count: int) -> None:
    """Run `count` whole lives at once; one that fails is noted and ends no other."""

    async def life() -> None:
        try:
            await _life(work, run, figures, count)
        except ContainmentBreach:
            raise
        except BelljarError as error:
            figures.fail(BenchRow(work.tier, Measure.LIFE, count), str(error))

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(life)


async def _life(work: Workload, run: RunDirectory, figures: Figures, count: int) -> None:
    began = perf_counter()

    def passed(measure: Measure) -> None:
        figures.add(BenchRow(work.tier, measure, count), (perf_counter() - began) * 1e3)

    async with open_cell(work.policy, run=run) as cell:
        passed(Measure.CREATE)
        await _hello(cell)
        passed(Measure.FIRST_OUTPUT)
    if cell.destruction is None or not cell.destruction.clean:
        raise CellError("a cell was not destroyed clean", where=f"cell {cell.id}")
    passed(Measure.LIFE)
    figures.add(BenchRow(work.tier, Measure.DESTROY, count), cell.destruction.duration_ms)


async def _hello(cell: Cell) -> None:
    output = await cell.exec(["echo", "hello"])
    if output.stdout != b"hello\n":
        raise CellError("a cell answered something else than hello", where=f"cell {cell.id}")
