"""Cells against Docker, in one run, on this machine: `python bench/bench_cells.py [--rounds N] [--json]`.

What is compared: clone → first output against `docker run --rm`; an exec of `true` against `docker exec`; 50 MiB in and out against `docker cp`; destroying;
the private memory of an idle clone; the start of `belljar --help`. Medians; the ratio is cell / Docker.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from peer import IMAGE, Docker, docker

from belljar.cell import Cell, open_cell, start_run
from belljar.host.home import belljar_home
from belljar.image import Store

FILE_MIB = 50


def _ms(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1e3


def of_docker(peer: Docker, rounds: int) -> dict[str, list[float]]:
    """The peer's times, in milliseconds."""
    echo = ("run", "--rm", "--network", "none", IMAGE, "echo", "hello")
    peer.run(*echo)
    first = [_ms(lambda: peer.run(*echo)) for _ in range(rounds)]
    name = peer.run("run", "-d", "--network", "none", IMAGE, "sleep", "3600").decode().strip()
    execs = [_ms(lambda: peer.run("exec", name, "true")) for _ in range(rounds)]
    with tempfile.TemporaryDirectory() as folder:
        blob = Path(folder) / "blob"
        blob.write_bytes(os.urandom(FILE_MIB << 20))
        file_in = [_ms(lambda: peer.run("cp", str(blob), f"{name}:/tmp/blob")) for _ in range(3)]
        file_out = [_ms(lambda: peer.run("cp", f"{name}:/tmp/blob", f"{folder}/back")) for _ in range(3)]
    destroy = [_ms(lambda: peer.run("rm", "-f", name))]
    return {"first_output": first, "exec": execs, "file_in": file_in, "file_out": file_out, "destroy": destroy}


async def of_cells(rounds: int) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """The cells' times, in milliseconds, and what else was seen."""
    times: dict[str, list[float]] = {name: [] for name in ("first_output", "exec", "file_in", "file_out", "destroy")}
    notes: dict[str, Any] = {}
    with start_run("bench", "cells", sys.argv) as run:
        for number in range(rounds + 1):
            began = time.perf_counter()
            async with open_cell("high", run=run) as cell:
                if not number:  # the round that is not timed: it makes the template
                    notes["private_memory_mib"] = private_memory_mib(cell)
                output = await cell.exec(["echo", "hello"])
                if output.stdout != b"hello\n":
                    raise SystemExit(f"a cell answered {output!r}")
                if number:
                    times["first_output"].append((time.perf_counter() - began) * 1e3)
                if number == 1:
                    notes["emulated"] = cell.emulated
                    await _in_one_cell(cell, rounds, times)
                    notes["timings_ms"] = dict(cell.timings_ms)
            if number and cell.destruction is not None:
                times["destroy"].append(cell.destruction.duration_ms)
    return times, notes


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


def help_ms(rounds: int) -> list[float]:
    """Starting `belljar --help`."""
    argv = [sys.executable, "-m", "belljar", "--help"]
    return [_ms(lambda: subprocess.run(argv, check=True, capture_output=True)) for _ in range(rounds)]


def report(cells: dict[str, list[float]], peer: dict[str, list[float]], notes: dict[str, Any]) -> dict[str, Any]:
    """Medians and ratios."""
    rows: dict[str, Any] = {}
    for name, times in cells.items():
        mine, theirs = statistics.median(times), statistics.median(peer[name])
        rows[name] = {
            "cell_ms": round(mine, 1),
            "docker_ms": round(theirs, 1),
            "ratio": round(mine / theirs, 3),
            "cell_max_ms": round(max(times), 1),
        }
    for name in ("file_in", "file_out"):
        rows[name]["cell_mib_per_s"] = round(FILE_MIB / statistics.median(cells[name]) * 1e3, 1)
    return {"rows": rows, **notes}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rootfs = Store(belljar_home()).find("default").rootfs
    with docker(rootfs) as peer:
        theirs = of_docker(peer, arguments.rounds)
        mine, notes = anyio.run(of_cells, arguments.rounds)
    found = report(mine, theirs, notes | {"help_ms": round(statistics.median(help_ms(arguments.rounds)), 1)})
    if arguments.json:
        print(json.dumps(found, indent=2))
        return
    for name, row in found["rows"].items():
        print(f"{name:14}" + "".join(f"  {key} {value:>9}" for key, value in row.items()))
    print({key: value for key, value in found.items() if key != "rows"})


if __name__ == "__main__":
    main()
