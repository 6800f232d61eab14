"""What a range costs: its start, its end, a port, and the memory that is its own: `python bench/bench_range.py [--rounds N] [--serve MODULE:FUNCTION] [--json]`.

The fork server is started by a range that is not counted, and kept. Memory is what supervisor and gateway have private; their proportional share (PSS) of what the
fork server's forks share (the less, the more ranges there are); and `added`, what fork server and forks have together more than without the range. Medians (P50) and P95.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fakes.recorder import MemoryRecorder

from belljar.cell.parts import find_facts
from belljar.network.owner.processes import SERVE, RangeSpec
from belljar.network.owner.range import NetworkRange
from belljar.plan.addresses import RangeLayout, lay_out
from belljar.plan.network import NetworkPlan, PortPlan, StandInPlan

SHOP = StandInPlan(
    id="shop",
    kind="http",
    names=("shop.example",),
    ports=(PortPlan(number=80, protocol="http"),),
    settings={"routes": [{"path": "/", "body": "hello"}]},
)
NETWORK = NetworkPlan(stand_ins=(SHOP,), controllers=find_facts().cgroup.controllers)


def layout() -> RangeLayout:
    """Of a new range with one cell."""
    return lay_out(NETWORK, ["agent"], random_bytes=os.urandom(16), avoid=[])


def memory_mib(made: NetworkRange) -> dict[str, float]:
    """Of supervisor and gateway together, as the kernel counts."""
    return {
        "private": sum(size_mib(pid, "Private_Clean", "Private_Dirty") for pid in made.pids),
        "pss": sum(size_mib(pid, "Pss") for pid in made.pids),
    }


def size_mib(pid: int, *names: str) -> float:
    """The sum of these lines of the kernel's."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines())
    return sum(int(words[1]) for words in lines if words[0].rstrip(":") in names) / 1024


def family_mib(made: NetworkRange) -> float:
    """What the fork server and all its forks have together."""
    fork_server = Path(f"/proc/{made.pids[0]}/stat").read_text().rpartition(")")[2].split()[1]
    forks = Path(f"/proc/{fork_server}/task/{fork_server}/children").read_text().split()
    return sum(size_mib(int(pid), "Pss") for pid in (fork_server, *forks))


async def measure(rounds: int, serve: str) -> dict[str, list[float]]:
    """Every round's figures."""
    figures: dict[str, list[float]] = {
        name: [] for name in ("start_ms", "attach_ms", "destroy_ms", "private_mib", "pss_mib", "added_mib")
    }
    with tempfile.TemporaryDirectory() as folder:
        async with _range(Path(folder), serve) as first:
            for _ in range(rounds):
                with _cell() as pid:  # the kernel takes away a range's ports in its own time
                    await _round(Path(folder), serve, pid, figures, first)
    return figures


async def _round(home: Path, serve: str, pid: int, figures: dict[str, list[float]], first: NetworkRange) -> None:
    without_mib = family_mib(first)
    began = time.perf_counter()
    async with _range(home, serve) as made:
        figures["start_ms"].append((time.perf_counter() - began) * 1e3)
        began = time.perf_counter()
        await made.attach("agent", pid)
        figures["attach_ms"].append((time.perf_counter() - began) * 1e3)
        memory = memory_mib(made)
        figures["private_mib"].append(memory["private"])
        figures["pss_mib"].append(memory["pss"])
        figures["added_mib"].append(family_mib(first) - without_mib)
        began = time.perf_counter()
        destruction = await made.destroy()
        figures["destroy_ms"].append((time.perf_counter() - began) * 1e3)
    if not destruction.clean:
        raise SystemExit(f"a range was not destroyed clean: {destruction}")


def _range(home: Path, serve: str) -> Any:  # noqa: ANN401 - an async context manager
    directory = Path(tempfile.mkdtemp(dir=home))
    return NetworkRange(
        RangeSpec(network=NETWORK, layout=layout(), directory=directory, serve=serve),
        recorder=MemoryRecorder(),
        home=home,
    )


class _cell:  # noqa: N801 - used as a function
    """A process in a network namespace of its own."""

    def __enter__(self) -> int:
        words = ["unshare", "--net", "sh", "-c", "echo up; exec sleep 3600"]
        self._process = subprocess.Popen(words, stdout=subprocess.PIPE)
        if self._process.stdout is None or self._process.stdout.readline() != b"up\n":
            raise SystemExit("no cell: run it as root")
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--serve", default=SERVE)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    figures = anyio.run(measure, asked.rounds, asked.serve)
    table = {
        name: {"p50": round(statistics.median(values), 1), "p95": round(sorted(values)[int(len(values) * 0.95)], 1)}
        for name, values in figures.items()
    }
    if asked.json:
        print(json.dumps(table))
        return
    for name, row in table.items():
        print(f"{name:12} P50 {row['p50']:8.1f}   P95 {row['p95']:8.1f}")


if __name__ == "__main__":
    main()
