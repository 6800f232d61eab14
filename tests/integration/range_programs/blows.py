"""Scenarios in which a range is struck: changed by hand, killed, stopped, or left without an
owner that listens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
from tests.fakes.recorder import MemoryRecorder
from tests.integration.range_programs.groups import shouted
from tests.integration.range_programs.scene import (
    TIMEOUT_S,
    Cell,
    Scene,
    cell,
    enter_user,
    fork_server_of,
    processes,
    within,
)

from belljar.errors import BelljarError
from belljar.events import Event
from belljar.network import ipc
from belljar.network.owner.range import NetworkRange
from belljar.process import ProcessId, is_alive


async def death(
    home: Path,
    strike: Callable[[NetworkRange], object],
    **options: Any,  # noqa: ANN401
) -> dict[str, Any]:
    scene = Scene(home)
    async with scene.open(**options) as made:
        with cell(made) as agent:
            await made.attach("agent", agent.pid)
            victims = processes(made)
            strike(made)
            told = await anyio.to_thread.run_sync(scene.died.wait, TIMEOUT_S)
            ended = within(lambda: not any(is_alive(process) for process in victims))
            shop = ("tcp", scene.address(), 80)
            # Nobody answers: a packet of a cell that is cut off may be lost
            refused = agent.talk(shop, within_s=2.0) if ended else []
            try:
                await made.check()
                checked = "nothing"
            except BelljarError as error:
                checked = type(error).__name__
    return {
        **scene.summary(made),
        "told": told,
        "ended": ended,
        "refused": refused,
        "checked": checked,
    }


@contextmanager
def network_of(made: NetworkRange) -> Iterator[Callable[..., str]]:
    """Runs commands in the range's network by hand, from outside, also when its processes have
    ended; what a command prints."""
    users = [] if made.user_namespace is None else [made.user_namespace]
    network = os.open(f"/proc/{made.pids[0]}/ns/net", os.O_RDONLY)

    def run(*argv: str) -> str:
        words = [*enter_user(users), "nsenter", f"--net=/proc/self/fd/{network}", *argv]
        fds = [*users, network]
        return subprocess.run(
            words, check=True, pass_fds=fds, timeout=300, stdout=subprocess.PIPE, text=True
        ).stdout

    try:
        yield run
    finally:
        os.close(network)


def flush(made: NetworkRange, argv: Sequence[str]) -> str:
    """Change the range's network by hand; what the command prints."""
    with network_of(made) as run:
        return run(*argv)


CHANGES = {
    "route": ("ip", "route", "add", "default", "dev", "lo"),
    "route of IPv6": ("ip", "-6", "route", "add", "2001:db8::/32", "dev", "lo"),
    "rule": ("ip", "rule", "add", "from", "10.0.0.0/8", "lookup", "77"),
    "forwarding": ("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"),
    "a port's own": (
        "sh",
        "-c",
        "for c in /proc/sys/net/ipv4/conf/[!adl]*/accept_source_route; do echo 1 > $c; done",
    ),
}


async def changed(home: Path) -> dict[str, Any]:
    """Ranges of which one thing each is changed by hand, then looked at; one is left alone."""
    seen: dict[str, Any] = {}

    async def one(name: str, change: Callable[[NetworkRange, Cell], object]) -> None:
        scene = Scene(home)
        async with scene.open(check_every_s=3600.0) as made:
            with cell(made) as agent:
                await made.attach("agent", agent.pid)
                await made.check()
                change(made, agent)
                try:
                    await made.check()
                    seen[name] = "nothing"
                except BelljarError as error:
                    seen[name] = f"{type(error).__name__}: {error.what}"
        if name == "nothing" and scene.deaths:
            seen[name] = f"its end in order: {scene.deaths[0]}"

    async with Scene(home).open() as kept:  # so that they have one fork server
        for name, argv in CHANGES.items():
            await one(name, lambda made, _, argv=argv: flush(made, argv))  # type: ignore[misc]
        with cell(kept) as other:
            if kept.user_namespace is None:
                await one(
                    "moved",
                    lambda _, agent: agent.run(
                        "ip", "link", "set", "eth0", "netns", str(other.pid)
                    ),
                )
        await one("nothing", lambda *_: None)
    return seen


