"""Whole commands, Python's start and imports included: `python bench/bench_commands.py [--tiers …] [--rounds N] [--json]`.

`cli_exec` is `belljar exec` of `echo`, from its start to its end, in turns with `docker run --rm` of the same command, with compiled bytecode as an
installed package has it. `commands` are other whole commands, and what ten thousand old runs in the store add. `check_cpu` is the processor time of
`belljar check` of a compose file and of a Dockerfile. Cells, reverts, files and pools are measured by `bench_cells.py`.
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

from peer import IMAGE, Docker, docker

from belljar.image.store import Store
from belljar.ledger.rundir import RUNS
from belljar.store.home import belljar_home

OLD_RUNS = 10_000
COMMANDS = ("--help", "ps", "runs", "plan low", "exec low -- echo hello")
TIERS = ("container", "gvisor", "microvm")


def _ms(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


ECHO = ("run", "--rm", "--network", "none", IMAGE, "echo", "hello")


def docker_round(peer: Docker) -> float:
    """One `docker run --rm`, in milliseconds."""
    return _ms(lambda: peer.run(*ECHO))


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
    return rows


def percentile95(times: list[float]) -> float:
    """The smallest time that 95 % do not exceed."""
    return sorted(times)[max(0, -(-95 * len(times) // 100) - 1)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tiers", nargs="+", default=list(TIERS), choices=TIERS)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with docker(Store(belljar_home()).find("default").rootfs) as peer:
        found: dict[str, Any] = whole_commands(peer, arguments.tiers, arguments.rounds)
    found["commands"] = commands_ms(arguments.rounds)
    found["check_cpu"] = check_cpu(arguments.rounds)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for tier in arguments.tiers:
        print(tier)
        for name, row in found[tier]["rows"].items():
            print(f"  {name:14}" + "".join(f"  {key} {value:>8}" for key, value in row.items()))
    print("belljar check, processor time in seconds", found["check_cpu"])
    for words, row in found["commands"].items():
        print("belljar", words, row)


if __name__ == "__main__":
    main()
