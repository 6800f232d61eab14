"""SIGTERM and SIGHUP unwind as Ctrl-C does: cells are destroyed, ledgers are sealed.

A SIGINT or SIGHUP ignored at the start (`nohup`, a shell's background job) stays ignored. But
asyncio and trio cancel their main task on SIGINT, so it also ends an evaluation from inside: an
ignored SIGINT is *blocked*, and unblocked only for this process's own interrupt.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

# Held back where a shell has it ignored, until SIGTERM raises it in here.
_BLOCKED: Final = {signal.SIGINT}
# What a service manager and a closed terminal send.
_HEEDED: Final = (signal.SIGTERM, signal.SIGHUP)


def hold_ignored_interrupt() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED)


class Termination:
    def __init__(self, *, is_held: bool) -> None:
        self.received: list[int] = []
        self._is_held = is_held
        self._is_own = False
        self._is_raised = False

    def interrupt(self) -> None:
        """Interrupt the main thread as Ctrl-C does, from any thread."""
        main = threading.main_thread().ident
        if main is not None:
            # Not a request of someone else's: `received` must not name it.
            self._is_own = self._is_held
            # A mask can only be changed by its own thread: by the other signal's handler.
            signal.pthread_kill(main, signal.SIGTERM if self._is_held else signal.SIGINT)

    def heed(self, number: int, _frame: FrameType | None) -> None:
        if not self._is_own:
            self.received.append(number)
        self._is_own = False
        # Once: a second interrupt would break off the clean-up that the first one began.
        if not self._is_raised:
            self._is_raised = True
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)
            signal.raise_signal(signal.SIGINT)


@contextmanager
def termination_as_interrupt() -> Iterator[Termination]:
    """The main thread's first SIGTERM or SIGHUP in the block acts as SIGINT."""
    is_held = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    termination = Termination(is_held=is_held)
    heeded = [
        number
        for number in _HEEDED
        # SIGTERM even if it was ignored: `interrupt` comes by it where SIGINT is blocked.
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGTERM
    ]
    previous = {number: signal.signal(number, termination.heed) for number in heeded}
    if is_held:
        hold_ignored_interrupt()
        previous[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield termination
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
