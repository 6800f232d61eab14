"""The process beside each unit: it ends the unit when the head or the Ray worker is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

# Ends with 7 when asked to, as `belljar run` ends with 130.
COMMAND = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
time.sleep(60)
"""


def start(lease: Path, timeout_s: float, command: str = COMMAND) -> subprocess.Popen[str]:
    """A guard with a command, once that is ready."""
    lease.write_text("1 go on")
    words = [sys.executable, "-m", "belljar.fleet.guard", str(lease), str(timeout_s)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [*words, sys.executable, "-c", command], stdin=pipe, stdout=pipe, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_command_ends_by_itself(tmp_path: Path) -> None:
    """Its exit code is the guard's."""
    with start(tmp_path / "lease", 60, "print('ready', flush=True); raise SystemExit(3)") as guard:
        assert guard.wait(30) == 3


@pytest.mark.parametrize("event", ["stop", "silence", "worker", "guard"])
def test_a_command_is_interrupted(tmp_path: Path, event: str) -> None:
    """When the head says so, when it says nothing for too long, when the worker or the guard itself
    is gone: nothing is left running unwatched."""
    lease = tmp_path / "lease"
    with start(lease, 2.0 if event == "silence" else 60) as guard:
        assert guard.stdin is not None
        assert guard.stdout is not None
        if event == "stop":
            lease.write_text("2 stop")
        elif event == "worker":
            guard.stdin.close()
        elif event == "guard":
            guard.kill()
        assert guard.stdout.read() == ""  # ends when the command has closed it
        assert guard.wait(30) == (-9 if event == "guard" else 7)


def test_signs_of_life_keep_it(tmp_path: Path) -> None:
    """The lease is renewed for longer than its time."""
    lease = tmp_path / "lease"
    with start(lease, 5.0) as guard:
        ends_s, number = time.monotonic() + 7.0, 0
        while time.monotonic() < ends_s:
            number += 1
            lease.write_text(f"{number} go on")
            with pytest.raises(subprocess.TimeoutExpired):
                guard.wait(0.2)
        assert guard.wait(30) == 7
