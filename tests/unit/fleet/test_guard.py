"""The process beside each unit: it ends the unit when the head or the Ray worker is gone."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

# Ends with 7 when asked to, as `belljar run` ends with 130.
COMMAND = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print("ready", flush=True)
time.sleep(60)
"""
TIMES_S = {"silence": 5.0, "renewed": 4.0}  # of leases; 60 where that is not the subject


def start(lease: Path, command: str = COMMAND) -> subprocess.Popen[str]:
    lease.write_text("1 go on")
    words = [sys.executable, "-m", "belljar.fleet.guard", str(lease)]
    argv = [*words, str(TIMES_S.get(lease.name, 60)), sys.executable, "-c", command]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)


def test_nothing_runs_unwatched(tmp_path: Path) -> None:
    """A command is interrupted when the head says so or says nothing for too long, and when the
    worker or the guard itself is gone; not while the lease is renewed, for longer than its time.
    Its exit code is the guard's."""
    with ExitStack() as stack:
        ended = stack.enter_context(start(tmp_path / "itself", "raise SystemExit(3)"))
        guards = dict[str, subprocess.Popen[str]]()
        for name in ("silence", "stop", "worker", "guard", "renewed"):
            guards[name] = guard = stack.enter_context(start(tmp_path / name))
            assert guard.stdin is not None
            assert guard.stdout is not None
            assert guard.stdout.readline() == "ready\n"
        (tmp_path / "stop").write_text("2 stop")
        guards["worker"].stdin.close()  # type: ignore[union-attr]
        guards["guard"].kill()
        until_s, number = time.monotonic() + 1.3 * TIMES_S["renewed"], 1
        while time.monotonic() < until_s:
            number += 1
            (tmp_path / "renewed").write_text(f"{number} go on")
            time.sleep(0.1)
            assert guards["renewed"].poll() is None
        (tmp_path / "renewed").write_text("0 stop")
        for name, guard in guards.items():
            assert guard.stdout is not None
            assert guard.stdout.read() == ""  # ends when the command has closed it
            assert guard.wait(30) == (-9 if name == "guard" else 7), name
        assert ended.wait(30) == 3
