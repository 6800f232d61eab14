"""Cells of each tier on this host, beside Docker: `python bench/bench_cells.py [--tier T] [--rounds N] [--quick] [--json]`.

Create, first output, exec, files, revert, a pool and destruction in each tier; whole lives at once. Docker (a daemon of its
own: see `peer.py`) runs the same command with the same root file system. It gives less than a cell does: no record, no proof.
A figure is shown with its failures, in JSON with its raw samples; nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from time import perf_counter
from typing import Any, Final

import anyio
from peer import IMAGE, Docker, docker

from belljar.cell.cell import Cell
from belljar.cell.open import open_cell
from belljar.cell.parts import start_run
from belljar.cell.pool import open_pool
from belljar.cli.policy import host_facts
from belljar.errors import BelljarError, CellError, ContainmentBreach, HostError, PolicyError
from belljar.image.store import Store
from belljar.isolation.cgroup import memory_bytes
from belljar.ledger.rundir import RunDirectory
from belljar.package import __version__
from belljar.store.home import belljar_home

TIERS = ("container", "gvisor", "microvm")


class Measure(StrEnum):
    """A measure's value is its name as it is printed."""

    CREATE = "cold create"
    FIRST_OUTPUT = "create to first output"
    LIFE = "create to destroyed"
    POOL_CREATE = "from pool"
    POOL_FIRST_OUTPUT = "from pool to first output"
    REVERT = "revert, cold"
    POOL_REVERT = "revert from pool"
    SNAPSHOT = "snapshot"
    FORK = "fork"
    EXEC = "exec of true"
    FILE_IN = "file in"
    FILE_OUT = "file out"
    DESTROY = "destroy, with proof"


SHARES: Final = (50, 95, 99)  # the percentiles that are shown
PEER: Final = "docker run --rm"  # the subject that others are compared with
# Each measure is compared with this one of Docker; cells made ahead too, though their making is moved, not saved.
PEER_MEASURE: Final[Mapping[Measure, Measure]] = {
    Measure.FIRST_OUTPUT: Measure.LIFE,
    Measure.POOL_FIRST_OUTPUT: Measure.LIFE,
    **{each: each for each in Measure if each.name in {"LIFE", "EXEC", "FILE_IN", "FILE_OUT"}},
    Measure.DESTROY: Measure.DESTROY,
}


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One series: a tier or a peer, what was timed, and how many of them at once."""

    subject: str
    measure: Measure
    in_flight: int = 1


@dataclass(slots=True)
class Figures:
    """All samples of a run, in milliseconds; what failed; what is absent, and why."""

    samples_ms: dict[BenchRow, list[float]] = field(default_factory=dict)
    failures: dict[BenchRow, list[str]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, row: BenchRow) -> Iterator[None]:
        """Add the block's duration, if it ends without an error."""
        began = perf_counter()
        yield
        self.add(row, (perf_counter() - began) * 1e3)

    def add(self, row: BenchRow, sample_ms: float) -> None:
        """Add one sample."""
        self.samples_ms.setdefault(row, []).append(sample_ms)

    def fail(self, row: BenchRow, why: str) -> None:
        """Add one failure: a row with failures has fewer samples than were asked for."""
        self.failures.setdefault(row, []).append(why)

    def ratio(self, row: BenchRow) -> float | None:
        """Return the row's median over Docker's with as many in flight, if both were measured."""
        if row.measure not in PEER_MEASURE or row.subject == PEER:
            return None
        theirs = BenchRow(PEER, PEER_MEASURE[row.measure], row.in_flight)
        mine_ms, theirs_ms = (percentile(self.samples_ms.get(e, []), 50) for e in (row, theirs))
        return mine_ms / theirs_ms if mine_ms and theirs_ms else None

    def series(self) -> list[dict[str, Any]]:
        """Return each row with its percentiles (None: every try failed), samples and failures."""
        found = list[dict[str, Any]]()
        for row in dict.fromkeys([*self.samples_ms, *self.failures]):
            samples = self.samples_ms.get(row, [])
            shares = {f"p{share}_ms": percentile(samples, share) for share in SHARES}
            rest = {"ratio": self.ratio(row), "samples_ms": [round(each, 3) for each in samples]}
            found.append({**asdict(row), **shares, **rest, "failures": self.failures.get(row, [])})
        return found


def percentile(samples: Sequence[float], share: int) -> float | None:
    """Return the smallest sample that `share` per cent of them do not exceed (nearest rank)."""
    if not samples:
        return None
    return sorted(samples)[max(0, math.ceil(share * len(samples) / 100) - 1)]


# --- cells

# The smallest policy in which all tiers run all measures: 100 cells at once are 25 GiB at most,
# and far less as long as they are idle.
POLICY: Final[dict[str, Any]] = {"belljar": 1, "risk": "low", "resources": {"memory": "256MiB", "disk": "128MiB"}}
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
        report(f"{work.tier}: cells made ahead")
        await _use_pool(work, run, figures)
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


