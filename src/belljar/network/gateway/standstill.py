"""Ends what one request makes a stand-in do without end: a gateway has one thread, and one that
answers nobody and gives no sign of life ends its range.

Searches, comparisons and deltas that take for ever on a hostile text can't be told beforehand for
every document of an author's. So a timer of the process's own processor time looks whether the loop
has turned lately; when it has not, and it is a stand-in's code that runs, that code is interrupted
by an error. The timer is set before the process is shut in, and needs no system call after.
"""

from __future__ import annotations

import asyncio
import selectors
import signal
import time
from types import FrameType
from typing import Final

_LOOK_EVERY_S: Final = 0.02
"""Of processor time: short, since a guest can have all its requests ready in one turn, and each
gets that much once the first was interrupted. Python hears of a signal between two of its own
steps, and within a search by a regular expression.
"""
_STAND_INS: Final = "belljar.network.stand_ins"


class Standstill(Exception):  # noqa: N818 - it is what happened
    """The loop has not turned for too long."""


class _Turns(selectors.EpollSelector):
    """Knows when its loop last had done all that there was to do."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.last_s = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors`."""
        found = super().select(timeout)
        self.count += 1
        self.last_s = time.monotonic()
        return found


def watched_loop(limit_s: float) -> asyncio.AbstractEventLoop:
    """A loop in which a stand-in that keeps it from turning for `limit_s` gets a `Standstill`, if
    that is processor time. Once a process, in its main thread.

    What is made within the first turn, before anything is served, may take its time.
    """
    turns = _Turns()

    def look(_number: int, frame: FrameType | None) -> None:
        if (
            turns.count > 1
            and time.monotonic() - turns.last_s >= limit_s
            and _is_a_stand_ins(frame)
        ):
            raise Standstill(f"the loop has not turned for {limit_s} s")

    signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LOOK_EVERY_S, _LOOK_EVERY_S)
    return asyncio.SelectorEventLoop(turns)


def _is_a_stand_ins(frame: FrameType | None) -> bool:
    """Whether the innermost code of ours is a stand-in's, whatever library it called: in the
    gateway's own nothing may be left half done.
    """
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("belljar."):
            return name.startswith(_STAND_INS)
        frame = frame.f_back
    return False
