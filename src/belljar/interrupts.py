"""SIGTERM and SIGHUP unwind as Ctrl-C does: cells are destroyed, ledgers are sealed. Imports nothing of ours."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def termination_as_interrupt() -> Iterator[list[int]]:
    """Within the block the first SIGTERM or SIGHUP raises what SIGINT raises; more of them change nothing.

    Gives the list of those that came. For the main thread.
    """
    heard: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        heard.append(number)
        if len(heard) == 1:
            signal.raise_signal(signal.SIGINT)

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs so; then SIGTERM would be turned into something that is ignored.
        previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield heard
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
