"""Accesses to watched files: sensors, reader thread and bounds.

A flood makes a bounded number of events: the rest is counted into the next ones.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

import anyio
import anyio.to_thread

from belljar.dataclass import dataclass, replace
from belljar.errors import CellError, HostError
from belljar.events import Trust
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.channel import GuestClient
    from belljar.channel.messages import Touched
    from belljar.channel.operations import OwnReads, Phase

Operation: TypeAlias = Literal["open", "read"]

# One event for all equal touches of a second: a guest that reads a file in a loop fills no
# ledger.
INTERVAL_S: Final = 1.0
# In one interval, over all files.
MAX_REPORTS: Final = 32
# Accesses that a queue holds before it reports a loss (fanotify(7), inotify(7); gVisor's is
# smaller).
MAX_QUEUED: Final = 16_384
# The cell chooses process names: more count as one.
MAX_KEYS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One access, or `count` of the same kind.

    Attributes:
        path: as it was given to the sensor, whatever name it was accessed by.
        process: its name as the kernel has it (at most 15 bytes, escaped); "": unknown.
        pid: in the cell; None: unknown.
    """

    path: str
    operation: Operation
    process: str = ""
    pid: int | None = None
    count: int = 1


OnAccess: TypeAlias = Callable[[Access], None]
OnEnd: TypeAlias = Callable[[str], None]


class FileWatch(Protocol):
    """The sensor of one cell: it sees from now on, and reports from `begin` on.

    Attributes:
        sensor: the mechanism's name in the record.
        trust: whose word it is.
        missing: files that are not watched, and why.
    """

    sensor: str
    trust: Trust
    missing: Mapping[str, str]

    def begin(self, on_access: OnAccess, on_end: OnEnd) -> None:
        """Report. Either may be called in any thread; what they raise ends the sensor.

        `on_end`: with the reason, when it stops seeing before it is closed, and once when accesses
        were lost; then it goes on.
        """
        ...

    async def aclose(self) -> None:
        """Report accesses so far, and stop. Idempotent."""
        ...


@dataclass(slots=True)
class _Kind:
    reported_s: float
    held: Access | None = None


class AccessLimit:
    """Which accesses are reported now: the first of each file and operation, and of each process in
    an interval. Others are counted.
    """

    def __init__(self) -> None:
        self._first_reported: set[tuple[str, Operation]] = set()
        self._kinds: dict[tuple[str, Operation, str], _Kind] = {}
        self._interval_s = -INTERVAL_S
        self._reports = 0

    def add(self, access: Access, now_s: float) -> Access | None:
        """Count it; return what to report now."""
        kind = self._kind(access, now_s)
        counted = access
        if kind.held is not None:
            if kind.held.process != access.process:
                counted = replace(access, process="", pid=None)
            counted = replace(counted, count=kind.held.count + access.count)
        is_first = (access.path, access.operation) not in self._first_reported
        if (is_first or now_s - kind.reported_s >= INTERVAL_S) and (
            self._has_room(now_s) or is_first
        ):
            self._first_reported.add((access.path, access.operation))
            kind.reported_s, kind.held = now_s, None
            return counted
        kind.held = counted
        return None

    def due(self, now_s: float, *, everything: bool = False) -> list[Access]:
        """Counted accesses due, oldest first; `everything`: all."""
        found = []
        for key, kind in sorted(self._kinds.items(), key=lambda pair: pair[1].reported_s):
            is_over = now_s - kind.reported_s >= INTERVAL_S
            if kind.held is None:
                if is_over:
                    del self._kinds[key]
            elif everything or (is_over and self._has_room(now_s)):
                found.append(kind.held)
                kind.reported_s, kind.held = now_s, None
        return found

    def _kind(self, access: Access, now_s: float) -> _Kind:
        key = (access.path, access.operation, access.process)
        if key not in self._kinds and len(self._kinds) >= MAX_KEYS:
            key = (access.path, access.operation, "")
        return self._kinds.setdefault(key, _Kind(reported_s=now_s - INTERVAL_S))

    def _has_room(self, now_s: float) -> bool:
        if now_s - self._interval_s >= INTERVAL_S:
            self._interval_s, self._reports = now_s, 0
        self._reports += 1
        return self._reports <= MAX_REPORTS


@dataclass(slots=True)
class _Ended:
    path: str
    left: int = MAX_QUEUED


