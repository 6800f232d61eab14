"""Signals that end an evaluation from outside, and its end from inside, whether or not Ctrl-C was
ignored at start."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

# Answers each line with what came of it: a number names a signal to be sent to itself, `stop`
# interrupts from a thread.
PROGRAM = """
import anyio, os, signal, sys, threading
from belljar.interrupts import hold_ignored_interrupt, termination_as_interrupt
hold_ignored_interrupt()
async def work(termination):
    for line in sys.stdin:
        word = line.strip()
        if word == "stop":
            threading.Thread(target=termination.interrupt).start()
            await anyio.sleep(60)
        os.kill(os.getpid(), int(word))
        if word in sys.argv[2:]:
            await anyio.sleep(60)
        await anyio.sleep(0)
        print("alive", flush=True)
with termination_as_interrupt() as termination:
    try:
        anyio.run(work, termination, backend=sys.argv[1])
    except KeyboardInterrupt:
        print("interrupted", termination.received, flush=True)
print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN, flush=True)
"""
INT, HUP, TERM = (str(int(number)) for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM))


def said(
    *words: str, backend: str, ignoring: tuple[str, ...], awaited: tuple[str, ...]
) -> list[str]:
    """What the program says to these words when it is started with these signals ignored."""
    ignored = f"trap '' {' '.join(ignoring)}; " if ignoring else ""
    shell = ["/bin/sh", "-c", f'{ignored}exec "$@"', "sh"]
    argv = [*shell, sys.executable, "-c", PROGRAM, backend, *awaited]
    # These tests may run under nohup themselves
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        text = "".join(f"{word}\n" for word in words)
        done = subprocess.run(
            argv, input=text, capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.promise("6.2")
@pytest.mark.parametrize(("backend", "ending"), [("asyncio", TERM), ("trio", "stop")])
def test_what_was_ignored_at_start_stays_ignored(backend: str, ending: str) -> None:
    """SIGINT and SIGHUP do nothing, however often they come."""
    words = said(INT, HUP, INT, ending, backend=backend, ignoring=(INT, HUP), awaited=(TERM,))
    received = [int(TERM)] if ending == TERM else []
    assert words == ["alive", "alive", "alive", f"interrupted {received}", "True"]


@pytest.mark.parametrize(
    ("backend", "ending"), [("trio", INT), ("asyncio", HUP), ("asyncio", "stop")]
)
def test_what_was_not_ignored_interrupts(backend: str, ending: str) -> None:
    """Each of them, at its first coming."""
    words = said(ending, backend=backend, ignoring=(), awaited=(INT, HUP, TERM))
    received = [int(ending)] if ending in {HUP, TERM} else []
    assert words == [f"interrupted {received}", "False"]
