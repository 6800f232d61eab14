"""Cells of each tier against Docker, in one run, on this machine: `python bench/bench_cells.py [--tiers …] [--rounds N] [--json]`.

What is compared: create → first output → destroyed against `docker run --rm` with the same command; an exec of `true` against `docker exec`; 50 MiB in and out against
`docker cp`; destroying; the quick probes; the memory of an idle microVM clone; whole commands. Medians (P50) and P95; the ratio is cell / Docker.
`cli_exec` is a whole command, `belljar exec` of `echo`, from its start to its end, against the same `docker run --rm`: Python's start and imports are
in it, with compiled bytecode as an installed package has it. `commands` are other whole commands, and what ten thousand old runs in the store add.
`check_cpu` is the processor time of `belljar check` of a compose file and of a Dockerfile. `--whole-commands` gives the figures of start-up alone.
`pool_whole_life` and `pool_first_output` are of cells made ahead: take → first output → destroyed. Their making and warming are *moved, not
saved*: they are done before and not timed.
`--snapshots`: `Cell.snapshot` of a used microVM, and its forks.
`--reverts`: `Cell.revert` of a used cell, cold and from a pool, verified or not, beside a cold create.
Rounds alternate between Docker and the tiers, so that a busy moment strikes all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
from peer import IMAGE, Docker, docker

from belljar.cell import Cell, Pool, open_cell, open_pool, start_run
from belljar.events import MemoryRecorder
from belljar.image import Store
from belljar.ledger import RunDirectory
from belljar.ledger.rundir import RUNS
from belljar.policy import LoadedPolicy, load_policy
from belljar.probe.model import Verdict
from belljar.probe.run import probe_cell
from belljar.store.home import belljar_home

FILE_MIB = 50
OLD_RUNS = 10_000
COMMANDS = ("--help", "ps", "runs", "plan low", "exec low -- echo hello")
TIERS = ("container", "gvisor", "microvm")


def _ms(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


ECHO = ("run", "--rm", "--network", "none", IMAGE, "echo", "hello")
NAMES = (
    "cli_exec",
    "whole_life",
    "first_output",
    "exec",
    "file_in",
    "file_out",
    "destroy",
    "pool_whole_life",
    "pool_first_output",
)


def docker_round(peer: Docker) -> float:
    """One `docker run --rm`, in milliseconds."""
    return _ms(lambda: peer.run(*ECHO))


def of_docker(peer: Docker, rounds: int) -> dict[str, list[float]]:
    """The peer's times in one container, in milliseconds."""
    name = peer.run("run", "-d", "--network", "none", IMAGE, "sleep", "3600").decode().strip()
    execs = [_ms(lambda: peer.run("exec", name, "true")) for _ in range(rounds)]
    with tempfile.TemporaryDirectory() as folder:
        blob = Path(folder) / "blob"
        blob.write_bytes(os.urandom(FILE_MIB << 20))
        file_in = [_ms(lambda: peer.run("cp", str(blob), f"{name}:/tmp/blob")) for _ in range(3)]
        file_out = [_ms(lambda: peer.run("cp", f"{name}:/tmp/blob", f"{folder}/back")) for _ in range(3)]
    destroy = [_ms(lambda: peer.run("rm", "-f", name))]
    return {"exec": execs, "file_in": file_in, "file_out": file_out, "destroy": destroy}


async def life(tier: str, run: RunDirectory, times: dict[str, list[float]]) -> Cell:
    """One cell's whole life with one command."""
    began = time.perf_counter()
    async with open_cell(policy_of(tier), run=run) as cell:
        output = await cell.exec(["echo", "hello"])
        if output.stdout != b"hello\n":
            raise SystemExit(f"a cell answered {output!r}")
        times["first_output"].append((time.perf_counter() - began) * 1e3)
    times["whole_life"].append((time.perf_counter() - began) * 1e3)
    if cell.destruction is None or not cell.destruction.clean:
        raise SystemExit(f"a {tier} cell was not destroyed clean: {cell.destruction}")
    times["destroy"].append(cell.destruction.duration_ms)
    return cell


