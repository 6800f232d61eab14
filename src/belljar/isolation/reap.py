"""Lists the journal's cells, and removes what crashed owners left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeAlias

from belljar.dataclass import asdict, dataclass, field, replace
from belljar.events import Event, JsonValue, Kind
from belljar.host.cgroups import host_hierarchies, sweep_trials
from belljar.isolation.cgroup import cpu_s, memory_bytes
from belljar.isolation.hold import sweep_orders
from belljar.isolation.identity import hold_uids
from belljar.isolation.survivors import look, remove_survivors
from belljar.process import ProcessId, boot_id, close_all, pin_namespaces
from belljar.store.home import belljar_home
from belljar.store.journal import CellAbout, Journal, JournalEntry
from belljar.store.locks import locked
from belljar.store.scratch import MAKING, sweep
from belljar.units import printable

# For the processes of a dead owner to be gone, after the kernel has killed them.
_TIMEOUT_S: Final = 3.0
# Between looks at what was just killed.
_PAUSE_S: Final = 0.002
# After a crash of a host there may be hundreds; the journal has them all.
_MAX_CELLS_REPORTED: Final = 64
_MAX_THINGS_REPORTED: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    cell_id: str
    kind: str
    removed: tuple[str, ...]
    remaining: tuple[str, ...]

    def __str__(self) -> str:
        if self.remaining:
            return f"{self.cell_id}: still there: {', '.join(self.remaining)}"
        removed = ", ".join(self.removed) or "its journal entry; nothing else was left"
        return f"{self.cell_id}: removed {removed}"


def reaped_event(reaped: Sequence[Reaped]) -> Event:
    """Return the next run's event; its lists are bounded."""

    def few(things: Sequence[str]) -> list[str]:
        return [printable(thing, max_chars=200) for thing in things[:_MAX_THINGS_REPORTED]]

    cells: list[JsonValue] = [
        {**asdict(one), "removed": few(one.removed), "remaining": few(one.remaining)}
        for one in reaped[:_MAX_CELLS_REPORTED]
    ]
    return Event(kind=Kind.HOST_REAPED, data={"count": len(reaped), "cells": cells})


async def reap(home: Path | None = None, *, cell_id: str | None = None) -> tuple[Reaped, ...]:
    """Remove what dead owners' cells left (all, or one) and half-made parts of the store.

    Reapers take turns. Raises `PermissionError`: the store is another user's.
    """
    import anyio.to_thread

    from belljar.isolation.oci.trees import sweep_trees

    home = home or belljar_home()
    reaped = await anyio.to_thread.run_sync(reap_now, home, cell_id)
    if cell_id is None:
        await sweep_trees(home)
    return reaped


def reap_now(home: Path, cell_id: str | None = None) -> tuple[Reaped, ...]:
    """Do as `reap`, blocking, without half-unpacked images."""
    journal = Journal(home)
    if cell_id is None and home.is_dir():
        # What was being made, or written, when its owner died: it is known by its name
        journal.sweep_drafts()
        sweep_orders(journal.directory)
        found = host_hierarchies()
        sweep_trials(*found.v1.values(), *(() if found.v2 is None else (found.v2,)))
        sweep(home / "tmp")
        for part in home.iterdir():
            # A tree's files may be other ids' than this user's; of runs there may be very many, and
            # none is made elsewhere.
            if part.name not in {"trees", "runs"} and part.is_dir():
                sweep(part, prefix=MAKING)
    # Mostly there is no orphan: then no other reaper's turn is waited for.
    if all(entry.owner_lives() for entry in journal.entries()):
        return ()
    with locked(home, "reap"):
        asked = (each for each in journal.entries() if cell_id in {None, each.cell_id})
        orphans = [entry for entry in asked if not entry.owner_lives()]
        return tuple(filter(None, (reap_one(home, entry) for entry in orphans)))


def reap_one(home: Path, entry: JournalEntry, *, hangs: bool = False) -> Reaped | None:
    """Remove one cell, and forget it once a look finds nothing.

    A dead owner's needs the lock `reap`. `hangs`: the owner lives, and finds the kill order when it
    goes on. None: the owner removed the cell, or ended, meanwhile.
    """
    journal, removed = Journal(home), dict[str, None]()
    give_up = time.monotonic() + _TIMEOUT_S
    while True:
        with _without_reused_numbers(entry, hangs=hangs) as own:
            found = look(own)
            # The numbers were the cell's during the look only if its owner still has it.
            if hangs and not (entry.owner_lives() and journal.read(entry.cell_id) is not None):
                return None
            remove_survivors(found.left)
        if not found.survivors or time.monotonic() >= give_up:
            break
        removed.update(dict.fromkeys(found.survivors))
        time.sleep(_PAUSE_S)
    if not found.remaining:
        # An owner that hangs finds the order when it goes on.
        journal.remove(entry.cell_id, keeps_order=hangs)
    return Reaped(
        cell_id=entry.cell_id, kind=entry.kind, removed=tuple(removed), remaining=found.remaining
    )


@contextmanager
def _without_reused_numbers(entry: JournalEntry, *, hangs: bool) -> Iterator[JournalEntry]:
    """Yield the entry without numbers that may be another cell's.

    Namespace numbers are the cell's while its process 1 is in them, uids while they are locked.
    """
    processes, pins = list[ProcessId](), dict[str, int]()
    if entry.boot_id == boot_id():
        # A living owner's fork server may serve other ranges, too.
        fork_server = entry.supervisor if entry.kind == "range" and not hangs else None
        processes = [each for each in (*entry.processes, entry.child, fork_server) if each]
        pins = {} if entry.child is None else pin_namespaces(entry.child)
    try:
        with hold_uids(None if hangs else entry.host_uid) as uid_is_free:
            yield replace(
                entry,
                # A process 1 that dies leaves most of them first, and then waits for the others
                # to die: what it has left may be a living cell's by now
                namespaces={
                    name: number
                    for name, number in entry.namespaces.items()
                    if name in pins and os.fstat(pins[name]).st_ino == number
                },
                processes=tuple(processes),
                host_uid=entry.host_uid if uid_is_free or hangs else None,
            )
    finally:
        close_all(pins.values())


CellState: TypeAlias = Literal["alive", "orphaned", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellListing:
    """`orphaned` has no living owner; `unreadable` is damaged."""

    cell_id: str
    state: CellState
    started_s_ago: float
    kind: str = ""
    owner_pid: int | None = None
    about: CellAbout = field(default_factory=CellAbout)
    memory_bytes: int | None = None
    cpu_s: float | None = None


def list_cells(home: Path | None = None) -> tuple[CellListing, ...]:
    """Raise `PermissionError` for another user's store."""
    journal = Journal(home or belljar_home())
    listed = [
        CellListing(
            cell_id=entry.cell_id,
            state="alive" if entry.owner_lives() else "orphaned",
            kind=entry.kind,
            owner_pid=entry.owner.pid,
            started_s_ago=_age_s(journal.directory / f"{entry.cell_id}.json"),
            about=journal.about(entry.cell_id),
            memory_bytes=next(filter(None, map(memory_bytes, entry.cgroups)), None),
            cpu_s=next(filter(None, map(cpu_s, entry.cgroups)), None),
        )
        for entry in journal.entries()
    ]
    damaged = [
        CellListing(cell_id=path.stem, state="unreadable", started_s_ago=_age_s(path))
        for path in journal.unreadable()
    ]
    return (*listed, *damaged)


def _age_s(path: Path) -> float:
    with suppress(FileNotFoundError):
        return max(0.0, time.time() - path.stat().st_mtime)
    return 0.0
