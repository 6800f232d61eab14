"""SIGTERM and SIGHUP unwind as Ctrl-C does: cells are destroyed, ledgers are sealed.

Imports nothing of ours. A SIGHUP that was ignored when this process was started (`nohup`) stays
ignored.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_HEEDED: Final = (signal.SIGTERM, signal.SIGHUP)


class Termination:
    """The signals that ask this process to end, and the way to end it from inside.

    Made by `termination_as_interrupt`.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self._is_raised = False

    def interrupt(self) -> None:
        """Interrupt the main thread as Ctrl-C does, from any thread."""
        if (main := threading.main_thread().ident) is not None:
            signal.pthread_kill(main, signal.SIGINT)

    def heed(self, number: int, _frame: FrameType | None) -> None:
        """The handler of SIGTERM and SIGHUP. Runs in the main thread."""
        self.received.append(number)
        if not self._is_raised:  # a second interrupt would tear the unwinding
            self._is_raised = True
            signal.raise_signal(signal.SIGINT)


@contextmanager
def termination_as_interrupt() -> Iterator[Termination]:
    """In the block the first SIGTERM or SIGHUP raises what SIGINT raises; others do nothing.

    For the main thread.
    """
    termination = Termination()
    heeded = [
        number
        for number in _HEEDED
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM
    ]
    previous = {number: signal.signal(number, termination.heed) for number in heeded}
    # A shell without job control starts `… &` with SIGINT ignored: then nothing could end an
    # evaluation from inside, as asyncio and trio cancel their main task on it.
    previous[signal.SIGINT] = signal.getsignal(signal.SIGINT)
    if previous[signal.SIGINT] is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield termination
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
