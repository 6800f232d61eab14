"""Run a command's coroutine so that Ctrl-C, SIGTERM and SIGHUP all unwind it, once, however many of
them come.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import anyio.lowlevel

from belljar.errors import BelljarError, ContainmentBreach

T = TypeVar("T")

FORCED_AFTER_S: Final = 15.0
"""A signal this long after the first one ends the process at once: its cells die with it, and
`belljar reap` cleans up.
"""

_TURNS_OF_A_SIGNAL: Final = 10
"""From the pipe that a signal wakes the loop by to the task that heeds it: asyncio takes three
turns, trio two.
"""

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_async(function: Callable[..., Awaitable[T]], *args: object, **kwargs: object) -> T:
    """Run the coroutine function to its end and return its result.

    The first signal cancels it; its clean-up is waited for and `KeyboardInterrupt` is raised, from
    the `BelljarError` that came of it, if one did (but a breach is raised as it is). More signals
    meanwhile change nothing.
    """
    bound: Callable[..., Any] = partial(function, *args, **kwargs)
    result: T = anyio.run(_until_signal, bound)
    return result


async def _until_signal(bound: Callable[[], Awaitable[T]]) -> T:
    outcome: list[T] = []
    errors: list[Exception] = []
    # What is ignored stays so: a shell starts background jobs with SIGINT ignored.
    heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    with anyio.open_signal_receiver(*heeded) as signals:
        async with anyio.create_task_group() as tasks:
            work = anyio.CancelScope()
            tasks.start_soon(_heed, signals, work, name="signals")
            with work:
                try:
                    outcome.append(await bound())
                except Exception as error:  # noqa: BLE001
                    # Raised again below: the task group would wrap it.
                    errors.append(error)
                    await _let_signals_in(work)
            tasks.cancel_scope.cancel()
    if errors and not (work.cancel_called and _may_be_of_the_signal(errors[0])):
        raise errors[0]
    if not outcome:
        raise KeyboardInterrupt from (errors[0] if errors else None)
    return outcome[0]


def _may_be_of_the_signal(error: Exception) -> bool:
    """A breach never is, nor a defect of ours."""
    return isinstance(error, BelljarError) and not isinstance(error, ContainmentBreach)


async def _let_signals_in(work: anyio.CancelScope) -> None:
    """What failed may have failed of the signal (a child of ours got it too): one that has come is
    heard before the failure is told.
    """
    with anyio.CancelScope(shield=True):
        for _ in range(_TURNS_OF_A_SIGNAL):
            if work.cancel_called:
                return
            await anyio.lowlevel.checkpoint()


async def _heed(signals: AsyncIterator[signal.Signals], work: anyio.CancelScope) -> None:
    first_at_s: float | None = None
    async for number in signals:
        if first_at_s is None:
            first_at_s = time.monotonic()
            work.cancel()
        elif time.monotonic() - first_at_s > FORCED_AFTER_S:
            os._exit(128 + number)
