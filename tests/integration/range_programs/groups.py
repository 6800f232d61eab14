"""Scenarios in which a gateway uses more than its range may."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from tests.integration.range_programs.scene import (
    GATEWAYS,
    TIMEOUT_S,
    Scene,
    cell,
    processes,
    within,
)

from belljar.cell.parts import find_facts
from belljar.errors import HostError
from belljar.isolation.cgroup import processes_in
from belljar.network.owner.range import NetworkRange
from belljar.plan.network import NetworkBounds
from belljar.store.journal import Journal

BURN = f"{GATEWAYS}:burn"
HOARD = f"{GATEWAYS}:hoard"
SHOUT = f"{GATEWAYS}:shout"
ASK = (
    "import socket, sys; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x',"
    " (sys.argv[1], 53))"
)


def controllers() -> tuple[str, ...]:
    return find_facts().cgroup.controllers


def groups_of(home: Path, made: NetworkRange) -> tuple[Path, ...]:
    entry = Journal(home).read(made.id)
    assert entry is not None
    return entry.cgroups


async def burnt(home: Path) -> dict[str, Any]:
    """Its gateway burns processor time that its group has not."""
    scene = Scene(home, controllers=controllers(), bounds=NetworkBounds(group_cpu_percent=20))
    async with scene.open(serve=BURN) as made:
        groups = groups_of(home, made)
        members = [sorted(processes_in(group)) for group in groups]
        ours = sorted(process.pid for process in processes(made))
        (cpu,) = [
            group
            for group in groups
            if (group / "cpu.stat").exists() and "nr_throttled" in _stat(group)
        ]
        throttled = await anyio.to_thread.run_sync(within, lambda: _stat(cpu)["nr_throttled"] > 0)
        await made.check()
    return {
        **scene.summary(made),
        "groups": [str(group) for group in groups],
        "members": members == [ours] * len(groups),
        "throttled": throttled,
        "left": [str(group) for group in groups if group.exists()],
    }


async def hoarded(home: Path) -> dict[str, Any]:
    bounds = NetworkBounds(group_memory_bytes=96 << 20, gateway_memory_bytes=1 << 30)
    scene = Scene(home, controllers=controllers(), bounds=bounds)
    async with scene.open(serve=HOARD) as made:
        groups = groups_of(home, made)
        with cell(made) as agent:
            # Only now: one that hoards sooner may end its range before it is up, which `open`
            # raises.
            await made.attach("agent", agent.pid)
            agent.run(sys.executable, "-I", "-c", ASK, scene.layout.resolver)
        told = await anyio.to_thread.run_sync(scene.died.wait, TIMEOUT_S)
    end = scene.data("range.destroyed")[-1]
    return {
        **scene.summary(made),
        "told": told,
        "counters": end["counters"],
        "groups": [str(group) for group in groups],
        "left": [str(group) for group in groups if group.exists()],
    }


async def shouted(home: Path) -> dict[str, Any]:
    scene = Scene(home)
    async with scene.open(serve=SHOUT, check_every_s=0.5, timeout_s=2.5) as made:
        with cell(made) as agent:
            await made.attach("agent", agent.pid)
            agent.run(sys.executable, "-I", "-c", ASK, scene.layout.resolver)
            told = await anyio.to_thread.run_sync(scene.died.wait, TIMEOUT_S)
    return {**scene.summary(made), "told": told}


async def no_groups(home: Path) -> dict[str, Any]:
    """Controllers that the plan counts on and this host has not."""
    scene = Scene(home, controllers=("no-such-controller",))
    error = ""
    try:
        async with scene.open():
            pass
    except HostError as exc:
        error = type(exc).__name__
    return {"error": error, "journal": sorted(path.name for path in (home / "journal").glob("*"))}


async def all_groups(home: Path) -> dict[str, Any]:
    return {each.__name__: await each(home) for each in (burnt, hoarded, no_groups)}


def _stat(group: Path) -> dict[str, int]:
    lines = (line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines}


SCENARIOS: dict[str, Callable[[Path], Awaitable[dict[str, Any]]]] = {"groups": all_groups}
