"""Scenarios of what a range does by itself: what its cells reach, what its gateway may do, and what
happens when it breaks the protocol or its record is full."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from tests.fakes.recorder import MemoryRecorder
from tests.integration.range_programs.scene import (
    GATEWAYS,
    PROBING,
    SHOP,
    TIMEOUT_S,
    Cell,
    Scene,
    cell,
    fork_server_of,
    processes,
    status_of,
    within,
)

from belljar.dataclass import json_of
from belljar.errors import BelljarError
from belljar.events import Event
from belljar.network.owner.processes import PACKETS
from belljar.network.owner.range import NetworkRange
from belljar.plan.network import PortPlan


def gone_from(living: Cell) -> bool:
    """Whether the cell's device goes with the range's namespace: nothing holds that any more."""
    return within(
        lambda: [link["ifname"] for link in json.loads(living.run("ip", "-j", "link"))] == ["lo"]
    )


async def talk(home: Path) -> dict[str, Any]:
    """Two cells talk to what is there and what is not."""
    scene = Scene(home)
    async with scene.open() as made:
        with cell(made) as early:  # a start that is tried again makes its port anew
            await made.attach("agent", early.pid)
        with cell(made) as agent, cell(made) as other:
            await made.attach("agent", agent.pid)
            await made.attach("other", other.pid)
            shop, neighbour = scene.address(), scene.layout.cell("other").address
            said = agent.talk(
                *(("tcp", shop, 80), ("tcp", shop, 8080), ("udp", scene.layout.resolver, 53)),
                *(("tcp", scene.layout.resolver, 53), ("tcp", shop, 81)),
                *((kind, "203.0.113.7", 443) for kind in ("tcp", "udp")),
                *(("tcp", neighbour, 22), ("tcp", "169.254.169.254", 80)),
            )
            also = other.talk(("tcp", shop, 80))
            inside = [agent.run("ip", "-j", what) for what in ("addr", "route", "neigh")]
            await made.check()
            counters = dict(made.counters())
            supervisor, gateway = map(status_of, processes(made))
            await made.destroy()
            gone = gone_from(agent)
    return {
        **scene.summary(made),
        "said": said,
        "also": also,
        "inside": [json.loads(text) for text in inside],
        "layout": json_of(scene.layout),
        "counters": counters,
        "status": {"supervisor": supervisor, "gateway": gateway},
        "flows": scene.data("network.flow"),
        "streams": scene.data("network.stream"),
        "device_gone": gone,
        "pcap": (scene.directory / PACKETS).read_bytes().hex(),
        "files": sorted(path.name for path in scene.directory.iterdir()),
        "certificate": made.certificate.decode(),
    }


async def hold(home: Path) -> dict[str, Any]:
    first, second = Scene(home), Scene(home)
    async with first.open() as one, second.open() as two:
        with cell(one) as agent:
            await one.attach("agent", agent.pid)
            pids = [*one.pids, *two.pids, fork_server_of(one)]
            print(json.dumps({"pids": pids, "cell": agent.pid}), flush=True)
            await anyio.sleep_forever()
    return {}


async def many(home: Path) -> dict[str, Any]:
    """Eight ranges at once: each answers its own cell, and none another's."""
    scenes = [Scene(home) for _ in range(8)]
    opened: list[NetworkRange] = []
    said: dict[int, list[str]] = {}
    fork_servers: set[int] = set()

    async def one(index: int, everyone: anyio.Event) -> None:
        scene = scenes[index]
        async with scene.open() as made:
            opened.append(made)
            fork_servers.add(fork_server_of(made))
            if len(opened) == len(scenes):
                everyone.set()
            await everyone.wait()
            with cell(made) as agent:
                await made.attach("agent", agent.pid)
                next_one = scenes[(index + 1) % len(scenes)]
                asked = (("tcp", scene.address(), 80), ("tcp", next_one.address(), 80))
                said[index] = await anyio.to_thread.run_sync(functools.partial(agent.talk, *asked))

    everyone = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for index in range(len(scenes)):
            tasks.start_soon(one, index, everyone)
    ends = [made.destruction for made in opened if made.destruction is not None]
    return {
        "said": [said[index] for index in sorted(said)],
        "clean": len(ends) == len(opened) and all(end.clean for end in ends),
        "survivors": [what for end in ends for what in end.survivors],
        "unproven": [str(what) for end in ends for what in end.unproven],
        "deaths": [str(error) for scene in scenes for error in scene.deaths],
        "fork_servers": len(fork_servers),
        "journal": sorted(path.name for path in (home / "journal").glob("*")),
    }


