"""State of one range: its descriptors, heartbeats, and requests in both directions."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from belljar.errors import CellError
from belljar.network import ipc
from belljar.network.owner.processes import Child, ForkServer
from belljar.network.owner.watch import Watch
from belljar.units import printable

Answer = Callable[[str, bytes], bytes]
"""Answers a gateway's question (its kind, its body).

Raises `ValueError` to refuse it. Called in threads of the range's own.
"""


class RangeOverError(ValueError):
    """Nothing is put on record of a range that is being destroyed or has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The owner's ends of a range's sockets and its processes.

    `words` is what both wrote on standard error.
    """

    supervisor: Child
    gateway: Child
    control: socket.socket
    events: socket.socket
    words: int
    fork_server: ForkServer


@dataclass(slots=True, kw_only=True)
class Heard:
    """What has been heard of a range."""

    counters: dict[str, int] = field(default_factory=dict)
    certificate: bytes = b""
    answers: queue.SimpleQueue[Mapping[str, Any] | None] = field(default_factory=queue.SimpleQueue)
    """The supervisor's, in the order of the requests; None: there will be no more."""
    milestones: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)
    """`unshared`, `started`, `ready`; None: there will be no more."""


class HeartbeatTimeout:
    """Counts only time the parent spent waiting on the socket.

    A parent that was late (busy host, slow disk, SIGSTOP) reads queued messages first, so its own
    delay never expires a healthy child.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._silent_s: float | None = None

    def message_received(self) -> None:
        """Reset the timer; the first message starts it."""
        self._silent_s = 0.0

    def waited(self, duration_s: float) -> None:
        """Add time spent waiting.

        Call `message_received` afterwards if something came.
        """
        if self._silent_s is not None:
            self._silent_s += duration_s

    @property
    def expired(self) -> bool:
        """Whether the child sent nothing for longer than the timeout."""
        return self._silent_s is not None and self._silent_s > self.timeout_s


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


_REPLY_TIMEOUT_S: Final = 30.0


class Requests:
    """From any thread; `watch` hears the replies."""

    def __init__(self, control: socket.socket, watch: Watch, *, where: str) -> None:
        self._control, self._watch, self._where = control, watch, where
        self._one_at_a_time = threading.Lock()
        self._last = 0

    def ask(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send it, with copies of the descriptors, and wait until it is done.

        Raises what the range died of; `CellError`: refused, or no reply within 30 s.
        """
        with self._one_at_a_time:
            self._last += 1
            send(self._control, {**message, "id": self._last}, fds)
            reply = self._reply_to(self._last)
        if "refused" in reply:
            what = f"the range's supervisor could not: {printable(str(reply['reason']))}"
            raise CellError(what, where=self._where)
        if self._watch.error is not None:
            raise self._watch.error

    def _reply_to(self, number: int) -> Mapping[str, Any]:
        replies = self._watch.heard.answers
        give_up = time.monotonic() + _REPLY_TIMEOUT_S
        while (left_s := give_up - time.monotonic()) > 0:
            try:
                reply = replies.get(timeout=left_s)
            except queue.Empty:
                break
            if reply is None:
                replies.put(None)  # for whoever asks next
                raise self._watch.error or CellError("the range has ended", where=self._where)
            if number in (reply.get("done"), reply.get("refused")):
                return reply
        raise CellError("the range's supervisor does not answer", where=self._where)


def send(end: socket.socket, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
    """Send it; a process that is gone is noticed, and reported, by the watch."""
    with suppress(ipc.Closed, OSError):
        ipc.send(end, message, fds)
