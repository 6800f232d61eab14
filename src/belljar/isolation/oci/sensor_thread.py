"""What the sensors of the container tiers share: a thread that reads a queue, and its reports."""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from belljar.channel.own_reads import OwnReads, Phase
from belljar.isolation.touches import Access, AccessLimit, HostReads, OnAccess, OnEnd

FULL_READ: Final = 64
"""Entries that are read in one go."""
_PAUSE_S: Final = 0.005
"""After a full read of marks: 12,000 entries a second are as much as a flood may have of this host.
"""
_MAX_DRAIN_S: Final = 2.0
_MAX_SETTLE_S: Final = 0.5
"""How long a host's read waits for the queue of accesses before it."""
_TICK_MS: Final = 1000


class QueueThread:
    """Calls `read` in a thread whenever `queue()`, a descriptor, is readable or `wake` was called.

    Args:
        read: without waiting, at most `FULL_READ` entries; how many there were, -1: no more ever.
        on_error: called once with the reason when `read` raised; the thread has ended then.
        pause_s: after a full read.
    """

    def __init__(
        self,
        queue: Callable[[], int],
        read: Callable[[], int],
        on_error: Callable[[str], None],
        *,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self._queue, self._read, self._on_error, self._pause_s = queue, read, on_error, pause_s
        self._stopping = self._draining = False
        self._drained = threading.Event()
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="touch-sensor", daemon=True)

    def start(self) -> None:
        """Once."""
        self._thread.start()

    def wake(self) -> None:
        """Have it call `read` soon. From any thread."""
        with suppress(OSError):  # it has been told often enough, or was stopped
            os.write(self._wake, b"w")

    def drain(self, timeout_s: float = _MAX_DRAIN_S) -> None:
        """Wait until the queue was found empty, or the timeout has passed: a flood doesn't end."""
        if self._thread.is_alive():
            self._drained.clear()
            self._draining = True
            self.wake()
            if not self._drained.wait(timeout_s):
                self._draining = False

    @property
    def is_draining(self) -> bool:
        """Whether it reads without a pause, as somebody waits."""
        return self._draining

    def settle(self) -> None:
        """Wait, but not long, until what is queued has been read."""
        self.drain(_MAX_SETTLE_S)

    def stop(self) -> None:
        """End the thread. Once."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._woken)
        os.close(self._wake)

    def _run(self) -> None:
        try:
            self._read_until_stopped()
        except Exception as error:  # noqa: BLE001 - the sensor has ended, and no cell with it
            with suppress(Exception):
                self._on_error(f"{type(error).__name__}: {error}")
        finally:
            self._drained.set()

    def _read_until_stopped(self) -> None:
        while not self._stopping:
            poller = select.poll()
            poller.register(self._woken, select.POLLIN)
            poller.register(self._queue(), select.POLLIN)
            ready = poller.poll(0 if self._draining else _TICK_MS)
            if any(fd == self._woken for fd, _ in ready):
                os.read(self._woken, 4096)
            is_draining, count = self._draining, self._read()
            if count < 0:
                return
            if count == 0 and is_draining:
                self._draining = False
                self._drained.set()
            elif count >= FULL_READ and not is_draining:
                time.sleep(self._pause_s)


class Reports:
    """What one watch reports of the accesses that a thread hands it."""

    def __init__(self, own_reads: OwnReads, thread: QueueThread) -> None:
        self._own_reads, self._thread = own_reads, thread
        self._host_reads = HostReads()
        self._limit = AccessLimit()
        self._on_access: OnAccess | None = None
        self._on_end: OnEnd | None = None
        own_reads.listeners.append(self._on_host_read)
        own_reads.settlers.append(thread.settle)

    def begin(self, on_access: OnAccess, on_end: OnEnd) -> None:
        """As `FileWatch.begin`."""
        self._on_access, self._on_end = on_access, on_end

    @property
    def ended_host_reads(self) -> int:
        """To be asked before the queue is read, for `settle`."""
        return self._host_reads.ended

    def offer(self, access: Access, *, may_be_hosts: bool) -> None:
        """Report or count it, unless the host itself reads that file and may be meant."""
        if may_be_hosts and self._host_reads.cover(access.path):
            return
        report = self._limit.add(access, time.monotonic())
        if report is not None and self._on_access is not None:
            self._on_access(report)

    def settle(self, ended_host_reads: int, *, read: int, is_empty: bool) -> None:
        """After each read of so many: report what was held back for long enough."""
        self._host_reads.forget(ended_host_reads, read=read, is_empty=is_empty)
        self._report_held(everything=False)

    def end(self, reason: str) -> None:
        """It sees no more, or not all."""
        if self._on_end is not None:
            self._on_end(reason)

    def close(self) -> None:
        """Report what is held back. The thread must not use it any more."""
        self._own_reads.listeners.remove(self._on_host_read)
        self._own_reads.settlers.remove(self._thread.settle)
        try:
            self._report_held(everything=True)
        except Exception as error:  # noqa: BLE001 - as in the thread
            with suppress(Exception):
                self.end(f"{type(error).__name__}: {error}")

    def _report_held(self, *, everything: bool) -> None:
        for held in self._limit.due(time.monotonic(), everything=everything):
            if self._on_access is not None:
                self._on_access(held)

    def _on_host_read(self, path: str, phase: Phase) -> None:
        self._host_reads.heard(path, phase)
        self._thread.wake()
