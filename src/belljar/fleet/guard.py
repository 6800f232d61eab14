"""Runs one command on a node; ends it with the fleet's head or the Ray worker.

`python -m belljar.fleet.guard LEASE TIMEOUT_S COMMAND…`: a separate process, to outlive the worker.
The worker holds the stdin pipe; each heartbeat rewrites LEASE, which holds `stop` to end the unit.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

POLL_S: Final = 0.5  # how late a stop may be seen, at next to no processor time
# The same until its first sign of life: what passes it on may have to be started.
START_S: Final = 180.0
END_S: Final = 90.0  # an interrupted run destroys its cells with proof, and seals its record
STOP: Final = "stop"  # the word in the lease, beside a number that changes with each heartbeat
# How a command ends when interrupted while it loads: once it can make a cell, it handles that.
NEVER_BEGAN: Final = 128 + signal.SIGTERM
_PR_SET_PDEATHSIG: Final = 1  # as in linux/prctl.h


def main(arguments: list[str]) -> int:
    """Run the command; return its exit code, 128 and more for a signal."""
    lease, timeout_s = Path(arguments[0]), float(arguments[1])
    asked_to_end = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in asked_to_end:  # a Ray worker may ignore some, and the command would inherit that
        signal.signal(number, signal.SIG_DFL)
    child = subprocess.Popen(
        arguments[2:],
        stdin=subprocess.DEVNULL,
        # The kernel interrupts it when the guard dies. Safe: this process has one thread.
        preexec_fn=lambda: ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
    )
    for number in asked_to_end:
        signal.signal(number, signal.SIG_IGN)  # it ends when the command has
    heard, seen, ending_since = time.monotonic(), "", 0.0
    while child.poll() is None:
        # The worker never writes: a pipe that is ready and empty has ended.
        is_alone = bool(select.select([0], [], [], POLL_S)[0]) and not os.read(0, 1)
        if is_alone:
            time.sleep(POLL_S)  # at its end the pipe is always ready
        now, content = time.monotonic(), ""
        # The lease is not there before the first heartbeat.
        with suppress(OSError):
            content = lease.read_text()
        # By its content: the file's time follows the wall clock, which may be set.
        if content and content != seen:
            heard, seen = now, content
        limit_s = timeout_s if seen else max(START_S, timeout_s)
        if not ending_since and (is_alone or STOP in content or now - heard > limit_s):
            ending_since = now
            child.send_signal(signal.SIGTERM)
        if ending_since and now - ending_since > END_S:
            child.kill()
            child.wait()
            # The cells outlive the process that was killed.
            reap = [sys.executable, "-m", "belljar", "reap"]
            subprocess.run(reap, stdin=subprocess.DEVNULL, check=False, timeout=END_S)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
