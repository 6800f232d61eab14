"""Destruction's proof: after the kill, look for whatever could be left of a cell on this host, by everything the cell was known by.

A survivor is reported *and* removed; a destruction that found one is not clean, whatever became of it afterwards.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from belljar.isolation import cgroup
from belljar.isolation.journal import JournalEntry
from belljar.isolation.process import PROC, ProcessId, identify, kill, namespaces_of
from belljar.units import printable

LOOKED_FOR: Final = (
    "processes in the cell's namespaces",
    "processes with the cell's uid",
    "processes in the cell's control groups",
    "processes started for the cell",
    "control groups",
    "mounts",
    "namespaces held by mounts",
    "sockets",
    "files",
)
_KILL_PATIENCE_S: Final = 1.0
# A cell's own process may share those with the host only by a defect; a mere look-alike would.
_TELLING_NAMESPACES: Final = ("pid", "mnt", "net", "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class Destruction:
    """How a cell ended: what was looked for, what was found. `clean`: nothing was."""

    survivors: tuple[str, ...]
    looked_for: tuple[str, ...]
    duration_ms: float

    @property
    def clean(self) -> bool:
        """True when nothing of the cell was left after the kill."""
        return not self.survivors


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivor:
    """Something left of a cell: a process, or a path to remove."""

    what: str
    process: ProcessId | None = None
    path: Path | None = None


def find_survivors(entry: JournalEntry) -> tuple[Survivor, ...]:
    """Everything of the cell that is there now."""
    return (*_processes(entry), *_paths(entry), *_mounts(entry), *_sockets(entry))


def remove_survivors(survivors: tuple[Survivor, ...]) -> None:
    """Kill and remove them; bounded. What resists is found again by the next look."""
    processes = [survivor.process for survivor in survivors if survivor.process is not None]
    for process in processes:
        with contextlib.suppress(PermissionError):
            kill(process)
    give_up = time.monotonic() + _KILL_PATIENCE_S
    while any(identify(process.pid) == process for process in processes) and time.monotonic() < give_up:
        time.sleep(0.002)
    for survivor in survivors:
        if survivor.path is not None:
            remove_path(survivor.path)


def remove_path(path: Path) -> None:
    """A control group, or a file or directory of the store. Never follows a link."""
    if (path / "cgroup.procs").exists():
        cgroup.remove_group(path)
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _processes(entry: JournalEntry) -> Iterator[Survivor]:
    grouped = {pid: str(group) for group in entry.cgroups for pid in cgroup.processes_in(group)}
    for directory in PROC.iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        pid = int(directory.name)
        why = (
            _in_namespace(entry, pid)
            or _has_uid(entry, pid)
            or (f"in {grouped[pid]}" if pid in grouped else "")
            or _started_for(entry, pid)
        )
        if why and (process := identify(pid)) is not None:
            yield Survivor(what=f"process {pid} ({_name(pid)}) {why}", process=process)


def _in_namespace(entry: JournalEntry, pid: int) -> str:
    if not entry.namespaces:
        return ""
    theirs = namespaces_of(pid, _TELLING_NAMESPACES)
    shared = [name for name in _TELLING_NAMESPACES if name in theirs and theirs[name] == entry.namespaces.get(name)]
    return f"in the cell's {shared[0]} namespace" if shared else ""


def _has_uid(entry: JournalEntry, pid: int) -> str:
    if entry.host_uid is None:
        return ""
    try:
        status = (PROC / str(pid) / "status").read_text(errors="replace")
    except OSError:
        return ""
    uids = next((line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")), [])
    return f"with the cell's uid {entry.host_uid}" if str(entry.host_uid) in uids else ""


def _started_for(entry: JournalEntry, pid: int) -> str:
    """By the words its launcher or VMM was started with; a person's `grep` for the id has other words."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes()[:65536].split(b"\0")
    except OSError:
        return ""
    cell = entry.cell_id.encode()
    named = any(second == cell and first in {b"--cell", b"-name"} for first, second in itertools.pairwise(words))
    return "started for the cell" if named else ""


def _name(pid: int) -> str:
    try:
        return printable((PROC / str(pid) / "comm").read_bytes().strip(), max_chars=32)
    except OSError:
        return "ended meanwhile"


def _paths(entry: JournalEntry) -> Iterator[Survivor]:
    for path in entry.cgroups:
        if path.exists():
            yield Survivor(what=f"control group {path}", path=path)
    for path in entry.directories:
        if path.is_symlink() or path.exists():
            yield Survivor(what=f"files in {path}", path=path)


def _mounts(entry: JournalEntry) -> Iterator[Survivor]:
    """Mounts of the host's that show the cell's files, or that would keep its namespaces alive. Reported; unmounting is a person's decision."""
    held = {f"{name}:[{inode}]" for name, inode in entry.namespaces.items()}
    for line in (PROC / "self/mountinfo").read_text(errors="replace").splitlines():
        fields = line.split(" ")
        root, target = fields[3], fields[4]
        if root in held or entry.cell_id in root or entry.cell_id in target:
            yield Survivor(what=f"mount {printable(target, max_chars=200)}")


def _sockets(entry: JournalEntry) -> Iterator[Survivor]:
    for line in (PROC / "net/unix").read_text(errors="replace").splitlines():
        if entry.cell_id in line:
            yield Survivor(what=f"socket {printable(line.split(' ')[-1], max_chars=200)}")