async def hang(home: Path) -> dict[str, Any]:
    """Supervisor and gateway of two ranges are stopped; the gateway of a third shouts."""
    seen: dict[str, Any] = {}

    async def shout() -> None:
        seen["shouted"] = await shouted(home)

    async def one(which: int, name: str) -> None:
        stop = lambda made: os.kill(processes(made)[which].pid, signal.SIGSTOP)  # noqa: E731
        seen[name] = await death(home, stop, check_every_s=0.5, timeout_s=2.5)

    async with anyio.create_task_group() as tasks:
        for which, name in enumerate(("supervisor", "gateway")):
            tasks.start_soon(one, which, name)
        tasks.start_soon(shout)
    return seen


class Stuck(MemoryRecorder):
    """A ledger whose disk does not answer, from the first flow on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_stuck, self.freed = threading.Event(), threading.Event()

    def record(self, event: Event) -> int:
        if event.kind == "network.flow":
            self.is_stuck.set()
            self.freed.wait(2 * TIMEOUT_S)
        return super().record(event)


def small_pairs() -> AbstractContextManager[object]:
    pair = ipc.pair

    def small() -> tuple[socket.socket, socket.socket]:
        ends = pair()
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return ends

    return mock.patch.object(ipc, "pair", small)


async def deaf(home: Path) -> dict[str, Any]:
    scene = Scene(home)
    scene.recorder = recorder = Stuck()
    with small_pairs():
        async with scene.open(check_every_s=0.05, timeout_s=1.5) as made:
            supervisor, _ = processes(made)
            with cell(made) as agent, network_of(made) as network:
                await made.attach("agent", agent.pid)
                agent.talk(("tcp", scene.address(), 81))
                stuck = await anyio.to_thread.run_sync(recorder.is_stuck.wait, TIMEOUT_S)
                ended = within(lambda: not is_alive(supervisor))
                links = json.loads(network("ip", "-j", "link"))
                recorder.freed.set()
                told = await anyio.to_thread.run_sync(scene.died.wait, TIMEOUT_S)
    up = [link["ifname"] for link in links if "UP" in link["flags"]]
    return {**scene.summary(made), "stuck": stuck, "ended": ended, "up": up, "told": told}


async def ended(
    home: Path, strike: Callable[[Scene, ProcessId, Cell], object], timeout_s: float = TIMEOUT_S
) -> dict[str, Any]:
    """A blow to the supervisor, and then the end in order."""
    scene = Scene(home)
    with mock.patch("belljar.network.owner.watch._REPLY_TIMEOUT_S", timeout_s):
        async with scene.open() as made:
            with cell(made) as agent:
                await made.attach("agent", agent.pid)
                strike(scene, processes(made)[0], agent)
    return scene.summary(made)


def kill(which: int) -> Callable[[NetworkRange], None]:
    return lambda made: os.kill(processes(made)[which].pid, signal.SIGKILL)


async def killed(home: Path) -> dict[str, Any]:
    """Each part of a range, each in a range of its own."""
    return {
        "supervisor": await death(home, kill(0)),
        "gateway": await death(home, kill(1)),
        "fork_server": await death(
            home, lambda made: os.kill(fork_server_of(made), signal.SIGKILL)
        ),
    }


async def rules(home: Path) -> dict[str, Any]:
    strike = partial(flush, argv=("nft", "add", "table", "ip", "other"))
    return await death(home, strike, check_every_s=3600.0)


SCENARIOS: dict[str, Callable[[Path], Awaitable[dict[str, Any]]]] = {
    "hang": hang,
    "deaf": deaf,
    "changed": changed,
    "rules": rules,
    "killed": killed,
}
