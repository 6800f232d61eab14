"""Scenarios in which a cell sends as much as it can: at a range's end, while its supervisor or
its owner is late, and all the time."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
from tests.integration.range_programs.blows import Stuck, flush, small_pairs
from tests.integration.range_programs.scene import SHOP, TIMEOUT_S, Scene, cell, processes, within

from belljar.network.owner.processes import SERVE
from belljar.network.owner.range import NetworkRange
from belljar.plan.network import NetworkBounds, PortPlan, StandInPlan
from belljar.plan.rules import DropReason, counts

BURST = """
import itertools, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
ports = itertools.cycle(range(1, 65536))
for _ in range(int(sys.argv[2])):
    s.sendto(b"burst", (sys.argv[1], next(ports)))
"""


def refused_by_the_host(made: NetworkRange) -> int:
    """How many packets the rules have counted, by this host's own tool."""
    listed = json.loads(flush(made, ["nft", "-j", "list", "counters", "table", "inet", "range"]))
    return sum(counts(listed).values())


async def last_words(home: Path) -> dict[str, Any]:
    """A range that is ended at once after a burst of refused datagrams, more than its rules log; and
    one that is ended within a burst, while its supervisor was stopped: more than the kernel has
    room for."""
    few = NetworkBounds(refusals_burst=100, refusals_per_s=1)
    all_logged = NetworkBounds(refusals_burst=30_000, queries_burst=30_000)
    async with Scene(home).open():  # so that they have one fork server
        return {
            "rounds": [
                await last_word(home, 1_000, few, is_stopped=False),
                await last_word(home, 20_000, all_logged, is_stopped=True),
            ]
        }


async def last_word(
    home: Path, sent: int, bounds: NetworkBounds, *, is_stopped: bool
) -> dict[str, Any]:
    """One range: what was sent, what the host counted then, what the range says at its end."""
    scene = Scene(home, bounds=bounds)
    burst = (sys.executable, "-I", "-c", BURST, scene.address())
    async with scene.open() as made:
        with cell(made) as agent, contextlib.ExitStack() as held:
            await made.attach("agent", agent.pid)
            supervisor, _ = processes(made)
            if is_stopped:
                os.kill(supervisor.pid, signal.SIGSTOP)
            agent.run(*burst, str(sent))
            within(lambda: refused_by_the_host(made) >= sent)  # the last of them wait in its queue
            seen = refused_by_the_host(made)
            if is_stopped:
                held.enter_context(agent.going_on(*burst, str(1 << 30)))
                within(lambda: refused_by_the_host(made) > seen)
            os.kill(supervisor.pid, signal.SIGCONT)
            await made.destroy()
    counters = made.counters()
    return {
        "sent": sent,
        "seen": seen,
        "goes_on": is_stopped,
        "counted": sum(counters[reason] for reason in DropReason),
        "told": sum(flow["count"] for flow in scene.data("network.flow")),
        "events": len(scene.data("network.flow")),
        "logs_lost": counters["logs_lost"],
        "only_counted": counters["only_counted"],
        "deaths": [error.what for error in scene.deaths],
    }


async def late(home: Path) -> dict[str, Any]:
    """The owner takes in nothing for a while, in which a cell goes on sending."""
    scene = Scene(home)
    scene.recorder = recorder = Stuck()

    def recorded_bytes() -> int:
        return sum(path.stat().st_size for path in scene.directory.iterdir())

    with small_pairs():
        async with scene.open(check_every_s=0.05) as made:
            with cell(made) as agent:
                await made.attach("agent", agent.pid)
                agent.run(sys.executable, "-I", "-c", BURST, scene.address(), "100")
                stuck = await anyio.to_thread.run_sync(recorder.is_stuck.wait, TIMEOUT_S)
                agent.run(sys.executable, "-I", "-c", BURST, scene.address(), "5000")
                written = within(lambda: recorded_bytes() > 5000 * 60)
                recorder.freed.set()
    counters = dict(made.counters())
    return {**scene.summary(made), "stuck": stuck, "written": written, "counters": counters}


async def heavy(home: Path, most_bytes: int) -> dict[str, Any]:
    """One cell sends to another as fast as it can, and then small datagrams, which are refused."""
    shop = replace(SHOP, settings={"routes": [{"path": "/", "body": "hello"}]})
    scene = Scene(home, stand_ins=(shop, OTHER))
    async with scene.open(serve=SERVE) as made:
        with cell(made) as agent, cell(made) as other:
            await made.attach("agent", agent.pid)
            await made.attach("other", other.pid)
            take = (sys.executable, "-I", "-c", TAKE)
            async with anyio.create_task_group() as tasks:
                seen: dict[str, Any] = {}

                async def receive() -> None:
                    seen["taken"] = json.loads(
                        await anyio.to_thread.run_sync(functools.partial(other.run, *take))
                    )

                tasks.start_soon(receive)
                words = (SEND, scene.layout.cell("other").address, str(most_bytes))
                send = functools.partial(agent.run, sys.executable, "-I", "-c", *words)
                seen["sent_s"] = json.loads(await anyio.to_thread.run_sync(send))
            seen["burst"] = most_bytes // 2048
            before = refused_by_the_host(made)
            agent.run(sys.executable, "-I", "-c", BURST, scene.address(), str(seen["burst"]))
            within(lambda: refused_by_the_host(made) >= before + seen["burst"])
            seen["line_bytes_per_s"] = agent.queue()["options"]["rate"]
    return {**scene.summary(made), **seen, "counters": dict(made.counters())}


OTHER = StandInPlan(
    id="other",
    kind="cell",
    names=("other.example",),
    ports=(PortPlan(number=9000, protocol="tcp"),),
)
TAKE = """
import socket
with socket.create_server(("0.0.0.0", 9000)) as server:
    connection, _ = server.accept()
taken = 0
while got := len(connection.recv(1 << 20)):
    taken += got
print(taken)
"""
SEND = """
import json, socket, sys, time
while True:
    try:
        s = socket.create_connection((sys.argv[1], 9000))
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
began, left = time.monotonic(), int(sys.argv[2])
while left > 0:
    left -= s.send(bytes(min(left, 1 << 20)))
s.shutdown(socket.SHUT_WR)
s.recv(1)
print(time.monotonic() - began)
"""


SCENARIOS: dict[str, Callable[[Path], Awaitable[dict[str, Any]]]] = {
    "last_words": last_words,
    "late": late,
    "heavy": lambda home: heavy(home, 8 << 20),
}
