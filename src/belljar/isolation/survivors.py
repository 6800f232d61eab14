"""Proof of destruction: looks for anything left of a cell on this host."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from belljar.dataclass import dataclass, replace
from belljar.descriptors import open_fd
from belljar.errors import ContainmentBreach, HostError, first_of
from belljar.events import JsonValue
from belljar.isolation import cgroup
from belljar.process import (
    PROC,
    ProcessId,
    identify,
    identify_group,
    is_alive,
    kill,
    namespaces_of,
    namespaces_of_threads,
    other_pids,
    raise_if_blind,
)
from belljar.store.journal import JournalEntry
from belljar.store.scratch import remove_tree
from belljar.units import printable

# For killed processes to be gone: then they are reported.
_KILL_TIMEOUT_S: Final = 1.0
_NAMELESS_CHILD_S: Final = 2.0
_READ_BYTES: Final = 1 << 16  # a command line may have megabytes; a cell's name comes early
_NOT_CONTAINED: Final = "do not count this sample as contained"
# A cell's own process may share those with the host only by a defect; a mere look-alike would.
_TELLING_NAMESPACES: Final = ("pid", "mnt", "net", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    what: str
    process: ProcessId | None = None
    path: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Destruction:
    """One look at the host found this of a cell.

    `not_checked` was not looked for, with reasons; a proof needs those in `unproven` (processes,
    control groups, mounts, files).
    """

    survivors: tuple[str, ...] = ()
    looked_for: tuple[str, ...] = ()
    duration_ms: float = 0.0
    not_checked: tuple[str, ...] = ()
    unproven: tuple[str, ...] = ()
    left: tuple[Survivor, ...] = ()

    @property
    def remaining(self) -> tuple[str, ...]:
        """Return what is left, or was not looked for."""
        return (*self.survivors, *(f"not looked for: {what}" for what in self.unproven))

    @property
    def clean(self) -> bool:
        """Return True if all needed looks were made and found nothing."""
        return not self.survivors and not self.unproven

    def raise_if_unclean(
        self, what: str, *, where: str, beside: BaseException | None = None
    ) -> None:
        """Raise `ContainmentBreach` if something was left, `HostError` if unproven.

        `beside` is raised already: a breach alone is raised in its place.
        """
        if self.survivors and (beside is None or first_of(beside, ContainmentBreach) is None):
            hint = "it was removed and recorded; look at the ledger before the next run"
            left = f"{what} left: {', '.join(self.survivors)}"
            raise ContainmentBreach(left, where=where, hint=f"{_NOT_CONTAINED}; {hint}")
        if self.unproven and beside is None:
            hint = "let this user see what is named, then `belljar reap` looks again"
            unproven = f"{what} could not be proven; not looked for: {'; '.join(self.unproven)}"
            raise HostError(unproven, where=where, hint=f"{_NOT_CONTAINED}; {hint}")

    def to_data(self) -> dict[str, JsonValue]:
        """Return it as `cell.destroyed` records it."""
        return {
            "clean": self.clean,
            "survivors": list(self.survivors),
            "checked": list(self.looked_for),
            "not_checked": list(self.not_checked),
            "duration_ms": round(self.duration_ms, 1),
        }


def together(cell: Destruction, besides: Destruction) -> Destruction:
    """Return both as one; unproven adds up."""
    missed = {each.partition(":")[0] for each in besides.unproven}
    return Destruction(
        survivors=(*besides.survivors, *cell.survivors),
        looked_for=tuple(what for what in cell.looked_for if what not in missed),
        not_checked=tuple(dict.fromkeys((*cell.not_checked, *besides.unproven))),
        unproven=tuple(dict.fromkeys((*cell.unproven, *besides.unproven))),
        duration_ms=cell.duration_ms + besides.duration_ms,
    )


class _Look(NamedTuple):
    """`by` is its required field of the entry."""

    what: str
    find: Callable[[JournalEntry], Iterable[Survivor]]
    by: str = ""
    needed: bool = True


# It never ran, shares its user's uid, or its numbers may be another's now
_NOTHING_TO_LOOK_BY: Final = "the cell had none of its own, or none is known"


def look(entry: JournalEntry) -> Destruction:
    left: dict[object, Survivor] = {}
    looked_for, not_checked, unproven = list[str](), list[str](), list[str]()
    for each in _looks():
        if each.by and not getattr(entry, each.by):
            not_checked.append(f"{each.what}: {_NOTHING_TO_LOOK_BY}")
            continue
        try:
            for found in each.find(entry):
                left.setdefault(found.process or found.what, found)
        except OSError as exc:
            where = f"{exc.filename}: " if exc.filename else ""
            reason = printable(f"{where}{exc.strerror or exc}", max_chars=200)
            not_checked.append(f"{each.what}: {reason}")
            unproven += not_checked[-1:] if each.needed else []
        else:
            looked_for.append(each.what)
    return Destruction(
        survivors=tuple(survivor.what for survivor in left.values()),
        looked_for=tuple(looked_for),
        not_checked=tuple(not_checked),
        unproven=tuple(unproven),
        left=tuple(left.values()),
    )


def wait_for_dying(entry: JournalEntry) -> None:
    give_up = time.monotonic() + _NAMELESS_CHILD_S
    while time.monotonic() < give_up and any(found.process for found in look(entry).left):
        time.sleep(0.002)


def destroy_remains(entry: JournalEntry, started: float) -> Destruction:
    found = look(entry)
    if found.left:
        remove_survivors(found.left)
    return replace(found, duration_ms=(time.monotonic() - started) * 1000)


def must_be_reaped(entry: JournalEntry, destruction: Destruction) -> bool:
    """Return whether something resisted removal or couldn't be checked."""
    return bool(destruction.unproven or (destruction.survivors and look(entry).remaining))


