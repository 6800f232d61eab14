"""What crashed owners left behind: listed, and removed. A living owner's cells are never touched.

Reads only the journal, so it needs no memory of its own and can be run by the next start, by hand, or by a timer.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import anyio.to_thread

from belljar.host.home import belljar_home
from belljar.isolation.identity import hold_uid
from belljar.isolation.journal import Journal, JournalEntry
from belljar.isolation.process import boot_id, close_all, pin_namespaces
from belljar.isolation.survivors import LOOKED_FOR, Destruction, find_survivors, remove_survivors

CellState: TypeAlias = Literal["alive", "orphaned", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellListing:
    """One line of `belljar ps`. `orphaned`: the owner is gone. `unreadable`: the journal's file is damaged; `cell_id` is its name then."""

    cell_id: str
    state: CellState
    kind: str
    owner_pid: int | None
    supervisor_pid: int | None
    started_s_ago: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """A cell whose owner was gone: what was found of it and removed, and what is still there after that."""

    cell_id: str
    kind: str
    removed: tuple[str, ...]
    remaining: tuple[str, ...]

    def __str__(self) -> str:
        if self.remaining:
            return f"{self.cell_id}: still there: {', '.join(self.remaining)}"
        return f"{self.cell_id}: removed {', '.join(self.removed) or 'its journal entry; nothing else was left'}"


def list_cells(home: Path | None = None) -> tuple[CellListing, ...]:
    """The cells of the journal, the oldest first. Raises `PermissionError` when the store is another user's."""
    journal = Journal(home or belljar_home())
    listed = [_listing(journal, entry) for entry in journal.entries()]
    damaged = [
        CellListing(
            cell_id=path.stem,
            state="unreadable",
            kind="",
            owner_pid=None,
            supervisor_pid=None,
            started_s_ago=_age_s(path),
        )
        for path in journal.unreadable()
    ]
    return (*listed, *damaged)


async def reap(home: Path | None = None, *, cell_id: str | None = None) -> tuple[Reaped, ...]:
    """Remove what dead owners' cells left (all, or one). Two reapers at once take turns. Raises `PermissionError` when the store is another user's."""
    return await anyio.to_thread.run_sync(reap_now, home or belljar_home(), cell_id)


def reap_now(home: Path, cell_id: str | None = None) -> tuple[Reaped, ...]:
    """As `reap`, blocking."""
    if not home.is_dir():
        return ()
    with _reaper(home):
        journal = Journal(home)
        return tuple(
            _reap_one(home, journal, entry)
            for entry in journal.entries()
            if not entry.owner_lives() and cell_id in {None, entry.cell_id}
        )


def destroy_remains(entry: JournalEntry, started: float) -> Destruction:
    """The proof: look, remove what there is, and report it. Blocking; `started` is `time.monotonic()` at the kill."""
    survivors = find_survivors(entry)
    if survivors:
        remove_survivors(survivors)
    return Destruction(
        survivors=tuple(survivor.what for survivor in survivors),
        looked_for=LOOKED_FOR,
        duration_ms=(time.monotonic() - started) * 1000,
    )


def _reap_one(home: Path, journal: Journal, entry: JournalEntry) -> Reaped:
    with _still_telling(home, entry) as telling:
        found = find_survivors(telling)
        remove_survivors(found)
        remaining = find_survivors(telling)
    if not remaining:
        journal.remove(entry.cell_id)
    return Reaped(
        cell_id=entry.cell_id,
        kind=entry.kind,
        removed=tuple(survivor.what for survivor in found),
        remaining=tuple(survivor.what for survivor in remaining),
    )


@contextmanager
def _still_telling(home: Path, entry: JournalEntry) -> Iterator[JournalEntry]:
    """The entry without the numbers that may be another's by now; those left stay this cell's while the block runs.

    A namespace's number is used again as soon as nothing is in it. While the child (process 1 of its pid namespace) lives, they are its; when it is dead the kernel has
    killed all that was in there, and nothing in a jail can leave its namespaces. A uid is the cell's as long as nobody else can lock it.
    """
    child = entry.child if entry.boot_id == boot_id() else None
    pins = pin_namespaces(child) if child is not None else {}
    try:
        with hold_uid(home, entry.host_uid) as uid_is_free:
            yield replace(
                entry,
                namespaces=entry.namespaces if pins else {},
                host_uid=entry.host_uid if uid_is_free else None,
            )
    finally:
        close_all(pins.values())


def _listing(journal: Journal, entry: JournalEntry) -> CellListing:
    return CellListing(
        cell_id=entry.cell_id,
        state="alive" if entry.owner_lives() else "orphaned",
        kind=entry.kind,
        owner_pid=entry.owner.pid,
        supervisor_pid=entry.supervisor.pid if entry.supervisor else None,
        started_s_ago=_age_s(journal.directory / f"{entry.cell_id}.json"),
    )


def _age_s(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return 0.0


@contextmanager
def _reaper(home: Path) -> Iterator[None]:
    directory = home / "locks"
    directory.mkdir(exist_ok=True, mode=0o700)
    fd = os.open(directory / "reap", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
