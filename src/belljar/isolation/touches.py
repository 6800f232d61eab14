"""Accesses to watched files, as every tier's sensor reports them, bounded in number. Pure: the
caller passes the time.

A flood costs the record a bounded number of events: accesses that are not reported at once are
counted, and reported with the next ones of their kind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Literal, Protocol, TypeAlias

from belljar.channel.own_reads import Phase
from belljar.dataclass import dataclass
from belljar.events import Trust

Operation: TypeAlias = Literal["open", "read"]

INTERVAL_S: Final = 1.0
MAX_REPORTS: Final = 32
"""In one interval, over all files: more are counted."""
MAX_QUEUED: Final = 16_384
"""Accesses that a queue holds before it tells of a loss (fanotify(7), inotify(7); gVisor's is
smaller).
"""
MAX_KEYS: Final = 128
"""Process names are the cell's to choose; beyond this many they are counted as one."""


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

        `on_end`: once, with the reason, when it stops seeing before it is closed.
        """
        ...

    async def aclose(self) -> None:
        """Report what was accessed until now, and stop. Idempotent."""
        ...


@dataclass(slots=True)
class _Kind:
    reported_s: float
    held: Access | None = None


class AccessLimit:
    """What of a stream of accesses is reported now: the first of each file and operation, whatever
    else there is, and the first of each process in an interval. The rest is held back and counted.
    """

    def __init__(self) -> None:
        self._told: set[tuple[str, Operation]] = set()
        self._kinds: dict[tuple[str, Operation, str], _Kind] = {}
        self._interval_s = -INTERVAL_S
        self._reports = 0

    def add(self, access: Access, now_s: float) -> Access | None:
        """Count the access; return what is to be reported now."""
        kind = self._kind(access, now_s)
        counted = _sum(kind.held, access)
        is_first = (access.path, access.operation) not in self._told
        if (is_first or now_s - kind.reported_s >= INTERVAL_S) and (
            self._has_room(now_s) or is_first
        ):
            self._told.add((access.path, access.operation))
            kind.reported_s, kind.held = now_s, None
            return counted
        kind.held = counted
        return None

    def due(self, now_s: float, *, everything: bool = False) -> list[Access]:
        """What was held back and is to be reported now, the longest unreported first; `everything`:
        at the end."""
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

    @property
    def holds(self) -> bool:
        """Whether something is held back."""
        return any(kind.held is not None for kind in self._kinds.values())

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


def _sum(held: Access | None, access: Access) -> Access:
    if held is None:
        return access
    if held.process != access.process:
        access = replace(access, process="", pid=None)
    return replace(access, count=held.count + access.count)


@dataclass(slots=True)
class _Ended:
    path: str
    left: int = MAX_QUEUED


class HostReads:
    """Files that the host itself reads in a cell: of their accesses nobody is told.

    An access is heard of a little later than it happens. So a read that has ended still covers its
    files until the queue of accesses was empty once after its end, or as many were read from it as
    it can hold: a cell that keeps it full gains nothing.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[str] = []
        self._ended: list[_Ended] = []

    def heard(self, path: str, phase: Phase) -> None:
        """A read of the file, or of everything in the directory, begins or has ended."""
        with self._lock:
            if phase == "begins":
                self._running.append(path)
            else:
                self._running.remove(path)
                self._ended.append(_Ended(path))

    def cover(self, path: str) -> bool:
        """Whether an access to the file may have been the host's."""
        with self._lock:
            reads = (*self._running, *(each.path for each in self._ended))
        return any(read in ("/", path) or path.startswith(f"{read}/") for read in reads)

    @property
    def ended(self) -> int:
        """How many have ended and still count: asked before the queue is read."""
        return len(self._ended)

    def forget(self, count: int, *, read: int, is_empty: bool) -> None:
        """After these had ended, so many accesses were read from the queue, which then was empty or
        not."""
        with self._lock:
            for each in self._ended[:count]:
                each.left -= read
            self._ended[:count] = [
                each for each in self._ended[:count] if not is_empty and each.left > 0
            ]
