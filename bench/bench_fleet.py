"""What a fleet's head needs for many units, without cells: `python bench/bench_fleet.py [UNITS]…`

A node that isn't there sends a small sealed run for each unit; the head places, writes, verifies,
judges and records it. Without samples' logs to merge, which Inspect does in memory.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

from belljar.events import Event, Kind
from belljar.fleet import units
from belljar.fleet.archive import pack
from belljar.fleet.head import Head
from belljar.fleet.units import KIND, Node
from belljar.harness.host_processes import watched_host
from belljar.harness.options import SelectedTask
from belljar.ledger.keys import local_fingerprint
from belljar.ledger.rundir import RunDirectory
from belljar.policy.limits import Tier

units.MAX_UNIT_SAMPLES = 1  # type: ignore[misc]  # each unit has one sample


class Units:
    """An engine whose units have ended when they begin."""

    def __init__(self, archive: bytes, run_id: str) -> None:
        end = {"run_id": run_id, "exit_code": 0, "why": ""}
        self.items = [{"node": "n"}, archive, end, None]
        self.last_heard_s: dict[str, float] = {}
        self.is_stopping = False

    def start(self, _arguments: Sequence[Any], **_: Any) -> Iterator[Any]:  # noqa: ANN401
        """Begin a unit."""
        return iter(self.items)

    def ready(self, units: Sequence[Any], **_: float) -> Iterator[tuple[Any, Any]]:
        """Give the next item of each unit."""
        for unit in units:
            yield unit, next(unit)

    def watch(self, fleet: str, nodes: Sequence[str]) -> None:
        """Nothing to watch."""


def main(count: int) -> None:
    """Run so many units and print time and memory, in a process of its own."""
    with tempfile.TemporaryDirectory() as made:
        with RunDirectory(Path(made, "node"), "run", []) as unit:
            # Of an evaluation without a sample: interrupted, or its error would end the fleet.
            ended = {"interrupted": True, "stopped": False, "errors": []}
            unit.recorder.record(Event(kind=Kind.RUN_EVALUATED, data=cast("Any", ended)))
        engine = Units(b"".join(pack(unit.path)), unit.run_id)
        samples = tuple(f"s{number}" for number in range(count))
        task = SelectedTask(name="t", root=None, words=(), check_words=(), samples=samples, epochs=1, tier=Tier.CONTAINER)  # fmt: skip
        key = local_fingerprint(Path(made, "node")) or ""
        node = Node(node_id="n", name="n", key=key, cells=1)
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
        began_cpu = time.process_time()
        with RunDirectory(Path(made, "head"), KIND, []) as run, watched_host() as host:
            head = Head(task, cast("Any", engine), run, [node], host)
            head.run_all("w", require_contained=False)
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            f"{len(head.tries):,} units: {time.monotonic() - began:.1f} s, of which a processor "
            f"{time.process_time() - began_cpu:.1f} s, {after / 1024:.0f} MiB, "
            f"{(after - before) / 1024:.0f} MiB more than before; load {os.getloadavg()[0]:.1f}"
        )


if __name__ == "__main__":
    for words in sys.argv[1:] or ["1000", "10000"]:
        if (child := os.fork()) == 0:
            main(int(words))
            os._exit(0)
        os.waitpid(child, 0)