class HostReads:
    """The host's own reads in a cell, not reported.

    An ended read covers its files until the queue was empty once, or a queue's capacity was read: a
    flood gains nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[str] = []
        self._ended: list[_Ended] = []

    def on_read(self, path: str, phase: Phase) -> None:
        """A read of a file or directory begins or ends."""
        with self._lock:
            if phase == "begins":
                self._running.append(path)
            else:
                self._running.remove(path)
                self._ended.append(_Ended(path))

    def cover(self, path: str) -> bool:
        """Whether the access may be the host's."""
        with self._lock:
            reads = (*self._running, *(each.path for each in self._ended))
        return any(read in ("/", path) or path.startswith(f"{read}/") for read in reads)

    @property
    def ended(self) -> int:
        """Ask before reading the queue."""
        return len(self._ended)

    def forget(self, count: int, *, read: int, is_empty: bool) -> None:
        """After reading `read` accesses that followed these reads."""
        with self._lock:
            for each in self._ended[:count]:
                each.left -= read
            self._ended[:count] = [
                each for each in self._ended[:count] if not is_empty and each.left > 0
            ]


# Entries that are read in one go.
FULL_READ: Final = 64
# After a full read: at most 12,000 marks a second.
_PAUSE_S: Final = 0.005
# So that a guest that goes on touching files can't keep its cell from ending.
_MAX_DRAIN_S: Final = 2.0
# For the queue, before a host's read.
_MAX_SETTLE_S: Final = 0.5
# Sums that are complete are recorded even when nothing more comes.
_TICK_MS: Final = 1000


class QueueThread:
    """Calls `read` in a thread when `queue()` is readable or after `wake`.

    Args:
        read: non-blocking; returns entries read (≤ `FULL_READ`), -1 at the end.
        on_error: called once if `read` raised; the thread has ended.
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
        """Call `read` soon. From any thread."""
        with suppress(OSError):  # its pipe is full, or it was stopped
            os.write(self._wake, b"w")

    def drain(self, timeout_s: float = _MAX_DRAIN_S) -> None:
        """Wait until the queue is empty, or `timeout_s`."""
        if self._thread.is_alive():
            self._drained.clear()
            self._draining = True
            self.wake()
            if not self._drained.wait(timeout_s):
                self._draining = False

    @property
    def is_draining(self) -> bool:
        """Whether it reads without pauses."""
        return self._draining

    def settle(self) -> None:
        """Wait briefly for what is queued."""
        self.drain(_MAX_SETTLE_S)

    def stop(self) -> None:
        """End the thread. Once."""
        self._stopping = True
        self.wake()
        if self._thread.is_alive():
            self._thread.join()
        woken, wake = self._woken, self._wake
        self._wake = -1  # a late `wake` must not write into whatever has the number next
        os.close(woken)
        os.close(wake)

    def _run(self) -> None:
        try:
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
        except Exception as error:  # noqa: BLE001 - the sensor has ended, and no cell with it
            with suppress(Exception):
                self._on_error(f"{type(error).__name__}: {error}")
        finally:
            self._drained.set()


class ThreadWatch:
    """A `FileWatch` fed by a `QueueThread`. Doesn't report the host's own reads."""

    trust = Trust.HOST_OBSERVED

    def __init__(self, own_reads: OwnReads, thread: QueueThread) -> None:
        self._own_reads, self._thread = own_reads, thread
        self._host_reads = HostReads()
        self._limit = AccessLimit()
        self._on_access: OnAccess | None = None
        self._on_end: OnEnd | None = None
        self._has_lost = self._is_closed = False
        own_reads.listeners.append(self._on_host_read)
        own_reads.settlers.append(thread.settle)

    def begin(self, on_access: OnAccess, on_end: OnEnd) -> None:
        """As `FileWatch.begin`."""
        self._on_access, self._on_end = on_access, on_end

    @property
    def ended_host_reads(self) -> int:
        """For `settle`; ask before reading the queue."""
        return self._host_reads.ended

    def offer(self, access: Access, *, may_be_hosts: bool) -> None:
        """Report or count it, unless the host's."""
        if may_be_hosts and self._host_reads.cover(access.path):
            return
        report = self._limit.add(access, time.monotonic())
        if report is not None and self._on_access is not None:
            self._on_access(report)

    def settle(self, ended_host_reads: int, *, read: int, is_empty: bool) -> None:
        """After each read; reports counts that are due."""
        self._host_reads.forget(ended_host_reads, read=read, is_empty=is_empty)
        self._report_held(everything=False)

    def end(self, reason: str) -> None:
        """It sees no more, or not all."""
        if self._on_end is not None:
            self._on_end(reason)

    def lost(self, reason: str) -> None:
        """Report lost accesses. Once."""
        if not self._has_lost:
            self._has_lost = True
            self.end(reason)

    async def aclose(self) -> None:
        """As `FileWatch.aclose`."""
        if self._is_closed:
            return
        self._is_closed = True
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._close)

    def _close(self) -> None:
        self._thread.drain()
        self._stop_reading()
        self._own_reads.listeners.remove(self._on_host_read)
        self._own_reads.settlers.remove(self._thread.settle)
        try:
            self._report_held(everything=True)
        except Exception as error:  # noqa: BLE001 - as in the thread
            with suppress(Exception):
                self.end(f"{type(error).__name__}: {error}")

    def _stop_reading(self) -> None:
        raise NotImplementedError

    def _report_held(self, *, everything: bool) -> None:
        for held in self._limit.due(time.monotonic(), everything=everything):
            if self._on_access is not None:
                self._on_access(held)

    def _on_host_read(self, path: str, phase: Phase) -> None:
        self._host_reads.on_read(path, phase)
        self._thread.wake()


