"""A microVM's port, on this machine, as root: `python bench/bench_port.py [--rounds N] [--json]`.

Streams of TCP through the wire both ways, and round trips of a datagram, against a listener in a namespace beside it; what a port adds to a clone's start and end, clones
with and without in turn. The range is the tests' stand-in: no rules, no gateway. The store must have the guest kernel with its network driver (`belljar setup`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fakes.recorder import MemoryRecorder
from tests.integration.microvm_owner import parts
from tests.integration.vm_port import StandInRange, stand_in_range
from tests.integration.vm_port_owner import parts_with_nic

from belljar.channel import ExecRequest
from belljar.isolation.microvm.clone import open_vm
from belljar.isolation.microvm.vmm import Vmm
from belljar.store.home import belljar_home

STREAM_MIB, ROUND_TRIPS = 32, 2000
IN_GUEST = f"""
import json, os, socket, struct, time
size, found = {STREAM_MIB} << 20, {{}}
contents = os.urandom(1 << 20) * {STREAM_MIB}
for name, up, down in (("warm", 0, 1 << 20), ("out_mib_s", size, 0), ("in_mib_s", 0, size)):
    with socket.create_connection(("10.77.0.1", 80)) as s:
        began = time.monotonic()
        s.sendall(struct.pack("<QQ", up, down) + contents[:up])
        left = 64 + down
        while left:
            left -= len(s.recv(1 << 18))
        found[name] = (up + down) / 1048576 / (time.monotonic() - began)
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    s.connect(("10.77.0.53", 53))
    s.settimeout(5)
    for n in (100, {ROUND_TRIPS}):
        began = time.monotonic()
        for _ in range(n):
            s.send(bytes(60))
            s.recv(100)
        found["round_trip_ms"] = (time.monotonic() - began) * 1e3 / n
print(json.dumps(found))
"""


async def one(times: dict[str, list[float]], its_range: StandInRange | None, number: int) -> None:
    """A clone's start and end, and with a port what goes through it."""
    home, label = belljar_home(), "without" if its_range is None else "with"
    made = (parts if its_range is None else parts_with_nic)(home)
    port = None if its_range is None else its_range.port(number)
    began = time.perf_counter()
    async with open_vm(*made, home=home, recorder=MemoryRecorder(), planned={}, port=port) as vm:
        times[f"open_{label}_ms"].append((time.perf_counter() - began) * 1e3)
        if port is not None:
            await through(vm, times)
        times[f"destroy_{label}_ms"].append((await vm.destroy()).duration_ms)


async def through(vm: Vmm, times: dict[str, list[float]]) -> None:
    """Streams and round trips."""
    outcome = await vm.client.exec(ExecRequest(argv=("python3", "-c", IN_GUEST), timeout_s=300))
    if outcome.code:
        raise SystemExit(outcome.stderr.decode())
    for name, value in json.loads(outcome.stdout).items():
        times[name].append(value)


def measure(rounds: int) -> Mapping[str, Any]:
    """All figures: the median and the worst of each."""
    times: dict[str, list[float]] = defaultdict(list)

    async def all_rounds() -> None:
        with stand_in_range() as its_range:
            for kind in (None, its_range):  # the first makes the template
                await one(defaultdict(list), kind, 200)
            for number in range(rounds):
                await one(times, None, number)
                await one(times, its_range, number)

    anyio.run(all_rounds)
    del times["warm"]
    return {
        name: {"median": statistics.median(values), "least": min(values), "most": max(values)}
        for name, values in times.items()
    }


def main() -> None:
    """Print a table, or JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--json", action="store_true")
    given = options.parse_args()
    found = measure(given.rounds)
    if given.json:
        print(json.dumps(found))
        return
    for name, figures in found.items():
        print(f"{name:24} {figures['median']:10.2f}   {figures['least']:.2f} – {figures['most']:.2f}")


if __name__ == "__main__":
    main()
