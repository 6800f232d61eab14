"""How fast the ledger is: events recorded per second, and how fast they verify.

    python bench/bench_ledger.py [--events N] [--json]

Each case is a real run directory on the disk, with its checkpoints, sealed and verified. "with bodies": every other
event carries 1 KiB that no other event has.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from belljar.events import Actor, Body, Event, Kind
from belljar.ledger.rundir import RunDirectory
from belljar.ledger.verification import Status, verify


def events(count: int, *, bodies: bool) -> Iterator[Event]:
    """What commands leave: started, completed, in turn."""
    for index in range(count):
        if index % 2 == 0:
            data = {
                "op": index,
                "argv": ["bash", "--login", "-c", f"python3 solve.py --step {index}"],
                "cwd": "/home/agent",
                "user": "agent",
                "env_names": ["HOME", "LANG", "PATH"],
                "env_sha256": "0" * 64,
                "stdin": False,
                "timeout_s": 30,
            }
            yield Event(kind=Kind.EXEC_STARTED, cell_id="c-0123456789ab", actor=Actor.HARNESS, data=data)  # type: ignore[arg-type]
            continue
        content = index.to_bytes(8, "big") * 128
        stdout = Body(name="stdout", content=content, total_bytes=1024, sha256=hashlib.sha256(content).hexdigest())
        yield Event(
            kind=Kind.EXEC_COMPLETED,
            cell_id="c-0123456789ab",
            data={
                "op": index - 1,
                "status": "exited",
                "code": 0,
                "stdout_bytes": 1024,
                "stderr_bytes": 0,
                "stdout_dropped_bytes": 0,
                "stderr_dropped_bytes": 0,
                "duration_ms": 12.345,
            },
            bodies=(stdout,) if bodies else (),
        )


def measure(home: Path, count: int, *, bodies: bool) -> dict[str, float]:
    """One run: record, seal, verify."""
    prepared = list(events(count, bodies=bodies))
    took_us: list[float] = []
    with RunDirectory(home, "bench", ["bench"]) as run:
        began = time.perf_counter()
        for event in prepared:
            at = time.perf_counter()
            run.recorder.record(event)
            took_us.append((time.perf_counter() - at) * 1e6)
        recorded_s = time.perf_counter() - began
        began = time.perf_counter()
    sealed_s = time.perf_counter() - began
    began = time.perf_counter()
    result = verify(run.path)
    verified_s = time.perf_counter() - began
    if result.status is not Status.VERIFIED:
        raise RuntimeError(f"the run does not verify: {result.problem}")
    took_us.sort()
    return {
        "events": count,
        "events_per_s": round(count / recorded_s),
        "record_p50_us": round(statistics.median(took_us), 1),
        "record_p99_us": round(took_us[int(len(took_us) * 0.99)], 1),
        "record_max_ms": round(took_us[-1] / 1000, 1),
        "seal_ms": round(sealed_s * 1000, 1),
        "checkpoints": result.checkpoints,
        "ledger_bytes_per_event": round((run.path / "ledger.jsonl").stat().st_size / result.events),
        "verified_events_per_s": round(result.events / verified_s),
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, object] = {
            "plain": measure(Path(folder), options.events, bodies=False),
            "with_bodies": measure(Path(folder), options.events // 10, bodies=True),
        }
    figures["peak_memory_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if options.json:
        print(json.dumps(figures))
        return
    for case, values in figures.items():
        print(f"{case}: {values}" if not isinstance(values, dict) else f"{case}:")
        for name, value in values.items() if isinstance(values, dict) else ():
            print(f"  {name:<24}{value:>12,}")


if __name__ == "__main__":
    main()
