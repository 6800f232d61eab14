"""Waiting for what other processes do, and finding the VMM of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belljar.isolation.process import identify, is_alive, kill


def wait_for(condition: Callable[[], bool], what: str, *, within_s: float = 60) -> None:
    """Until it holds; the test fails when that takes too long."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {within_s} s")
        time.sleep(0.02)


def vmm_of(owner: int, *, within_s: float = 60) -> int:
    """The VMM below an owner, once there is one."""
    found: list[int] = []

    def look() -> bool:
        found.extend(pid for pid in _below(owner) if Path(f"/proc/{pid}/comm").read_text().startswith("qemu"))
        return bool(found)

    wait_for(look, "a VMM", within_s=within_s)
    return found[0]


def kill_tree(root: int) -> None:
    """Kill a process that those below it don't outlive, and wait until all of them are gone: they follow it a moment later."""
    doomed = [process for pid in (root, *_below(root)) if (process := identify(pid)) is not None]
    kill(doomed[0])
    wait_for(lambda: not any(is_alive(process) for process in doomed), f"the end of {root} and all below it")


def _below(pid: int) -> Iterator[int]:
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        yield int(child)
        yield from _below(int(child))
