"""How soon the kill switch halts cells.

    python bench/bench_kill.py [--tier TIER]… [--cells N]… [--rounds N] [--network]

Each cell counts as fast as it can and tells its clock every 2 ms (every half millisecond a cell, where
there are more); with `--network` it also sends packets as fast as it can, which are seen from the host,
in the range's namespace. All begin at the same time, when the last program stands. A process of its
own, which has imported everything, kills all at once. From that process' trip:

- `last sign`: until the last moment that a cell's own clock told (what was on its way is lost, so
  this is a lower bound of the last instruction);
- `no process left`: until the switch has seen that none of the cell's processes is there (an upper
  bound of the last instruction);
- `last packet`: until the last packet in the range's namespace, by the kernel's time.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from belljar import CellError, open_cell, open_range
from belljar.cell.cell import Cell
from belljar.cell.range import Range
from belljar.channel import Stream
from belljar.libc import enter_namespace
from belljar.network import syscalls
from belljar.store.home import belljar_home

COUNTING = """
import os, time
n, told = 0, 0
os.write(1, b"stands\\n")
while time.time() < {begin}:
    time.sleep(0.5)
while True:
    n += 1
    now = time.monotonic_ns()
    if now - told > {interval_ns}:
        told = now
        os.write(1, b"%d\\n" % now)
"""
SENDING = """
import socket, time
while time.time() < {begin}:
    time.sleep(0.5)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
while True:
    try:
        s.sendto(b"x" * 200, ("192.0.2.1", 9))
    except OSError:
        pass
"""
KILLER = """
import json, sys, time
from pathlib import Path
from belljar.isolation import kill, reap, survivors
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic_ns(), time.time_ns()
report = kill.kill_now(Path(sys.argv[1]), (), everything=True, reason="bench")
print(json.dumps([*began, [c.halted_ms for c in report.cells if c.kind == "cell"], report.ok]))
"""
POLICY = "belljar: 1\nrisk: low\ntier: {tier}\nresources: {{memory: {memory}, lifetime: 30m}}\n"
NETWORK = "network:\n  sink: true\n"
_SO_TIMESTAMPNS = 35
_ALL_PACKETS = 0x0003


@dataclass
class Counted:
    """One cell's clock as it was told, and when each part of it came."""

    last_ns: int = 0
    offset_ns: int | None = None
    rest: bytes = field(default=b"")
    stands: bool = False

    def take(self, chunk: bytes) -> None:
        """Some output of the program."""
        now = time.monotonic_ns()
        *lines, self.rest = (self.rest + chunk).split(b"\n")
        self.stands = True
        if lines and lines[-1].isdigit():
            self.last_ns = int(lines[-1])
            if self.offset_ns != 0:
                offset = now - self.last_ns
                self.offset_ns = offset if self.offset_ns is None else min(offset, self.offset_ns)

    def since_ms(self, trip_ns: int) -> float:
        """From the trip to its last sign, by this host's clock."""
        return (self.last_ns + (self.offset_ns or 0) - trip_ns) / 1e6


class Sniffer:
    """Every packet of a range's namespace, by the kernel's time."""

    def __init__(self, opened: Range) -> None:
        if opened.network is None:
            raise ValueError("a range without a network")
        packets = socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PACKETS)
        namespace = opened.network._pins["net"]
        with open("/proc/thread-self/ns/net", "rb") as home:  # noqa: PTH123 - a descriptor is wanted
            enter_namespace(namespace, syscalls.CLONE_NEWNET)
            try:
                self._socket = socket.socket(*packets)
            finally:
                enter_namespace(home.fileno(), syscalls.CLONE_NEWNET)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.settimeout(0.2)
        self.last_ns = self.packets = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.is_set():
            try:
                _, ancillary, _, _ = self._socket.recvmsg(64, 64)
            except TimeoutError:
                continue
            except OSError:
                return  # the namespace's devices went down
            self.packets += 1
            for _, _, data in ancillary:
                seconds, nanoseconds = struct.unpack("@ll", data[:16])
                self.last_ns = seconds * 1_000_000_000 + nanoseconds

    def end(self) -> None:
        """No more is read."""
        self._over.set()
        self._thread.join()
        self._socket.close()


