"""The kill switch: halts any process's cells, then proves that nothing is left."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.dataclass import asdict, dataclass
from belljar.descriptors import patiently
from belljar.errors import BelljarError, HostError
from belljar.isolation import cgroup
from belljar.isolation.hold import KillOrder, give_order, hold, new_order, run_goes_on
from belljar.isolation.reap import reap_now, reap_one
from belljar.isolation.survivors import cells_named, read_start
from belljar.process import PORTS_DOWN, ProcessId, boot_id, identify, is_alive, other_pids, urgently
from belljar.process import kill as kill_process
from belljar.store.home import belljar_home
from belljar.store.journal import CELL_ID, LOOK_TIMEOUT_S, Journal, JournalEntry, own_entry
from belljar.store.scratch import write_whole
from belljar.units import printable

# For owners' own destruction.
OWNER_GRACE_S: Final = 5.0
# For a look at a disk that hangs: a kill must go on to the cells that it knows.
HALT_TIMEOUT_S: Final = 5.0
# How long a range's supervisor has for that, and what was struck for dying
_PORTS_DOWN_S: Final = 0.1
# After the last process is gone, only files and groups are left to remove.
REMOVE_TIMEOUT_S: Final = 3.0
# Between looks at what is dying: short beside a cell's end, long beside a look.
_PAUSE_S: Final = 0.005
# In the store: a file per kill, whose last version is signed.
KILLS: Final = "kills"


@dataclass(frozen=True, slots=True)
class Killed:
    """One entry and its end. `halted_ms` None: some process was left."""

    cell_id: str
    kind: str
    halted_ms: float | None
    remaining: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Halted and destroyed, with proof."""
        return self.halted_ms is not None and not self.remaining