async def _use_pool(work: Workload, run: RunDirectory, figures: Figures) -> None:
    async with open_pool(work.policy, run=run, size=2) as pool:
        for _ in range(work.rounds):
            pool.refill()
            await pool.filled()
            began = perf_counter()
            async with pool.cell() as cell:
                figures.add(BenchRow(work.tier, Measure.POOL_CREATE), (perf_counter() - began) * 1e3)
                await _hello(cell)
                figures.add(BenchRow(work.tier, Measure.POOL_FIRST_OUTPUT), (perf_counter() - began) * 1e3)
        async with pool.cell() as cell:
            for _ in range(work.rounds):
                pool.refill()
                await pool.filled()
                await cell.exec(["sh", "-c", f"echo used >{_BLOB}"])
                with figures.timed(BenchRow(work.tier, Measure.POOL_REVERT)):
                    await cell.revert(verify=False)


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


# --- Docker


def time_docker(client: Docker, figures: Figures, rounds: int, counts: Sequence[int], blob: Path) -> None:
    """Time whole lives, then `docker exec`, `docker cp` and `docker rm -f` in one container."""

    def life(in_flight: int) -> None:
        row = BenchRow(PEER, Measure.LIFE, in_flight)
        try:
            with figures.timed(row):
                client.run("run", "--rm", "--network", "none", IMAGE, "echo", "hello")
        except subprocess.CalledProcessError as error:
            figures.fail(row, str(error))

    for count in counts:
        with ThreadPoolExecutor(count) as threads:
            # Many at once give as many times in one round.
            for _ in range(rounds if count == 1 else 1):
                list(threads.map(life, [count] * count))
    name = client.run("run", "-d", "--network", "none", IMAGE, "sleep", "3600").decode().strip()
    steps: tuple[tuple[Measure, int, tuple[str, ...]], ...] = (
        (Measure.EXEC, rounds, ("exec", name, "true")),
        (Measure.FILE_IN, _FILE_ROUNDS, ("cp", str(blob), f"{name}:/tmp/blob")),
        (Measure.FILE_OUT, _FILE_ROUNDS, ("cp", f"{name}:/tmp/blob", str(blob.with_suffix(".back")))),
    )
    for measure, times, words in steps:
        for _ in range(times):
            with figures.timed(BenchRow(PEER, measure)):
                client.run(*words)
    with figures.timed(BenchRow(PEER, Measure.DESTROY)):
        client.run("rm", "--force", name)


def show(figures: Figures, *, as_json: bool) -> None:
    """Print host and rows."""
    facts = host_facts(belljar_home(), prove=False)
    host: dict[str, Any] = {"belljar": __version__, "measured": datetime.now(UTC).isoformat(timespec="seconds")}
    host |= {"load": os.getloadavg(), "emulated": facts.kvm.state != "proven", "facts": asdict(facts)}
    if as_json:
        known = {"absent": figures.absent, "memory_mib": figures.memory_mib}
        print(json.dumps({"host": host, **known, "series": figures.series()}, indent=2))
        return
    print(f"{'':16} {'what':24} {'at once':>7} {'P50 ms':>9} {'P95 ms':>9} {'P99 ms':>9} {'÷ docker':>9}")
    for each in figures.series():
        numbers = (each[name] for name in ("p50_ms", "p95_ms", "p99_ms", "ratio"))
        texts = (f"{'-' if number is None else format(number, '.2f'):>9}" for number in numbers)
        print(f"{each['subject']:16} {each['measure']:24} {each['in_flight']:7}", *texts)
    for tier, mib in figures.memory_mib.items():
        print(f"memory of one used cell, {tier}: {mib} MiB")
    for row, failures in figures.failures.items():
        print(f"failed, {row.subject}, {row.measure}: {failures[0][:300]}")
    for name, why in figures.absent.items():
        print(f"absent, {name}: {why[:300]}")
    print(f"{facts.cpus} cores, {facts.cpu_model}, load {host['load'][0]:.1f}, emulated: {host['emulated']}")


def main() -> None:
    """Measure Docker, if it is installed, then each tier."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", action="append", choices=TIERS)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--in-flight", type=int, action="append")
    parser.add_argument("--quick", action="store_true", help="under two minutes: 5 rounds, 1 and 10 at once")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rounds = min(given.rounds, 5) if given.quick else given.rounds
    counts = tuple(given.in_flight or ((1, 10) if given.quick else (1, 10, 50, 100)))
    # Random, so that nothing on the way compresses it.
    blob, figures = os.urandom((10 if given.quick else 50) << 20), Figures()
    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as scratch:
        (Path(scratch) / "blob").write_bytes(blob)
        try:
            with docker(Store(belljar_home()).find("default").rootfs) as client:
                time_docker(client, figures, rounds, counts, Path(scratch) / "blob")
        except SystemExit as missing:
            figures.absent["docker"] = str(missing)
    for tier in given.tier or TIERS:
        work = Workload(tier=tier, rounds=rounds, in_flight=counts, blob=blob)
        try:
            anyio.run(time_tier, work, figures, lambda text: print(text, file=sys.stderr))
        except (HostError, PolicyError) as error:
            figures.absent[tier] = str(error)
        except CellError as error:
            figures.fail(BenchRow(tier, Measure.LIFE), str(error))
    show(figures, as_json=given.json)


if __name__ == "__main__":
    main()
