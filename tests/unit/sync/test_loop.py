"""Calls into an event loop of another thread: results, errors, interrupts and misuse."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import anyio
import anyio.lowlevel
import pytest

from belljar.errors import BelljarError, CellError, ContainmentBreach
from belljar.sync import Loop, own_loop


@contextmanager
def interrupting() -> Iterator[None]:
    """SIGINT raises `KeyboardInterrupt`, as it does in a program of a terminal."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def interrupt() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)


class Steps:
    """An async context manager that writes down what happens to it."""

    def __init__(self, *, at_end: BelljarError | None = None, at_start: bool = False) -> None:
        self.seen: list[str] = []
        self._at_end = at_end
        self._at_start = at_start

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[str]:
        """Interrupts the caller at its start or its end, as asked."""
        try:
            if self._at_start:
                interrupt()
                await anyio.sleep_forever()
            yield "value"
            self.seen.append("left")
        except BaseException as error:
            self.seen.append(type(error).__name__)
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                self.seen.append("ended")
            if self._at_end is not None:
                raise self._at_end


async def fail() -> None:
    raise LookupError("mine")


def test_what_the_block_raises_is_raised_within() -> None:
    """The context sees the block's error or end, and the caller gets that very error."""
    steps, error = Steps(), LookupError("mine")
    with own_loop() as loop, loop.entered(steps.opened()) as value:
        assert (value, steps.seen) == ("value", [])
    assert steps.seen == ["left", "ended"]
    steps.seen.clear()
    with pytest.raises(LookupError) as raised, own_loop() as loop, loop.entered(steps.opened()):
        raise error
    assert raised.value is error
    assert steps.seen == ["LookupError", "ended"]


def leave(steps: Steps, cause: BaseException | None) -> None:
    with own_loop() as loop, loop.entered(steps.opened()):
        if cause is not None:
            raise cause


def interrupted(steps: Steps) -> None:
    """Enter, and be interrupted, if it has not happened yet."""
    with own_loop() as loop, loop.entered(steps.opened()):
        interrupt()
        threading.Event().wait(60)


def test_an_error_of_the_end_is_raised() -> None:
    """A breach found at the end reaches the caller, also when the block was interrupted."""
    for cause in (None, LookupError(), KeyboardInterrupt()):
        steps = Steps(at_end=ContainmentBreach("left something"))
        with pytest.raises(ContainmentBreach):
            leave(steps, cause)
        assert steps.seen[-1] == "ended"


@pytest.mark.parametrize("at_start", [True, False])
def test_ctrl_c_ends_what_is_open(*, at_start: bool) -> None:
    """Whether it comes while the context is entered or in its block."""
    steps = Steps(at_start=at_start)
    with interrupting(), pytest.raises(KeyboardInterrupt):
        interrupted(steps)
    assert steps.seen[1:] == ["ended"]


def test_a_second_ctrl_c_does_not_cut_the_end_short() -> None:
    """A call that waits is cancelled and unwinds."""

    async def wait() -> None:
        interrupt()
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                interrupt()
                await anyio.sleep(0.05)
                seen.append("unwound")

    seen: list[str] = []
    with interrupting(), own_loop() as loop:
        with pytest.raises(KeyboardInterrupt):
            loop.call(wait)
        assert seen == ["unwound"]
        loop.call(anyio.sleep, 0)


def test_a_call_that_can_not_be_answered_is_refused() -> None:
    """Code that runs in the loop can't wait for the loop: an error, not a deadlock."""

    async def callback(loop: Loop) -> None:
        loop.call(anyio.sleep, 0)

    with own_loop() as loop, pytest.raises(RuntimeError):
        loop.call(callback, loop)
    with pytest.raises(CellError):
        loop.call(anyio.sleep, 0)


@pytest.mark.anyio
async def test_it_is_refused_in_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A coroutine must not block its loop."""
    monkeypatch.delattr(sys, "ps1", raising=False)
    with pytest.raises(RuntimeError, match="async with"), own_loop():
        pass

    def use() -> None:
        with own_loop() as loop:
            loop.call(anyio.sleep, 0)

    await anyio.to_thread.run_sync(use)
    monkeypatch.setattr(sys, "ps1", "In : ", raising=False)
    use()