@dataclass(frozen=True, slots=True)
class KillReport:
    """One use of the switch. `problems`: what failed besides."""

    order: KillOrder
    cells: tuple[Killed, ...]
    duration_ms: float
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Everything was halted and destroyed, with proof."""
        return all(cell.ok for cell in self.cells) and not self.problems


async def kill(
    *names: str,
    everything: bool = False,
    hold: bool = False,
    reason: str = "",
    home: Path | None = None,
) -> KillReport:
    """Halt cells of any process of this user at once, and prove that they are destroyed.

    As `belljar kill` (docs/kill.md); a cell of a range ends with its whole range.

    `names`: cells, ranges, or runs by the beginning of their ids (no new cell is made in them).
    `everything`: idle cells and templates being made too. `hold`: no new cell until `release`.

    Raises `LookupError`: no cell or run of that name; nothing was killed. `PermissionError`: the
    store is another user's.
    """
    home = home or belljar_home()
    act = partial(kill_now, home, names, everything=everything, hold_too=hold, reason=reason)
    # A kill that has begun is finished, whatever becomes of its caller's task.
    with anyio.CancelScope(shield=True):
        report = await anyio.to_thread.run_sync(act)
    return report  # noqa: RET504 - mypy takes the block for one that may swallow errors


def kill_now(
    home: Path,
    names: Sequence[str],
    *,
    everything: bool = False,
    hold_too: bool = False,
    reason: str = "",
) -> KillReport:
    """As `kill`, blocking."""
    with urgently():
        journal, problems, began = Journal(home), list[str](), time.monotonic()
        patiently(boot_id, HALT_TIMEOUT_S)  # known from here on
        known = journal.entries_now(problems) if names else ()
        cells = {*names} & {entry.cell_id for entry in known}
        find = partial(_find_run, home)
        runs = {patiently(partial(find, each), HALT_TIMEOUT_S) for each in {*names} - cells}
        order = new_order("all" if everything else "run" if runs else "cells", reason)
        # Both before the list: what is made meanwhile sees them, or is on the list
        if hold_too:
            try:
                hold(home, order.reason)
            except HostError as exc:
                problems.append(exc.what)
        for run_id in runs:
            try:
                if patiently(partial(run_goes_on, home, run_id), HALT_TIMEOUT_S):
                    give_order(home, [run_id], order)
            except OSError as exc:
                problems.append(f"the run {run_id} may make new cells: {exc.strerror}")
        entries = journal.entries_now(problems)
        if not everything:
            named = cells.union(*(of_run(journal, entries, run, problems) for run in runs))
            entries = choose(entries, named)
        problems += order_all(home, entries, order)
        halted = halt(journal, entries, began)
    if everything:
        _halt_damaged(journal, {entry.cell_id for entry in entries}, problems)
    return _settled(home, entries, order, halted, began, problems)


def _find_run(home: Path, name: str) -> str:
    from belljar.ledger.listing import run_ids

    found = [run_id for run_id in run_ids(home) if run_id.startswith(name)] if name else []
    if len(found) != 1:
        raise LookupError(name)
    return found[0]


def of_run(
    journal: Journal, entries: Sequence[JournalEntry], run_id: str, problems: list[str]
) -> set[str]:
    """Return a run's cells, by their owners' descriptions."""
    found, give_up = set[str](), time.monotonic() + LOOK_TIMEOUT_S
    for entry in entries:
        try:
            about = patiently(partial(journal.about, entry.cell_id), give_up - time.monotonic())
        except OSError as exc:
            problems.append(f"whose cell {entry.cell_id} is can't be read: {exc.strerror}")
        else:
            found |= {entry.cell_id} if about.run_id == run_id else set()
    return found


def choose(entries: Sequence[JournalEntry], named: Iterable[str]) -> tuple[JournalEntry, ...]:
    """Return the named entries with their whole ranges."""
    parents = {entry.cell_id: entry.part_of or entry.cell_id for entry in entries}
    whole = {name: name for name in parents}
    for _ in range(3):  # a wire is a machine's, which is a range's
        whole = {name: parents.get(part_of, part_of) for name, part_of in whole.items()}
    wanted = {whole.get(name, name) for name in named}
    return tuple(entry for entry in entries if whole[entry.cell_id] in wanted)


def _settled(
    home: Path,
    entries: Sequence[JournalEntry],
    order: KillOrder,
    halted: Mapping[str, float],
    began: float,
    problems: list[str],
) -> KillReport:
    _note(home, order, {"state": "halted", "cells": sorted(halted)}, problems)
    give_up, cells = time.monotonic() + OWNER_GRACE_S, list[Killed]()
    for entry in entries:
        within_s = give_up - time.monotonic() + REMOVE_TIMEOUT_S
        try:
            settle = partial(_settle, home, entry.cell_id, give_up)
            remaining = patiently(settle, within_s)
        except (BelljarError, OSError) as exc:
            why = exc.what if isinstance(exc, BelljarError) else f"{exc.strerror or exc}"
            remaining = (f"unproven, as it can't be looked at: {why}",)
        left = tuple(printable(what, max_chars=200) for what in remaining)
        cells.append(Killed(entry.cell_id, entry.kind, halted.get(entry.cell_id), left))
    duration_ms = (time.monotonic() - began) * 1000
    _note(home, order, {"state": "completed", "cells": list(map(asdict, cells))}, problems)
    return KillReport(order, tuple(cells), duration_ms, tuple(problems))


def order_all(home: Path, entries: Sequence[JournalEntry], order: KillOrder) -> list[str]:
    """Write the order for each; returns problems."""
    try:
        give_order(home, [entry.cell_id for entry in entries], order)
    except OSError as exc:
        return [f"kill orders can't be written: {exc.strerror}"]
    return []


def strike(entries: Sequence[JournalEntry]) -> None:
    """Ports down, then all cells at once; doesn't wait."""
    # Pids of an earlier boot are other processes' now.
    here = [entry for entry in entries if entry.boot_id == boot_id()]
    for entry in sorted(here, key=lambda entry: entry.kind != "range"):
        for process in entry.processes if entry.kind == "range" else (entry.child,):
            is_port = entry.kind == "range" and process == entry.child
            if process is not None:
                _send(process, PORTS_DOWN if is_port else signal.SIGKILL)
    for group in (group for entry in here if entry.kind != "range" for group in entry.cgroups):
        cgroup.halt(group)


def halt_in_background(home: Path, entries: Sequence[JournalEntry]) -> None:
    """Finish what `strike` began, in a thread."""
    act = partial(halt, Journal(home), entries, time.monotonic())
    threading.Thread(target=act, name="kill-switch", daemon=True).start()