async def life_from_pool(pool: Pool, times: dict[str, list[float]]) -> None:
    """One cell that was made ahead, with one command. The next is made when this one is gone, outside the timed part."""
    pool.refill()
    if not await pool.filled():
        raise SystemExit(f"no cell could be made ahead: {pool.counts}")
    began = time.perf_counter()
    async with pool.cell() as cell:
        output = await cell.exec(["echo", "hello"])
        if output.stdout != b"hello\n":
            raise SystemExit(f"a cell answered {output!r}")
        times["pool_first_output"].append((time.perf_counter() - began) * 1e3)
    times["pool_whole_life"].append((time.perf_counter() - began) * 1e3)


async def from_pools(
    tiers: list[str], run: RunDirectory, rounds: int, times: dict[str, dict[str, list[float]]]
) -> None:
    """Cells made ahead, one tier after the other."""
    for tier in tiers:
        async with open_pool(policy_of(tier), run=run) as pool:
            for _ in range(rounds):
                await life_from_pool(pool, times[tier])
            if pool.counts.taken != rounds:
                raise SystemExit(f"not every cell came from the pool: {pool.counts}")


async def measure(peer: Docker, tiers: list[str], rounds: int) -> dict[str, Any]:
    """Everything, in milliseconds."""
    times: dict[str, dict[str, list[float]]] = {tier: {name: [] for name in NAMES} for tier in tiers}
    docker_runs: list[float] = []
    notes: dict[str, Any] = {}
    with start_run("bench", "cells", sys.argv) as run:
        docker_round(peer)
        for tier in tiers:
            await life(tier, run, {name: [] for name in NAMES})  # not timed: it makes template or tree
            cli_ms("exec", "low", "--tier", tier, "--", "echo", "hello")  # its policy's own template
        for _ in range(rounds):
            docker_runs.append(docker_round(peer))
            for tier in tiers:
                times[tier]["cli_exec"].append(cli_ms("exec", "low", "--tier", tier, "--", "echo", "hello"))
                cell = await life(tier, run, times[tier])
                notes[tier] = {
                    "emulated": cell.emulated,
                    "timings_ms": {k: round(v, 1) for k, v in cell.timings_ms.items()},
                }
        await from_pools(tiers, run, rounds, times)
        for tier in tiers:
            async with open_cell(policy_of(tier), run=run) as cell:
                if tier == "microvm":
                    notes[tier]["private_memory_mib"] = private_memory_mib(cell)
                await _in_one_cell(cell, rounds, times[tier])
                notes[tier]["quick_probes_ms"] = await quick_probes_ms(cell)
    lives = ("cli_exec", "whole_life", "first_output", "pool_whole_life", "pool_first_output")
    theirs = dict.fromkeys(lives, docker_runs) | of_docker(peer, rounds)
    return {tier: {"rows": compare(times[tier], theirs), **notes[tier]} for tier in tiers}


def policy_of(tier: str) -> LoadedPolicy:
    """The same small policy for each tier."""
    text = f"belljar: 1\nrisk: low\ntier: {tier}\nresources: {{memory: 512MiB, disk: 256MiB}}\n"
    path = Path(tempfile.gettempdir()) / f"bench-{os.getpid()}-{tier}.yaml"
    path.write_text(text)
    try:
        return load_policy(path)
    finally:
        path.unlink()