def remove_survivors(survivors: tuple[Survivor, ...]) -> None:
    processes = [survivor.process for survivor in survivors if survivor.process is not None]
    for process in processes:
        with contextlib.suppress(OSError):
            kill(process)
    give_up = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < give_up and any(identify(each.pid) == each for each in processes):
        time.sleep(0.002)
    # A group, file or directory; no link is followed
    for path in (survivor.path for survivor in survivors if survivor.path is not None):
        if (path / "cgroup.procs").exists():
            cgroup.remove_group(path)
        elif path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _processes(why: Callable[[JournalEntry, int], str], entry: JournalEntry) -> Iterator[Survivor]:
    if not os.access("/proc/1/status", os.R_OK):
        raise OSError(errno.ENODATA, "/proc hides other users' processes here (its option hidepid)")
    for pid in other_pids():
        if (reason := why(entry, pid)) and (process := identify(pid)) is not None:
            yield _survivor(process, reason)


def _survivor(process: ProcessId, why: str) -> Survivor:
    try:
        comm = (PROC / str(process.pid) / "comm").read_bytes()
        name = printable(comm.strip(), max_chars=32)
    except OSError:
        name = "ended meanwhile"
    return Survivor(what=f"process {process.pid} ({name}) {why}", process=process)


def _groups(entry: JournalEntry) -> Iterator[Survivor]:
    for group in entry.cgroups:
        # Else nothing is mounted there now, and a group's absence says nothing
        (group.parent / "cgroup.procs").stat()
        for number in cgroup.processes_in(group):
            process = identify_group(number)
            if process is not None and process.pid != os.getpid():
                yield _survivor(process, f"in {group}")
        if _is_there(group):
            yield Survivor(what=f"control group {group}", path=group)


def _in_namespace(entry: JournalEntry, pid: int) -> str:
    theirs = namespaces_of(pid, _TELLING_NAMESPACES)
    if len(theirs) < len(_TELLING_NAMESPACES):
        theirs = namespaces_of_threads(pid, _TELLING_NAMESPACES)
    shared = theirs.items() & entry.namespaces.items()
    return f"in the cell's {min(shared)[0]} namespace" if shared else ""


