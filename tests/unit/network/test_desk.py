"""Threads with a bound on what waits."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from belljar.network.desk import Desk

PATIENCE_S = 30.0


def test_what_is_over_the_bound_is_not_taken_until_a_job_is_done() -> None:
    """One is being done, one waits, the third is refused; a job that fails gives its place back too."""
    desk = Desk("test", at_once=1, most=2)
    begun, go, done = threading.Event(), threading.Event(), threading.Semaphore(0)

    def first() -> None:
        begun.set()
        go.wait(PATIENCE_S)
        done.release()
        raise RuntimeError

    try:
        assert desk.take(first)
        assert begun.wait(PATIENCE_S)
        assert desk.take(partial(done.release))
        assert not desk.take(first)
        go.set()
        for _ in range(2):
            assert done.acquire(timeout=PATIENCE_S)
        assert desk.take(partial(done.release))
        assert done.acquire(timeout=PATIENCE_S)
    finally:
        desk.close()


@pytest.mark.parametrize("is_used", [True, False])
def test_closing_waits_for_nobody(is_used: bool) -> None:
    """Neither for what is being done, nor for what waits, which is not done."""
    desk = Desk("test", at_once=1, most=2)
    begun, go, late = threading.Event(), threading.Event(), threading.Event()

    def first() -> None:
        begun.set()
        go.wait(PATIENCE_S)

    if is_used:
        desk.take(first)
        begun.wait(PATIENCE_S)
        desk.take(late.set)
    desk.close()
    go.set()
    assert not late.is_set()