async def quick_probes_ms(cell: Cell) -> float:
    """The quick set of probes in a running cell: the median of five."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        report = await probe_cell(cell, which="quick", recorder=MemoryRecorder())
        times.append((time.perf_counter() - began) * 1e3)
        if report.verdict is not Verdict.CONTAINED:
            raise SystemExit(f"the probes say {report.verdict}: {report.to_json()}")
    return round(statistics.median(times), 1)


async def revert_times(tier: str, rounds: int) -> dict[str, list[float]]:
    """A used cell reverted: cold, from a pool, and verified; beside a cold create. In milliseconds."""
    times: dict[str, list[float]] = {
        "cold_create": [],
        "revert_cold": [],
        "revert_pool": [],
        "revert_pool_verified": [],
    }

    async def timed(row: str, cell: Cell, *, verify: bool) -> None:
        await cell.exec(["sh", "-c", "echo used > /tmp/used"])
        began = time.perf_counter()
        await cell.revert(verify=verify)
        times[row].append((time.perf_counter() - began) * 1e3)

    with start_run("bench", "revert", sys.argv) as run:
        async with open_cell(policy_of(tier), run=run):
            pass  # it makes template or tree
        for _ in range(rounds):
            began = time.perf_counter()
            async with open_cell(policy_of(tier), run=run) as cell:
                times["cold_create"].append((time.perf_counter() - began) * 1e3)
                await timed("revert_cold", cell, verify=False)
        async with open_pool(policy_of(tier), run=run, size=2) as pool, pool.cell() as cell:
            for _ in range(rounds):
                for row, verify in (("revert_pool", False), ("revert_pool_verified", True)):
                    await pool.filled()
                    await timed(row, cell, verify=verify)
    return times


async def snapshot_times(rounds: int) -> dict[str, list[float]]:
    """A used machine of 512 MiB with 60 MB of data saved, forked until a ping is answered, and its
    first command. In milliseconds."""
    policy = {
        "belljar": 1,
        "risk": "low",
        "tier": "microvm",
        "user": "root",
        "snapshots": True,
        "resources": {"memory": "512MiB", "disk": "128MiB"},
    }
    times: dict[str, list[float]] = {"snapshot": [], "fork": [], "fork_first_command": []}
    async with open_cell(policy) as cell:
        await cell.exec(["sh", "-c", "head -c 60000000 /dev/urandom > /var/tmp/used"])
        for _ in range(rounds):
            began = time.perf_counter()
            snapshot = await cell.snapshot()
            saved = time.perf_counter()
            async with snapshot.fork() as fork:
                await fork.ping()
                forked = time.perf_counter()
                await fork.exec(["true"])
                times["fork_first_command"].append((time.perf_counter() - forked) * 1e3)
            times["snapshot"].append((saved - began) * 1e3)
            times["fork"].append((forked - saved) * 1e3)
    return times


async def _in_one_cell(cell: Cell, rounds: int, times: dict[str, list[float]]) -> None:
    for _ in range(rounds):
        began = time.perf_counter()
        await cell.exec(["true"])
        times["exec"].append((time.perf_counter() - began) * 1e3)
    blob = os.urandom(FILE_MIB << 20)
    for _ in range(3):
        began = time.perf_counter()
        await cell.write_file("/tmp/blob", blob)  # noqa: S108 - the guest's
        times["file_in"].append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        back = await cell.read_file("/tmp/blob", max_bytes=FILE_MIB << 20)  # noqa: S108 - the guest's
        times["file_out"].append((time.perf_counter() - began) * 1e3)
        if back != blob:
            raise SystemExit("a file came back changed")


def private_memory_mib(cell: Cell) -> float:
    """Memory that only this cell's VMM has (clean pages are the template's or the program's files): what one more idle clone costs."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (
                entry.name.isdigit()
                and (entry / "comm").read_text().startswith("qemu")
                and cell.id.encode() in (entry / "cmdline").read_bytes()
            ):
                rollup = (entry / "smaps_rollup").read_text().splitlines()
                kib = sum(int(line.split()[1]) for line in rollup if line.startswith("Private_Dirty"))
                return round(kib / 1024, 1)
    raise SystemExit("the cell's VMM was not found")


def cli_ms(*words: str) -> float:
    """One whole command, in milliseconds."""
    argv = [sys.executable, "-m", "belljar", *words]
    # Without bytecode a command compiles Belljar's source each time, as no installed package does.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return _ms(lambda: subprocess.run(argv, check=True, capture_output=True, env=environment))


def whole_commands(peer: Docker, tiers: list[str], rounds: int) -> dict[str, Any]:
    """`cli_exec` of each tier and `docker run --rm`, in turns."""
    times: dict[str, list[float]] = {tier: [] for tier in tiers}
    theirs: list[float] = []
    for number in range(rounds + 1):
        took_ms = {tier: cli_ms("exec", "low", "--tier", tier, "--", "echo", "hello") for tier in tiers}
        docker_ms = docker_round(peer)
        if number:  # the first makes bytecode, templates and trees
            theirs.append(docker_ms)
            for tier, ms in took_ms.items():
                times[tier].append(ms)
    return {tier: {"rows": compare({"cli_exec": times[tier]}, {"cli_exec": theirs})} for tier in tiers}


def commands_ms(rounds: int) -> dict[str, dict[str, float]]:
    """Whole commands in this store, and with ten thousand more runs in it, in turns."""
    alone: dict[str, list[float]] = {words: [] for words in COMMANDS}
    crowded: dict[str, list[float]] = {words: [] for words in COMMANDS}
    for _ in range(rounds):
        for words, times in alone.items():
            times.append(cli_ms(*words.split()))
        with old_runs(belljar_home() / RUNS):
            for words, times in crowded.items():
                times.append(cli_ms(*words.split()))
    medians = {words: (statistics.median(alone[words]), statistics.median(crowded[words])) for words in COMMANDS}
    return {words: {"ms": round(ms, 1), "old_runs_ms": round(old - ms, 1)} for words, (ms, old) in medians.items()}


