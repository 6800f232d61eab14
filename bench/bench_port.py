"""A microVM's port, on this machine, as root: `python bench/bench_port.py [--rounds N] [--json]`.

Streams of TCP through the wire both ways, and round trips of a datagram, against a listener in a namespace beside it; what a port adds to a clone's start and end, clones
with and without in turn. The range is a bare namespace: no rules, no gateway. The store must have the guest kernel with its network driver (`belljar setup`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fakes.recorder import MemoryRecorder
from tests.integration.microvm_owner import parts

from belljar.channel import ExecRequest
from belljar.isolation.microvm.clone import open_vm
from belljar.isolation.microvm.vmm import Vmm
from belljar.isolation.renewal import PortSettings
from belljar.network.supervisor.links import switch_off_offloads
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
GATEWAY, RESOLVER, GATEWAY_MAC = "10.77.0.1", "10.77.0.53", "02:00:00:00:01:01"
SERVER = """
import socket, struct, threading
def streams(listener):
    while True:
        with listener.accept()[0] as end:
            file = end.makefile("rb")
            coming, wanted = struct.unpack("<QQ", file.read(16))
            while coming:
                coming -= len(file.read1(min(coming, 1 << 20)))
            end.sendall(bytes(64 + wanted))
datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
datagrams.bind(("10.77.0.53", 53))
listener = socket.create_server(("10.77.0.1", 80))
threading.Thread(target=streams, args=(listener,), daemon=True).start()
print("up", flush=True)
while True:
    content, peer = datagrams.recvfrom(65536)
    datagrams.sendto(content, peer)
"""


class Port:
    """A veth pair between a guest and the namespace of the process `there`."""

    range_id, user_namespace = "", None

    def __init__(self, there: int, number: int) -> None:
        self.there, self.device = there, f"p{number}"
        self.settings = PortSettings(
            address=IPv4Address(f"10.77.0.{10 + number}"),
            gateway=IPv4Address(GATEWAY),
            mac=f"02:00:00:00:00:{10 + number:02x}",
            gateway_mac=GATEWAY_MAC,
            resolver=IPv4Address(RESOLVER),
        )

    async def attach(self, pid: int) -> None:
        """As isolation has it."""
        await anyio.to_thread.run_sync(self._attach, pid)

    def _attach(self, pid: int) -> None:
        cell, device = self.settings, self.device
        ip(
            self.there,
            f"link add {device} address {GATEWAY_MAC} type veth peer name eth0 address {cell.mac} netns {pid}",
            f"link set {device} arp off up",
            f"route add {cell.address}/32 dev {device} src {GATEWAY}",
            f"neigh add {cell.address} lladdr {cell.mac} nud permanent dev {device}",
        )
        whole = f"{switch_off_offloads.__module__} as links; links.switch_off_offloads({device!r})"
        argv = [*_within(self.there), sys.executable, "-c", f"import {whole}"]
        subprocess.run(argv, check=True)  # packets are whole for a guest
        ip(
            pid,
            "link set eth0 up",
            f"address add {cell.address}/32 dev eth0",
            f"neigh add {GATEWAY} lladdr {GATEWAY_MAC} nud permanent dev eth0",
            f"route add {GATEWAY}/32 dev eth0 scope link",
            f"route add default via {GATEWAY} dev eth0 onlink",
        )


def _within(pid: int) -> list[str]:
    return ["nsenter", "--net", "--target", str(pid)]


def ip(pid: int, *commands: str) -> None:
    """In the network namespace of a process."""
    batch = "\n".join(commands)
    subprocess.run([*_within(pid), "ip", "-batch", "-"], input=batch, text=True, check=True)


@contextmanager
def bare_range() -> Iterator[int]:
    """A namespace with who listens: its process."""
    setup = f"ip link set lo up; ip address add {GATEWAY} dev lo; ip address add {RESOLVER} dev lo"
    argv = ["unshare", "--net", "sh", "-ec", f'{setup}; exec "$@"', "sh", sys.executable, "-c"]
    with subprocess.Popen([*argv, SERVER], stdout=subprocess.PIPE) as process:
        try:
            if process.stdout is None or process.stdout.readline() != b"up\n":
                raise SystemExit("no range")
            yield process.pid
        finally:
            process.kill()


async def one(times: dict[str, list[float]], its_range: int | None, number: int) -> None:
    """A clone's start and end, and with a port what goes through it."""
    home, label = belljar_home(), "without" if its_range is None else "with"
    plan, image, kernel = parts(home)
    made = (replace(plan, vm=replace(plan.vm, nic=its_range is not None)), image, kernel)
    port = None if its_range is None else Port(its_range, number)
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
        with bare_range() as its_range:
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