# Per guest: an hour's flood at 256 a second.
_MAX_TOUCHES: Final = 1 << 20
# Touches before anybody listens: the first of a flood show it.
_MAX_EARLY: Final = 1024
# TASK_COMM_LEN is 16; gVisor sends what the guest wrote.
_MAX_NAME: Final = 64
_OPERATIONS: Final[Mapping[int, Operation]] = {1: "open", 2: "read"}
_LOST: Final = "more happened than the guest's kernel kept: accesses were lost"


class GuestWatch:
    """As `isolation.touches.FileWatch`."""

    sensor = "guest-fanotify"
    trust = Trust.GUEST_REPORTED

    def __init__(self, client: GuestClient, paths: Sequence[str]) -> None:
        self.missing: Mapping[str, str] = {}
        self._client = client
        self._paths = tuple(paths)
        self._limit = AccessLimit()
        self._reported = 0
        self._early: list[Touched] = []
        self._on_access: OnAccess | None = None
        self._on_end: OnEnd | None = None
        self._has_ended = self._has_lost = self._is_closed = False

    async def start(self) -> None:
        """Raises `HostError` or `CellError`."""
        watched = await self._client.watch_files(
            self._paths, self._on_touched, max_touches=_MAX_TOUCHES
        )
        if watched.errno:
            why = os.strerror(watched.errno)
            raise HostError(f"its guest agent can't watch files: {why}", where=self.sensor)
        errors = zip(self._paths, watched.errors, strict=True)
        self.missing = {path: os.strerror(error) for path, error in errors if error}

    def begin(self, on_access: OnAccess, on_end: OnEnd) -> None:
        """As `FileWatch.begin`."""
        self._on_access, self._on_end = on_access, on_end
        early, self._early = self._early, []
        for touched in early:
            self._on_touched(touched)

    async def aclose(self) -> None:
        """As `FileWatch.aclose`. What a cell that died had seen last is lost, which is told."""
        if self._is_closed:
            return
        self._is_closed = True
        with anyio.CancelScope(shield=True):
            try:
                await self._client.watch_files(())
            except CellError as error:
                self._tell(f"what it saw last is lost: {error.what}")
        self._report(self._limit.due(time.monotonic(), everything=True))

    def _on_touched(self, touched: Touched) -> None:
        if self._on_access is None:
            if len(self._early) < _MAX_EARLY:
                self._early.append(touched)
            return
        self._reported += 1
        now_s, first = time.monotonic(), None
        if (operation := _OPERATIONS.get(touched.operation)) is not None:
            access = Access(
                path=self._paths[touched.index],
                operation=operation,
                process=printable(touched.process, max_chars=_MAX_NAME),
                pid=touched.pid or None,
                count=touched.count,
            )
            first = self._limit.add(access, now_s)
        elif not self._has_lost:
            self._has_lost = True
            self._tell(_LOST)
        self._report([*([] if first is None else [first]), *self._limit.due(now_s)])
        if self._reported == _MAX_TOUCHES:
            self._end("its guest agent has reported as many touches as it may")

    def _report(self, accesses: Sequence[Access]) -> None:
        try:
            for access in accesses:
                if self._on_access is not None and not self._has_ended:
                    self._on_access(access)
        except Exception as error:  # noqa: BLE001 - the channel's reader must go on
            self._end(f"{type(error).__name__}: {error}")

    def _end(self, reason: str) -> None:
        self._has_ended = True
        self._tell(reason)

    def _tell(self, reason: str) -> None:
        with suppress(Exception):
            if self._on_end is not None:
                self._on_end(reason)


async def watch_guest(client: GuestClient, paths: Sequence[str]) -> FileWatch:
    """Have the guest agent watch files. Raises `HostError` or `CellError`."""
    watch = GuestWatch(client, paths)
    await watch.start()
    return watch
