"""Waiting for what other processes do and terminals show, finding the VMM of one, whether one is
ready for signals; `belljar run` started quickly."""

from __future__ import annotations

import fcntl
import os
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.integration.preloaded import ROOM
from tests.integration.remains import SERVERS_OF_TESTS
from tests.machine import PATIENCE_S

from belljar.process import identify, is_alive, kill

PRELOADED = Path(__file__).with_name("preloaded.py")
_preloaded: dict[str, subprocess.Popen[bytes]] = {}


def read_until(terminal: int, words: bytes, deadline_s: float = 120) -> bytes:
    seen, give_up = b"", time.monotonic() + deadline_s
    while words not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, give_up - time.monotonic()))
        assert ready, seen
        seen += os.read(terminal, 4096)
    return seen


def resize(terminal: int, rows: int, cols: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))


def quick_command(*arguments: str) -> list[str]:
    """`belljar ARGUMENTS…`, or `python -m MODULE…`, by a fork of a process that has imported what
    `run` imports of others (see `preloaded`). For commands that run to their end."""
    if not _preloaded:
        path = f"{tempfile.mkdtemp(prefix='preloaded-')}/socket"
        words = [sys.executable, str(PRELOADED), "server", path]
        env = {**os.environ, **ROOM}
        pipe = subprocess.PIPE
        started = subprocess.Popen(
            words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, cwd="/", env=env
        )
        assert started.stdout is not None
        assert started.stdout.readline() == b"ready\n"
        _preloaded[path] = started
        SERVERS_OF_TESTS.add(started.pid)
    return [sys.executable, "-I", "-S", str(PRELOADED), "client", *_preloaded, *arguments]


def ended(argv: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:  # noqa: ANN401 - as `subprocess.run`
    """A command that ran to its end, and what it printed."""
    given: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PATIENCE_S, **more}
    done: subprocess.CompletedProcess[str] = subprocess.run(argv, check=False, **given)
    return done


def end_preloaded() -> None:
    while _preloaded:
        path, process = _preloaded.popitem()
        process.communicate(timeout=PATIENCE_S)
        SERVERS_OF_TESTS.discard(process.pid)
        shutil.rmtree(Path(path).parent)


def wait_for(condition: Callable[[], bool], what: str, *, within_s: float = 60) -> None:
    """Until it holds; the test fails when that takes too long."""
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"{what}: not within {within_s} s")
        time.sleep(0.02)


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def capabilities(status: Mapping[str, str]) -> set[int]:
    return {int(status[f"Cap{name}"], 16) for name in ("Inh", "Prm", "Eff", "Bnd", "Amb")}


def vmm_of(owner: int, *, within_s: float = 60) -> int:
    found: list[int] = []

    def look() -> bool:
        found.extend(pid for pid in _below(owner) if _text(pid, "comm").startswith("qemu"))
        return bool(found)

    wait_for(look, "a VMM", within_s=within_s)
    return found[0]


def kill_tree(root: int) -> None:
    """Kill a process that those below it don't outlive, and wait until all are gone."""
    doomed = [process for pid in (root, *_below(root)) if (process := identify(pid)) is not None]
    kill(doomed[0])
    wait_for(
        lambda: not any(is_alive(process) for process in doomed),
        f"the end of {root} and all below it",
    )


def _below(pid: int) -> Iterator[int]:
    for child in _text(pid, f"task/{pid}/children").split():
        yield int(child)
        yield from _below(int(child))


def _text(pid: int, name: str) -> str:
    try:
        return Path("/proc", str(pid), name).read_text()
    except OSError:
        return ""
