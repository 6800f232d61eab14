"""A packet record read back by its own process, as whoever runs this: what is told, how the reader
is shut in, and what its bounds do to it."""

from __future__ import annotations

import os
import shutil
import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from belljar.network.capture.packets import HEADER
from belljar.network.owner.reading import Task, read_back
from tests.fakes.pcapng import OUT, block, packets
from tests.integration.range_programs.groups import controllers
from tests.integration.range_programs.ordinary import POUR
from tests.integration.range_programs.scene import Scene, cell

from belljar.events import MemoryRecorder
from belljar.network import ipc
from belljar.network.owner import reading
from belljar.network.owner.making import PACKETS_BESIDE
from belljar.network.owner.processes import shared_fork_server, wait_readable
from belljar.plan.addresses import RangeLayout, lay_out
from belljar.plan.network import NetworkBounds, NetworkPlan, PortPlan, StandInPlan

OTHER = StandInPlan(
    id="other", kind="cell", names=("other.example",), ports=(PortPlan(number=80, protocol="http"),)
)
PLAN = NetworkPlan(stand_ins=(OTHER,))
REQUEST = b"GET / HTTP/1.1\r\nHost: other.example\r\n\r\n"
SYN_ACK, ACK = 18, 16


def frame(
    layout: RangeLayout, flags: int, payload: bytes = b"", *, sequence: int = 1, port: int = 4000
) -> bytes:
    """A record of a segment between the agent and the other cell: a SYN-ACK is the other's. Its
    checksum is left to a device."""
    ends = [bytes(map(int, layout.cell(name).address.split("."))) for name in ("agent", "other")]
    ports = [port, 80]
    if flags == SYN_ACK:
        ends, ports, sequence = ends[::-1], ports[::-1], 0
    size = 20 + len(payload)
    pseudo = int.from_bytes(b"".join(ends) + struct.pack("!HH", 6, size), "big") % 0xFFFF
    tcp = struct.pack("!HHIIBBHHH", *ports, sequence, 1, 5 << 4, flags, 1000, pseudo, 0) + payload
    packet = struct.pack("!BBHHHBBH", 0x45, 0, 20 + size, 0, 0, 64, 6, 0) + b"".join(ends) + tcp
    ether = bytes(12) + b"\x08\0" + packet
    return block(10**9, ether, OUT)


def write(home: Path, frames: Sequence[bytes]) -> Path:
    """A packet record of them."""
    path = home / "packets.pcapng"
    path.write_bytes(b"".join((HEADER, *frames)))
    return path


async def read(home: Path) -> dict[str, Any]:
    """A request is told; one who has no memory or no time for it says nothing more, and it is said;
    who reads is shut in."""
    layout = lay_out(PLAN, ["agent"], random_bytes=os.urandom(16), avoid=[])
    with shared_fork_server(home):
        asked = write(home, [frame(layout, SYN_ACK), frame(layout, ACK, REQUEST)])
        plan = replace(PLAN, controllers=controllers())
        task = Task.of([asked], {}, range_id="r-1", layout=layout, network=plan)
        whole = told(task, home)
        parts = [frame(layout, ACK, bytes(50_000), sequence=1 + 50_000 * at) for at in range(80)]
        write(home, [frame(layout, SYN_ACK), *parts])
        no_memory = told(replace(task, memory_bytes=2 << 20), home)
        write(home, [frame(layout, SYN_ACK)] * 1_000_000)
        no_time = told(replace(task, processor_s=1), home)
        talks = [
            [frame(layout, SYN_ACK, port=at), frame(layout, ACK, REQUEST, port=at)]
            for at in range(1, 2000)
        ]
        write(home, [each for talk in talks for each in talk])
        shut_in = look(task, home)
    return {"whole": whole, "no_memory": no_memory, "no_time": no_time, "shut_in": shut_in}


async def two_files(home: Path) -> dict[str, Any]:
    """The disk has room for a packet record's files, and none to put them together."""
    disk = shutil.disk_usage(home / "small")
    scene = Scene(home, bounds=NetworkBounds(packet_record_bytes=disk.free * 7 // 8))
    scene.directory = home / "small"
    newer = scene.directory / PACKETS_BESIDE[0]
    async with scene.open() as made:
        with cell(made) as agent:
            await made.attach("agent", agent.pid)
            for _ in range(200):
                if newer.stat().st_size > disk.free // 5:
                    break
                agent.run(
                    sys.executable, "-I", "-c", POUR.replace("100", "10"), scene.layout.resolver
                )
                await made.check()  # what came until then is written
    return {
        **scene.summary(made),
        "limits": scene.data("limit.hit"),
        "frames": sum(1 for path in made.packet_files for _ in packets(path.read_bytes())),
        "files": [path.name for path in made.packet_files],
        "counters": dict(made.counters()),
    }


def told(task: Task, home: Path) -> list[dict[str, Any]]:
    """What is put on record."""
    recorder = MemoryRecorder()
    read_back(task, home=home, recorder=recorder)
    return [{"kind": str(event.kind), **event.data} for event in recorder.events]


def look(task: Task, home: Path) -> dict[str, Any]:
    """At a reader in the midst of its work, since nobody takes in what it says."""
    with reading.started(task, home) as reader:
        ipc.send(reader.end, {"go": True})
        wait_readable([reader.end.fileno()], 60)
        proc = Path(f"/proc/{reader.child.process.pid}")
        status = dict(
            line.split(":\t", 1)
            for line in (proc / "status").read_text().splitlines()
            if ":\t" in line
        )
        own = Path("/proc/self")
        links = {
            name: (proc / "ns" / name).readlink() != (own / "ns" / name).readlink()
            for name in ("net", "mnt")
        }
        uids = status["Uid"].split()
        return {
            "apart": links,
            "uids": uids,
            "groups": len(task.network.controllers),
            "own_groups": (proc / "cgroup").read_text().count("/cell-r-"),
            **{name: status[name] for name in ("CapEff", "CapBnd", "Seccomp", "NoNewPrivs")},
        }


SCENARIOS = {"read": read, "two_files": two_files}
