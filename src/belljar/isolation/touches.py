"""Accesses to watched files: what every tier's sensor has in common."""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

import anyio
import anyio.to_thread

from belljar.dataclass import dataclass, replace
from belljar.errors import CellError, HostError
from belljar.events import Trust
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.channel import GuestClient
    from belljar.channel.frames import Touched
    from belljar.channel.operations import OwnReads

Operation: TypeAlias = Literal["open", "read"]

# Equal touches of one interval are one event: some 64 a second with the most decoys.
INTERVAL_S: Final = 4.0
# The cell chooses process names: beyond so many they count as one.
MAX_KEYS: Final = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """`path` is as it was given to the sensor; `process` is escaped.

    `process` and `pid` (in the cell) are empty where unknown, or several.
    """

    path: str
    operation: Operation
    process: str = ""
    pid: int | None = None
    count: int = 1


OnAccess: TypeAlias = Callable[[Access], None]
OnEnd: TypeAlias = Callable[[str], None]


class FileWatch:
    """The sensor of one cell sees from now on, and reports from `begin` on."""

    sensor: str
    trust = Trust.HOST_OBSERVED

    def __init__(self) -> None:
        self.missing: Mapping[str, str] = {}
        self._held: dict[tuple[str, Operation, str], Access] = {}
        self._reported_s: dict[tuple[str, Operation, str], float] = {}
        self._on_access: OnAccess | None = None
        self._on_end: OnEnd | None = None
        self._unsaid = deque[str]()
        self._said = set[str]()
        self._has_failed = self._is_closed = False

    def begin(self, on_access: OnAccess, on_end: OnEnd) -> None:
        """Either may be called in any thread; what they raise ends the sensor.

        `on_end` gets the reason when it stops seeing, and once when accesses were lost.
        """
        self._on_access, self._on_end = on_access, on_end
        self.end()

    def add(self, access: Access) -> None:
        """A file, operation and process's first is due immediately."""
        key = (access.path, access.operation, access.process)
        is_known = key in self._held or key in self._reported_s
        if not is_known and len(self._held) + len(self._reported_s) >= MAX_KEYS:
            key = (access.path, access.operation, "")
        if (held := self._held.get(key)) is not None:
            if (held.process, held.pid) != (access.process, access.pid):
                held = replace(held, process=key[2], pid=None)
            access = replace(held, count=held.count + access.count)
        self._held[key] = access

    def due(self, now_s: float, *, everything: bool = False) -> list[Access]:
        recent = {key: at for key, at in self._reported_s.items() if now_s - at < INTERVAL_S}
        keys = [key for key in self._held if everything or key not in recent]
        self._reported_s = recent | dict.fromkeys(keys, now_s)
        return [self._held.pop(key) for key in keys]

    def report(self, *, everything: bool = False) -> None:
        if self._on_access is None or self._has_failed:
            return
        try:
            for access in self.due(time.monotonic(), everything=everything):
                self._on_access(access)
        except Exception as error:  # noqa: BLE001 - the sensor ends, not what it reads from
            self._has_failed = True
            self.end(f"{type(error).__name__}: {error}")

    async def aclose(self) -> None:
        """Report accesses so far, and stop. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            with anyio.CancelScope(shield=True):
                await self._stop()
            self.report(everything=True)

    async def _stop(self) -> None:
        raise NotImplementedError

    def end(self, *reasons: str) -> None:
        """Report, each reason once, what it missed or sees no more."""
        # First of all they are kept: `begin` may come meanwhile
        self._unsaid.extend(each for each in reasons if each not in self._said)
        self._said.update(reasons)
        while self._on_end is not None and self._unsaid:
            with suppress(Exception):
                self._on_end(self._unsaid.popleft())


# Entries that are read in one go.
FULL_READ: Final = 64
# After a full read: at most 12,000 entries a second, so that a flood takes no whole processor.
_PAUSE_S: Final = 0.005
# For an empty queue: a guest that goes on touching files can't keep its cell from ending.
_MAX_DRAIN_S: Final = 2.0
# The same before and after a read of the host's.
_MAX_SETTLE_S: Final = 0.5
# Counts that are due are reported even when nothing more comes.
_TICK_MS: Final = 1000


class QueueThread(threading.Thread):
    """Calls `read` in a thread when `queue()` is readable, and for `drain`.

    `read` doesn't block, and returns the entries read (≤ `FULL_READ`), -1 at the end.
    """

    def __init__(
        self,
        queue: Callable[[], int],
        read: Callable[[], int],
        on_error: Callable[[str], None],
        *,
        pause_s: float = _PAUSE_S,
    ) -> None:
        super().__init__(name="touch-sensor", daemon=True)
        self._queue, self._read, self._on_error, self._pause_s = queue, read, on_error, pause_s
        self._stopping = self._draining = False
        self._drained, self._one_drain = threading.Event(), threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def drain(self, timeout_s: float = _MAX_DRAIN_S) -> None:
        """Wait until the queue is empty, or `timeout_s`. Blocks."""
        with self._one_drain:
            if self.is_alive():
                self._drained.clear()
                self._draining = True
                os.eventfd_write(self._wake, 1)
                self._drained.wait(timeout_s)
                self._draining = False

    def stop(self) -> None:
        """End the thread, once; later drains do nothing."""
        self._stopping = True
        with self._one_drain:  # or a late one would write into whatever has the number next
            os.eventfd_write(self._wake, 1)
            self.join()
            os.close(self._wake)

    def run(self) -> None:
        try:
            while not self._stopping:
                poller = select.poll()
                poller.register(self._wake, select.POLLIN)
                poller.register(self._queue(), select.POLLIN)
                poller.poll(0 if self._draining else _TICK_MS)
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
                is_draining, count = self._draining, self._read()
                if count < 0:
                    return
                if is_draining and count < FULL_READ:
                    self._draining = False
                    self._drained.set()
                elif count >= FULL_READ and not is_draining:
                    time.sleep(self._pause_s)
        except Exception as error:  # noqa: BLE001 - the sensor has ended, and no cell with it
            self._on_error(f"{type(error).__name__}: {error}")
        finally:
            self._drained.set()


class QueueWatch(FileWatch):
    """A sensor read from a queue by a thread, without the host's own reads.

    The queue has no times: it is emptied before and after each read of the host's, which covers
    its files in between. That waits 0.5 s at most: a flood gains nothing.
    """

    def __init__(self, own_reads: OwnReads, thread: QueueThread) -> None:
        super().__init__()
        self._own_reads, self._thread = own_reads, thread
        self._reads = list[tuple[str, bool]]()
        own_reads.covers.append(self._cover)

    @asynccontextmanager
    async def _cover(self, path: str, is_tree: bool) -> AsyncIterator[None]:  # noqa: FBT001
        drain = partial(self._thread.drain, _MAX_SETTLE_S)
        await anyio.to_thread.run_sync(drain)
        self._reads.append((path, is_tree))
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(drain)
            self._reads.remove((path, is_tree))

    def offer(self, access: Access) -> None:
        path = Path(access.path)
        # Only a copied tree covers what is below it: a model may have the host read any path
        is_own = (
            path.is_relative_to(read) if is_tree else path == Path(read)
            for read, is_tree in tuple(self._reads)
        )
        if not any(is_own):
            self.add(access)

    async def _stop(self) -> None:
        await anyio.to_thread.run_sync(self._thread.drain)
        self._own_reads.covers.remove(self._cover)


# Per guest: an hour's flood at 256 a second.
_MAX_TOUCHES: Final = 1 << 20
# TASK_COMM_LEN is 16; a guest sends what it likes.
_MAX_NAME: Final = 64
_OPERATIONS: Final[Mapping[int, Operation]] = {1: "open", 2: "read"}


class GuestWatch(FileWatch):
    sensor = "guest-fanotify"
    trust = Trust.GUEST_REPORTED

    def __init__(self, client: GuestClient, paths: Sequence[str]) -> None:
        super().__init__()
        self._client, self._paths = client, tuple(paths)
        self._touches = 0

    async def _stop(self) -> None:
        try:
            await self._client.watch_files(())
        except CellError as error:
            self.end(f"what it saw last is lost: {error.what}")

    def _on_touched(self, touched: Touched) -> None:
        self._touches += 1
        if (operation := _OPERATIONS.get(touched.operation)) is None:
            self.end("more happened than the guest's kernel kept: accesses were lost")
        else:
            access = Access(
                path=self._paths[touched.index],
                operation=operation,
                process=printable(touched.process, max_chars=_MAX_NAME),
                pid=touched.pid or None,
                count=touched.count,
            )
            self.add(access)
        self.report()
        if self._touches == _MAX_TOUCHES:
            self.end("its guest agent has reported as many touches as it may")


async def watch_guest(client: GuestClient, paths: Sequence[str]) -> FileWatch:
    watch = GuestWatch(client, paths)
    watched = await client.watch_files(watch._paths, watch._on_touched, max_touches=_MAX_TOUCHES)
    if watched.errno:
        why = os.strerror(watched.errno)
        raise HostError(f"its guest agent can't watch files: {why}", where=watch.sensor)
    errors = zip(paths, watched.errors, strict=True)
    watch.missing = {path: os.strerror(error) for path, error in errors if error}
    return watch
