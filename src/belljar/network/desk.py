"""Threads of a range's owner that do one kind of what its gateway asks for: so many at once, so
many waiting, none beyond.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Desk:
    """Started with the first job."""

    def __init__(self, name: str, *, at_once: int, most: int) -> None:
        self._name, self._at_once = name, at_once
        self._room = threading.Semaphore(most)
        self._threads: ThreadPoolExecutor | None = None

    def take(self, job: Callable[[], None]) -> bool:
        """Have it done, soon; False when there are too many already. One thread may call this."""
        if not self._room.acquire(blocking=False):
            return False
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._at_once, thread_name_prefix=self._name)
        self._threads.submit(self._do, job)
        return True

    def close(self) -> None:
        """What waits is not done; what is being done is not waited for."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _do(self, job: Callable[[], None]) -> None:
        try:
            job()
        finally:
            self._room.release()
