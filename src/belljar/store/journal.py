"""Journal of host resources: one file per cell or range, for cleanup after crashes.

Groups, directories and uids are entered before they exist; supervisor and namespaces once known.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

from belljar.dataclass import dataclass, field, field_names, from_json, json_of, replace
from belljar.descriptors import patiently
from belljar.process import ProcessId, boot_id, is_alive, raise_if_blind, this_process
from belljar.store.scratch import DRAFT, sweep, write_whole

_T = TypeVar("_T")
EntryKind: TypeAlias = Literal["cell", "template", "proof", "wire", "range"]
# As `new_cell_id` makes it: 48 random bits, in no character that a path or a shell obeys.
CELL_ID: Final = re.compile(r"c-[0-9a-f]{12}", re.ASCII)
RANGE_ID: Final = re.compile(r"r-[0-9a-f]{12}", re.ASCII)
# A range has a prefix of its own; all else is named as a cell is.
_IDS: Final = {**dict.fromkeys(("cell", "template", "proof", "wire"), CELL_ID), "range": RANGE_ID}
# Of kill orders (`isolation.hold`).
ORDER_SUFFIX: Final = ".kill"
# For who must act now.
LOOK_TIMEOUT_S: Final = 0.5
# An entry has some 2 KiB; a larger one was not written by this package.
_MAX_ENTRY_BYTES: Final = 1 << 16
# Of an entry. One of another number is left alone, and reported.
_FORMAT: Final = 1
# What people are shown of a cell; removal reads the entry alone.
_ABOUT_SUFFIX: Final = ".about"


def new_cell_id() -> str:
    return f"c-{secrets.token_hex(6)}"


def new_range_id() -> str:
    return f"r-{secrets.token_hex(6)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalEntry:
    """The resources of one cell or range (`cell_id`) on this host; reaping removes them all.

    `host_uid` is the first of `uid_count` own uids, None if shared. `part_of` is a cell's range or
    a wire's cell. A range's `supervisor` is the fork server, its `child` the range supervisor.
    """

    cell_id: str
    kind: EntryKind
    boot_id: str
    owner: ProcessId
    cgroups: tuple[Path, ...] = ()
    directories: tuple[Path, ...] = ()
    host_uid: int | None = None
    uid_count: int = 1
    supervisor: ProcessId | None = None
    child: ProcessId | None = None
    namespaces: Mapping[str, int] = field(default_factory=dict)
    processes: tuple[ProcessId, ...] = ()
    part_of: str = ""

    @property
    def own_uids(self) -> range:
        first = self.host_uid
        return range(0) if first is None else range(first, first + self.uid_count)

    def owner_lives(self) -> bool:
        return self.boot_id == boot_id() and is_alive(self.owner)

    def to_json(self) -> dict[str, Any]:
        return {"version": _FORMAT, **json_of(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JournalEntry:
        """Raise `ValueError` for what is no entry."""
        try:
            words = {name: value for name, value in data.items() if name != "version"}
            # Without a part of it a cell would be taken for one of which nothing is left
            if lacking := set(field_names(cls)) - words.keys():
                raise KeyError(min(lacking))
            entry: JournalEntry = from_json(cls, words)
            if data["version"] != _FORMAT or _IDS[entry.kind].fullmatch(entry.cell_id) is None:
                raise ValueError("not an entry of this version")
        except (KeyError, TypeError, AttributeError, OverflowError) as exc:
            raise ValueError(f"not a journal entry: {exc!r}") from exc
        # A damaged entry must not remove others' paths.
        for path in (*entry.cgroups, *entry.directories):
            is_odd = "\0" in str(path) or ".." in path.parts
            if is_odd or not path.is_absolute() or entry.cell_id not in path.name:
                raise ValueError(f"{path} does not belong to cell {entry.cell_id}")
        return entry


def own_entry(cell_id: str, kind: EntryKind, **resources: Any) -> JournalEntry:  # noqa: ANN401
    return JournalEntry(
        cell_id=cell_id, kind=kind, boot_id=boot_id(), owner=this_process(), **resources
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CellAbout:
    run_id: str = ""
    sample: str = ""
    epoch: int = 0
    tier: str = ""
    risk: str = ""
    policy: str = ""
    range_id: str = ""
    name: str = ""
    memory_limit_bytes: int = 0


class Journal:
    def __init__(self, home: Path) -> None:
        self.directory = home / "journal"

    def write(self, entry: JournalEntry) -> None:
        """Write an entry before its resources exist, durably."""
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._save(self._path(entry.cell_id), entry.to_json(), is_durable=True)

    def update(self, entry: JournalEntry, **facts: Any) -> JournalEntry:  # noqa: ANN401
        """Add facts, not synced: a reboot makes them untrue."""
        changed = replace(entry, **facts)
        self._save(self._path(entry.cell_id), changed.to_json())
        return changed

    def remove(self, cell_id: str, *, keeps_order: bool = False) -> None:
        self._path(cell_id).with_suffix(_ABOUT_SUFFIX).unlink(missing_ok=True)
        self._path(cell_id).unlink(missing_ok=True)
        if not keeps_order:
            self._path(cell_id).with_suffix(ORDER_SUFFIX).unlink(missing_ok=True)

    def read(self, cell_id: str) -> JournalEntry | None:
        """Return None for a damaged entry. Raises `OSError` if unreadable."""
        return _read(self._path(cell_id))

    def describe(self, cell_id: str, about: CellAbout) -> None:
        self._save(self._path(cell_id).with_suffix(_ABOUT_SUFFIX), json_of(about))

    def about(self, cell_id: str) -> CellAbout:
        path = self._path(cell_id).with_suffix(_ABOUT_SUFFIX)
        return _loaded(path, partial(from_json, CellAbout)) or CellAbout()

    def entries(self) -> tuple[JournalEntry, ...]:
        """Return readable entries, oldest first. Raises `PermissionError`: another user's."""
        return tuple(entry for path in self._files() if (entry := _read(path)) is not None)

    def entries_now(self, problems: list[str]) -> tuple[JournalEntry, ...]:
        """Return entries; what can't be read in time becomes a problem."""
        found, give_up = list[JournalEntry | None](), time.monotonic() + LOOK_TIMEOUT_S
        for path in patiently(self._files, LOOK_TIMEOUT_S):
            try:
                found.append(patiently(partial(_read, path), give_up - time.monotonic()))
            except OSError as exc:
                problems.append(f"{path} can't be read: {exc.strerror}")
        return tuple(entry for entry in found if entry is not None)

    def unreadable(self) -> tuple[Path, ...]:
        """Return damaged files, for a person to look at."""
        return tuple(path for path in self._files() if path.exists() and _read(path) is None)

    def sweep_drafts(self) -> None:
        sweep(self.directory, prefix=DRAFT)

    def _save(self, path: Path, data: Mapping[str, Any], *, is_durable: bool = False) -> None:
        write_whole(path, json.dumps(data, sort_keys=True), is_durable=is_durable)

    def _files(self) -> list[Path]:
        found = []
        try:
            names = os.listdir(self.directory)  # noqa: PTH208 - glob reads a closed one as empty
        except FileNotFoundError:
            return []
        for path in (self.directory / name for name in names):
            if path.suffix == ".json" and not path.name.startswith("."):
                with suppress(FileNotFoundError):
                    found.append((path.stat().st_mtime, path))
        return [path for _, path in sorted(found)]

    def _path(self, cell_id: str) -> Path:
        if CELL_ID.fullmatch(cell_id) is None and RANGE_ID.fullmatch(cell_id) is None:
            raise ValueError(f"{cell_id!r} is not a cell id, nor a range's")
        return self.directory / f"{cell_id}.json"


def _read(path: Path) -> JournalEntry | None:
    entry = _loaded(path, JournalEntry.from_json)
    # A copied or renamed file must not stand for another cell.
    return entry if entry is not None and path.name == f"{entry.cell_id}.json" else None


def _loaded(path: Path, parse: Callable[[Any], _T]) -> _T | None:
    try:
        if path.stat().st_size > _MAX_ENTRY_BYTES:
            return None
        return parse(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as exc:
        raise_if_blind(exc)  # that it can't be looked at is not that it is gone
        return None
