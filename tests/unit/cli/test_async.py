"""A command's coroutine and the signals: what is raised, for whom."""

from __future__ import annotations

import os
import signal

import pytest

from belljar.cli.console import run_async
from belljar.errors import CellError, ContainmentBreach

JAIL_DIED = CellError("the jail ended while it came up", where="jail of cell c-0")


async def fail_of(error: Exception, number: int | None) -> None:
    """Fail, just after a signal came that the loop has not taken in yet."""
    if number is not None:
        os.kill(os.getpid(), number)
    raise error


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_fails_of_a_signal_is_an_interruption(number: int) -> None:
    """A child that got the signal may be gone before ours is heard: the interruption says so."""
    before = signal.signal(
        number, signal.SIG_DFL
    )  # one that was ignored at the start (`nohup`) stays so
    try:
        with pytest.raises(KeyboardInterrupt) as interrupt:
            run_async(fail_of, JAIL_DIED, number)
    finally:
        signal.signal(number, before)
    assert interrupt.value.__cause__ is JAIL_DIED


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (JAIL_DIED, None),
        (ContainmentBreach("out"), signal.SIGINT),
        (ZeroDivisionError(), signal.SIGINT),
    ],
)
def test_no_signal_hides_a_breach_or_a_defect(error: Exception, number: int | None) -> None:
    """Nor is anything an interruption without a signal."""
    with pytest.raises(type(error)) as raised:
        run_async(fail_of, error, number)
    assert raised.value is error
