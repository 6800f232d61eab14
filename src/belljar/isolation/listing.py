"""The cells of the journal, for a list. Only reads; `belljar ps` needs nothing else of a cell."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from belljar.isolation.cgroup import memory_bytes
from belljar.store.home import belljar_home
from belljar.store.journal import CellAbout, Journal, JournalEntry

CellState: TypeAlias = Literal["alive", "orphaned", "unreadable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellListing:
    """One line of `belljar ps`. `about` is empty where nobody said what the cell is for;
    `memory_bytes` None: its control group can't be read, or it has none.

    `orphaned`: the owner is gone. `unreadable`: the journal's file is damaged; `cell_id` is its
    name then.
    """

    cell_id: str
    state: CellState
    kind: str
    owner_pid: int | None
    supervisor_pid: int | None
    started_s_ago: float
    about: CellAbout = field(default_factory=CellAbout)
    memory_bytes: int | None = None


def list_cells(home: Path | None = None) -> tuple[CellListing, ...]:
    """The cells of the journal, the oldest first.

    Raises `PermissionError` when the store is another user's.
    """
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


def _listing(journal: Journal, entry: JournalEntry) -> CellListing:
    return CellListing(
        cell_id=entry.cell_id,
        state="alive" if entry.owner_lives() else "orphaned",
        kind=entry.kind,
        owner_pid=entry.owner.pid,
        supervisor_pid=entry.supervisor.pid if entry.supervisor else None,
        started_s_ago=_age_s(journal.directory / f"{entry.cell_id}.json"),
        about=journal.about(entry.cell_id),
        memory_bytes=next(filter(None, map(memory_bytes, entry.cgroups)), None),
    )


def _age_s(path: Path) -> float:
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return 0.0