def _closed(entry: JournalEntry) -> Iterator[Survivor]:
    """Raise if processes no older hide their namespaces."""
    since_ticks, hidden = (entry.supervisor or entry.owner).start_ticks, 0
    for pid in other_pids():
        try:
            os.readlink(f"/proc/{pid}/ns/pid")  # noqa: PTH115 - as `namespaces_of`
        except PermissionError:
            # A refusal is the kernel's word for one that has just ended, too
            process = identify(pid)
            hidden += process is not None and process.start_ticks >= since_ticks
        except OSError:
            continue
    if hidden:
        raise OSError(errno.ENODATA, f"not those of {hidden} that hide them from this user")
    yield from ()


def _has_uid(entry: JournalEntry, pid: int) -> str:
    _, named, rest = read_start(pid, "status").partition(b"\nUid:")
    uids = rest.partition(b"\n")[0].split() if named else []
    found = next((uid for uid in uids if int(uid) in entry.own_uids), None)
    return f"with the cell's uid {int(found)}" if found is not None else ""


def _started(entry: JournalEntry) -> Iterator[Survivor]:
    for process in filter(is_alive, entry.processes):
        yield _survivor(process, "named in its journal entry")

    def started_for(entry: JournalEntry, pid: int) -> str:
        named = entry.cell_id in cells_named(read_start(pid, "cmdline"))
        return "started for the cell" if named else ""

    yield from _processes(started_for, entry)


def cells_named(cmdline: bytes) -> Iterator[str]:
    """Yield the cells that a launcher's or VMM's options name."""
    for option, word in itertools.pairwise(cmdline.split(b"\0")):
        if option == b"--cell":
            yield word.decode("ascii", "replace")
        elif option == b"-name" and word.startswith(b"guest="):
            yield word.removeprefix(b"guest=").decode("ascii", "replace")


def read_start(pid: int, name: str) -> bytes:
    try:
        with open_fd(os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)) as fd:
            return os.read(fd, _READ_BYTES)
    except OSError as exc:
        raise_if_blind(exc)
        return b""


def _files(entry: JournalEntry) -> Iterator[Survivor]:
    for path in filter(_is_there, entry.directories):
        yield Survivor(what=f"files in {path}", path=path)


def _is_there(path: Path) -> bool:
    """Raise `OSError` if that is unknown."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _mounts(entry: JournalEntry) -> Iterator[Survivor]:
    """Mounts are reported only: unmounting is manual."""
    held = {f"{name}:[{inode}]" for name, inode in entry.namespaces.items()}
    # Not `splitlines`: the kernel leaves form feeds and the like in names as they are
    for line in (PROC / "self/mountinfo").read_text(errors="replace").split("\n"):
        names = line.split(" ")[3:5]
        if any(entry.cell_id in name for name in names) or not held.isdisjoint(names[:1]):
            yield Survivor(what=f"mount {printable(names[-1], max_chars=200)}")


def _sockets(entry: JournalEntry) -> Iterator[Survivor]:
    for line in (PROC / "net/unix").read_text(errors="replace").split("\n"):
        if entry.cell_id in line:
            yield Survivor(what=f"socket {printable(line.split(' ')[-1], max_chars=200)}")


def _looks() -> tuple[_Look, ...]:
    return (
        _Look("processes in its namespaces", partial(_processes, _in_namespace), "namespaces"),
        # A user namespace's maker sees into it: what hides is hardly the cell's
        _Look("namespaces of every process since its start", _closed, "namespaces", needed=False),
        _Look("processes with the cell's uid", partial(_processes, _has_uid), "own_uids"),
        _Look("control groups and what is in them", _groups, "cgroups"),
        _Look("processes started for the cell", _started),
        _Look("mounts", _mounts),
        _Look("files", _files, "directories"),
        _Look("sockets named after the cell", _sockets, needed=False),
    )