async def shut_in(home: Path) -> dict[str, Any]:
    """What a gateway can do from inside its confinement, in its own words."""
    files = home / "files"
    files.mkdir()
    (files / "index").write_text("of the shop")
    files.chmod(0o755)
    (files / "index").chmod(0o644)
    scene = Scene(home, stand_ins=(replace(SHOP, directory=files),))
    async with scene.open(serve=PROBING) as made:
        with cell(made) as agent:
            await made.attach("agent", agent.pid)
            agent.talk(("tcp", scene.address(), 80))
            within(lambda: bool(scene.data("network.attempt")))
    return {**scene.summary(made), "tried": scene.data("network.attempt")[0]["tried"]}


async def violation(home: Path, gateway: str) -> dict[str, Any]:
    scene, asked = Scene(home), list[bytes]()

    def answer(_kind: str, body: bytes) -> bytes:
        asked.append(body)
        return b"{}"

    try:
        async with scene.open(serve=f"{GATEWAYS}:{gateway}", answer=answer):
            await anyio.to_thread.run_sync(scene.died.wait, TIMEOUT_S)
    except BelljarError as error:  # it may lie before the range is up
        print(type(error).__name__, file=sys.stderr)
    return {
        "asked": len(asked),
        "deaths": [type(error).__name__ for error in scene.deaths],
        "reasons": [data["reason"] for data in scene.data("range.failed")],
        "destroyed": [data["clean"] for data in scene.data("range.destroyed")],
    }


async def unrecorded(home: Path) -> dict[str, Any]:
    scene = Scene(home)

    class Full(MemoryRecorder):
        def record(self, event: Event) -> int:
            if event.kind == "network.stream":
                raise OSError(28, "No space left on device")
            return super().record(event)

    scene.recorder = Full()
    async with scene.open() as made:
        with cell(made) as agent:
            await made.attach("agent", agent.pid)
            said = agent.talk(("tcp", scene.address(), 80))
            await anyio.to_thread.run_sync(scene.died.wait, TIMEOUT_S)
    return {**scene.summary(made), "said": said}


READ_ALL = """
import socket, sys
with socket.create_connection((sys.argv[1], int(sys.argv[2])), 30) as sock:
    sock.sendall(b"hello")
    while sock.recv(1 << 16):
        pass
"""


async def says_less(home: Path) -> dict[str, Any]:
    """Gateways that answer, and say less of it than they must."""
    seen: dict[str, Any] = {}
    tls = PortPlan(number=443, protocol="tls")
    for name, port in {
        "say_nothing": 80,
        "say_no_exchange": 80,
        "say_no_tls": 443,
        "keep_secrets": 443,
    }.items():
        scene = Scene(home, stand_ins=(replace(SHOP, ports=(*SHOP.ports, tls)),))
        async with scene.open(serve=f"{GATEWAYS}:{name}") as made:
            with cell(made) as agent:
                await made.attach("agent", agent.pid)
                agent.run(sys.executable, "-I", "-c", READ_ALL, scene.address(), str(port))
                with contextlib.suppress(BelljarError):
                    await made.check()
        counters = scene.data("range.destroyed")[0]["counters"]
        reasons = [data["reason"] for data in scene.data("range.failed")]
        seen[name] = {"reasons": reasons, "unreported": counters["unreported_at_end"]}
    return seen


async def broken(home: Path) -> dict[str, Any]:
    lies = {name: await violation(home, name) for name in ("lie", "ask_model")}
    return {**lies, "unrecorded": await unrecorded(home)}


async def full_disk(home: Path) -> dict[str, Any]:
    scene = Scene(home)
    scene.directory = home / "small"
    async with scene.open() as made:
        with cell(made) as agent:
            await made.attach("agent", agent.pid)
            for _ in range(200):
                if scene.died.is_set():
                    break
                agent.run(sys.executable, "-I", "-c", POUR, scene.layout.resolver)
    return scene.summary(made)


POUR = """
import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for _ in range(100):
    s.sendto(bytes(1400), (sys.argv[1], 53))
"""


SCENARIOS: dict[str, Callable[[Path], Awaitable[dict[str, Any]]]] = {
    "talk": talk, "hold": hold, "many": many, "shut_in": shut_in, "broken": broken,
    "says_less": says_less,
}  # fmt: skip
