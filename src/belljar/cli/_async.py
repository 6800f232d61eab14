"""Run a command's coroutine so that Ctrl-C, SIGTERM and SIGHUP all unwind it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import anyio

from belljar.interrupts import termination_as_interrupt

T = TypeVar("T")


def run_async(function: Callable[..., Awaitable[T]], *args: object, **kwargs: object) -> T:
    """Run the coroutine function to its end and return its result.

    An interrupt cancels it, waits for its clean-up and raises `KeyboardInterrupt`.
    """
    bound: Callable[..., Any] = partial(function, *args, **kwargs)
    with termination_as_interrupt():
        result: T = anyio.run(bound)
    return result