def halt(journal: Journal, entries: Sequence[JournalEntry], began: float) -> dict[str, float]:
    """Strike for 5 s at most; the milliseconds of each that is halted."""
    strike(entries)
    first_look = time.monotonic() + _PORTS_DOWN_S
    give_up = time.monotonic() + HALT_TIMEOUT_S
    left = {entry.cell_id: entry for entry in entries if entry.boot_id == boot_id()}
    halted = {entry.cell_id: 0.0 for entry in entries if entry.cell_id not in left}
    # It only grows: a dying process has no command line any more, and still runs.
    started: dict[str, set[ProcessId]] = {name: set() for name in left}
    # A look at everything would only delay the dying.
    while time.monotonic() < first_look:
        with contextlib.suppress(OSError):
            if not any(map(is_alive, itertools.chain(*map(_known, left.values())))):
                break
        time.sleep(_PAUSE_S)
    while left and time.monotonic() < give_up:
        try:
            for name, processes in started_for(set(left)).items():
                started[name].update(processes)
            is_blind = False
        except OSError:
            # Without a look at /proc nothing proves an end: all count as running.
            is_blind = True
        for name, entry in tuple(left.items()):
            found = {*_known(entry), *started[name]}
            # A supervisor ends with its child.
            spared = {entry.supervisor} if entry.child else set()
            # What can't be looked at counts as running; what is known of it is struck again.
            with contextlib.suppress(OSError):
                entry = left[name] = journal.read(name) or entry
                found |= {*_known(entry)}
                for group in entry.cgroups:
                    pids = cgroup.processes_in(group, threads=False)
                    found |= set(filter(None, map(identify, pids)))
                spared = {entry.supervisor} if entry.child else set()
                if not is_blind and not any(map(is_alive, found - spared)):
                    halted[name] = round((time.monotonic() - began) * 1000, 1)
                    del left[name]
                    continue
            for process in found - spared:
                _send(process, signal.SIGKILL)
            for group in () if entry.kind == "range" else entry.cgroups:
                cgroup.halt(group)
        if left:
            time.sleep(_PAUSE_S)
    return halted


def _known(entry: JournalEntry) -> tuple[ProcessId, ...]:
    return (*entry.processes, *(() if entry.child is None else (entry.child,)))


def started_for(names: set[str]) -> Mapping[str, tuple[ProcessId, ...]]:
    """Launchers and VMMs by cell, from /proc command lines."""
    found: dict[str, tuple[ProcessId, ...]] = {}
    # This process's own command line may name the cells that it was asked to kill.
    for pid in other_pids():
        for name in names.intersection(cells_named(read_start(pid, "cmdline"))):
            if (process := identify(pid)) is not None:
                found[name] = (*found.get(name, ()), process)
    return found


def _send(process: ProcessId, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        kill_process(process, number)


def _settle(home: Path, cell_id: str, give_up: float) -> tuple[str, ...]:
    """Wait for its owner, or remove it; return what is left."""
    journal = Journal(home)
    while (entry := journal.read(cell_id)) is not None:
        if not entry.owner_lives():
            for reaped in reap_now(home, cell_id):
                return reaped.remaining
        elif time.monotonic() < give_up:
            time.sleep(_PAUSE_S)
        elif (hung := reap_one(home, entry, hangs=True)) is not None:
            return hung.remaining
    if any(path.stem == cell_id for path in journal.unreadable()):
        return ("unproven, as its journal entry can't be read",)
    return ()


def _halt_damaged(journal: Journal, known: set[str], problems: list[str]) -> None:
    paths: Iterable[Path] = ()
    try:
        paths = patiently(journal.unreadable, REMOVE_TIMEOUT_S)
        problems += [f"{path} can't be read" for path in paths]
    except OSError as exc:
        problems.append(f"whether the journal is damaged is not known: {exc.strerror}")
        with contextlib.suppress(OSError):
            paths = [path for path in journal.directory.glob("*.json") if path.stem not in known]
    names = {path.stem for path in paths if CELL_ID.fullmatch(path.stem)}
    # As if nothing of theirs were known but what was started for them
    halted = halt(journal, [own_entry(name, "cell") for name in names], time.monotonic())
    problems += [f"cell {name} may still run" for name in sorted(names - halted.keys())]


def _note(home: Path, order: KillOrder, what: Mapping[str, object], problems: list[str]) -> None:
    try:
        directory = home / KILLS
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        document = {**asdict(order), **what, "problems": list(problems)}
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        if what["state"] == "completed":
            from belljar.ledger.keys import load_or_make_key

            key = load_or_make_key(home)
            signature = key.sign(text.encode())
            text = json.dumps({"document": text, "key": key.public_key, "signature": signature})
        write_whole(directory / f"{order.kill_id}.json", text)
    except Exception as exc:  # noqa: BLE001 - a record that fails stops no kill
        problems.append(f"the kill could not be put on record: {exc}")
