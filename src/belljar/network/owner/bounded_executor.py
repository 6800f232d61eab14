"""A worker pool with a bounded queue, for one kind of request of a range's gateway."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class BoundedExecutor:
    """Runs jobs in worker threads, which start with the first job.

    Args:
        workers: jobs that run at once.
        queue_size: jobs that may run or wait.
    """

    def __init__(self, name: str, *, workers: int, queue_size: int) -> None:
        self._name, self._workers = name, workers
        self._room = threading.Semaphore(queue_size)
        self._threads: ThreadPoolExecutor | None = None

    def try_submit(self, job: Callable[[], None]) -> bool:
        """Queue `job`; return False when the queue is full. To be called by one thread."""
        if not self._room.acquire(blocking=False):
            return False
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix=self._name)
        self._threads.submit(self._run, job)
        return True

    def close(self) -> None:
        """Drop queued jobs; don't wait for running ones."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _run(self, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            self._room.release()
