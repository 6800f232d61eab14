"""Threads with a bound on what waits."""

from __future__ import annotations

import threading
from functools import partial

from belljar.network.owner.range_state import BoundedExecutor

TIMEOUT_S = 30.0


def test_what_is_over_the_bound_is_not_taken_until_a_job_is_done() -> None:
    """One is being done, one waits, the third is refused; a job that fails gives its place back
    too."""
    executor = BoundedExecutor("test", workers=1, queue_size=2)
    begun, go, done = threading.Event(), threading.Event(), threading.Semaphore(0)

    def first() -> None:
        begun.set()
        go.wait(TIMEOUT_S)
        done.release()
        raise RuntimeError

    try:
        assert executor.try_submit(first)
        assert begun.wait(TIMEOUT_S)
        assert executor.try_submit(partial(done.release))
        assert not executor.try_submit(first)
        go.set()
        for _ in range(2):
            assert done.acquire(timeout=TIMEOUT_S)
        assert executor.try_submit(partial(done.release))
        assert done.acquire(timeout=TIMEOUT_S)
    finally:
        executor.close()