@asynccontextmanager
async def standing(policy: Path, cells: int, *, network: bool) -> AsyncIterator[tuple[list[Cell], list[Sniffer]]]:
    """So many cells; what their end raises is the kill's doing."""
    made, sniffers = list[Cell](), list[Sniffer]()
    stack = AsyncExitStack()
    try:
        async with stack:
            for _ in range(cells):
                if network:
                    opened = await stack.enter_async_context(open_range(policy))
                    sniffers.append(Sniffer(opened))
                    made.append(opened.cell)
                else:
                    made.append(await stack.enter_async_context(open_cell(policy)))
            yield made, sniffers
    except CellError:
        pass


async def one_round(policy: Path, cells: int, *, network: bool) -> dict[str, list[float]]:
    """Every cell's figures."""
    # An owner that is flooded hears late; where the cell's clock is this host's it needs no offset.
    interval_ms = max(2, cells // 2)
    counted = [Counted(offset_ns=0 if policy.stem == "container" else None) for _ in range(cells)]
    killer = subprocess.Popen(  # noqa: ASYNC220 - it is ready long before it is needed
        [sys.executable, "-c", KILLER, str(belljar_home())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    async with standing(policy, cells, network=network) as (made, sniffers):
        async with anyio.create_task_group() as tasks:
            begin = str(time.time() + 10 + 4 * cells)
            counting = COUNTING.replace("{interval_ns}", str(interval_ms * 1_000_000)).replace("{begin}", begin)
            for cell, count in zip(made, counted, strict=True):
                tasks.start_soon(run, cell, counting, count)
                if network:
                    tasks.start_soon(run, cell, SENDING.replace("{begin}", begin), Counted())
                with anyio.fail_after(60):  # one after the other: all at once, none gets anywhere
                    while not count.stands:  # noqa: ASYNC110 - set by the program
                        await anyio.sleep(0.05)
            with anyio.fail_after(600):
                if time.time() > float(begin):
                    raise RuntimeError("the programs took too long to start")
                while not all(count.last_ns for count in counted):  # noqa: ASYNC110 - set by as many programs
                    await anyio.sleep(0.1)
            await anyio.sleep(3)
            said, _ = await anyio.to_thread.run_sync(killer.communicate, b"go\n")
        trip_ns, trip_real_ns, halted, ok = json.loads(said.splitlines()[-1])
        for sniffer in sniffers:
            sniffer.end()
    if not ok:
        raise RuntimeError("not all was halted, with proof")
    figures = {"last sign": [count.since_ms(trip_ns) for count in counted], "no process left": halted}
    if sniffers:
        figures["last packet"] = [(sniffer.last_ns - trip_real_ns) / 1e6 for sniffer in sniffers]
    return figures


async def run(cell: Cell, program: str, count: Counted) -> None:
    """Until the cell is killed."""

    def take(stream: Stream, chunk: bytes) -> None:
        if stream is Stream.STDOUT:
            count.take(chunk)

    try:
        await cell.exec(["python3", "-c", program], timeout_s=1200, on_output=take)
    except CellError:
        return
    raise RuntimeError("the program ended by itself")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that so many are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def main() -> None:
    """Print one line for each tier and number of cells."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", action="append", choices=("container", "gvisor", "microvm"))
    parser.add_argument("--cells", action="append", type=int)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--memory", default="128 MiB")
    parser.add_argument("--network", action="store_true")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for tier in words.tier or ("container", "gvisor", "microvm"):
            policy = Path(folder, f"{tier}.yaml")
            policy.write_text(POLICY.format(tier=tier, memory=words.memory) + (NETWORK if words.network else ""))
            for cells in words.cells or (1, 10, 50):
                figures: dict[str, list[float]] = {}
                for _ in range(words.rounds):
                    for name, values in anyio.run(partial(one_round, policy, cells, network=words.network)).items():
                        figures.setdefault(name, []).extend(values)
                load = Path("/proc/loadavg").read_text().split()[0]
                shown = "; ".join(
                    f"{name} P50 {percentile(values, 0.5):.1f} P99 {percentile(values, 0.99):.1f}"
                    for name, values in figures.items()
                )
                print(
                    f"{tier}, {cells} cells, {len(figures['last sign'])} samples, load {load}: {shown} ms", flush=True
                )


if __name__ == "__main__":
    main()