def check_cpu(rounds: int) -> dict[str, float]:
    """The median processor time of `belljar check` of a file, in seconds."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        texts = {
            "compose.yaml": "services: {db: {image: default}, default: {image: default}}",
            "Dockerfile": "FROM default",
        }
        for name, text in texts.items():
            (Path(folder) / name).write_text(text)
            times = []
            for _ in range(rounds + 1):
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                subprocess.run(
                    [sys.executable, "-m", "belljar", "check", f"{folder}/{name}"], capture_output=True, check=False
                )  # exit 3: no image
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
            found[name] = round(statistics.median(times[1:]), 3)
    return found


@contextlib.contextmanager
def old_runs(runs: Path) -> Iterator[None]:
    """Ten thousand runs that sort before every other: copies of a finished one, by hard links."""
    finished = max(path.parent for path in runs.glob("*/manifest.json"))
    folders = [path.relative_to(finished) for path in finished.rglob("*") if path.is_dir()]
    files = [path.relative_to(finished) for path in finished.rglob("*") if path.is_file()]
    made = [runs / f"19700101-{number:09}-bench" for number in range(OLD_RUNS)]
    try:
        for path in made:
            for folder in (Path(), *folders):
                (path / folder).mkdir()
            for file in files:
                (path / file).hardlink_to(finished / file)
        yield
    finally:
        for path in made:
            shutil.rmtree(path, ignore_errors=True)


def compare(cells: dict[str, list[float]], peer: dict[str, list[float]]) -> dict[str, Any]:
    """Medians, 95th percentiles and ratios."""
    rows: dict[str, Any] = {}
    for name, times in cells.items():
        mine, theirs = statistics.median(times), statistics.median(peer[name])
        rows[name] = {
            "cell_ms": round(mine, 1),
            "p95_ms": round(percentile95(times), 1),
            "docker_ms": round(theirs, 1),
            "docker_p95_ms": round(percentile95(peer[name]), 1),
            "ratio": round(mine / theirs, 3),
        }
    for name in {"file_in", "file_out"} & cells.keys():
        rows[name]["cell_mib_per_s"] = round(FILE_MIB / statistics.median(cells[name]) * 1e3, 1)
    return rows


def percentile95(times: list[float]) -> float:
    """The smallest time that 95 % do not exceed."""
    return sorted(times)[max(0, -(-95 * len(times) // 100) - 1)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tiers", nargs="+", default=list(TIERS), choices=TIERS)
    parser.add_argument("--whole-commands", action="store_true", help="`cli_exec` and `commands` alone")
    parser.add_argument("--reverts", action="store_true", help="reverts alone, without Docker")
    parser.add_argument("--snapshots", action="store_true", help="snapshots of a machine alone")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.snapshots:
        for row, times in anyio.run(snapshot_times, arguments.rounds).items():
            print(f"{row:22} p50 {statistics.median(times):8.1f} ms  p95 {percentile95(times):8.1f} ms")
        return
    if arguments.reverts:
        for tier in arguments.tiers:
            for row, times in anyio.run(revert_times, tier, arguments.rounds).items():
                print(f"{tier:10} {row:22} p50 {statistics.median(times):8.1f} ms  p95 {percentile95(times):8.1f} ms")
        return
    with docker(Store(belljar_home()).find("default").rootfs) as peer:
        found = (
            whole_commands(peer, arguments.tiers, arguments.rounds)
            if arguments.whole_commands
            else anyio.run(measure, peer, arguments.tiers, arguments.rounds)
        )
    found["commands"] = commands_ms(arguments.rounds)
    found["check_cpu"] = check_cpu(arguments.rounds)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for tier in arguments.tiers:
        print(tier, {key: value for key, value in found[tier].items() if key != "rows"})
        for name, row in found[tier]["rows"].items():
            print(f"  {name:14}" + "".join(f"  {key} {value:>8}" for key, value in row.items()))
    print("belljar check, processor time in seconds", found["check_cpu"])
    for words, row in found["commands"].items():
        print("belljar", words, row)


if __name__ == "__main__":
    main()
