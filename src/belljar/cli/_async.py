"""Run a command's coroutine so that Ctrl-C, SIGTERM and SIGHUP all unwind it: cells are destroyed, the ledger is closed."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any, TypeVar

import anyio

T = TypeVar("T")


def run_async(function: Callable[..., Awaitable[T]], *args: object, **kwargs: object) -> T:
    """Run the coroutine function to its end and return its result. An interrupt cancels it, waits for its clean-up and raises `KeyboardInterrupt`."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    previous = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        bound: Callable[..., Any] = partial(function, *args, **kwargs)
        result: T = anyio.run(bound)
        return result
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
