"""Control groups of a cell or range, version 1 and 2."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from belljar.dataclass import dataclass
from belljar.descriptors import open_fd
from belljar.errors import HostError, host_errors
from belljar.host.cgroups import cgroup_fact, host_hierarchies, text_of
from belljar.host.model import CgroupVersion
from belljar.plan.jail import GroupLimits
from belljar.process import raise_if_blind

_CPU_PERIOD_US: Final = 100_000  # the kernel's default
# A group is busy (EBUSY) until its last process is wholly gone.
_REMOVE_TIMEOUT_S: Final = 0.5
# Version 1 bounds what sockets hold beside the rest: this part of the cell's memory once more.
SOCKETS_SHARE: Final = 8
# Version 2's and version 1's: which of them is there depends on the host.
_OOM_FILES: Final = ("memory.events", "memory.oom_control")
_Settings = list[tuple[str, str]]
_WHERE: Final = "control groups"
_HINT: Final = "run `belljar doctor`; it says what this host can do now"
_errors = partial(
    host_errors, "a control group could not be made or limited", where=_WHERE, hint=_HINT
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellGroups:
    """`unified`: it is one directory (version 2)."""

    paths: Mapping[str, Path]
    unified: bool

    @property
    def directories(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self.paths.values()))


# Of a user to whom none is delegated, and of a wire, which joins its machine's.
NO_GROUPS: Final = CellGroups(paths={}, unified=False)


def plan_groups(cell_id: str, controllers: Iterable[str]) -> CellGroups:
    if not (wanted := tuple(controllers)):
        return NO_GROUPS
    parents, unified = host_parents()
    if missing := [name for name in wanted if name not in parents]:
        what = f"no control group can be made under {', '.join(missing)}, which the plan counts on"
        raise HostError(what, where=_WHERE, hint=_HINT)
    paths = {name: parents[name] / f"cell-{cell_id}" for name in wanted}
    return CellGroups(paths=paths, unified=unified)


def host_parents() -> tuple[Mapping[str, Path], bool]:
    """Return usable controllers' parents; True for version 2."""
    fact = cgroup_fact(host_hierarchies(), is_root=os.geteuid() == 0)
    parents = {name: Path(parent) for name, parent in fact.parents.items()}
    return parents, fact.version is CgroupVersion.V2


def make_groups(groups: CellGroups, limits: GroupLimits) -> None:
    with _errors():
        # In version 2 a group has a controller's files only where its parent hands that controller
        # on.
        if groups.unified:
            for parent in {path.parent for path in groups.directories}:
                file = parent / "cgroup.subtree_control"
                missing = set(groups.paths) - set(file.read_text().split())
                if missing:
                    file.write_text(" ".join(f"+{name}" for name in sorted(missing)))
        for directory in groups.directories:
            directory.mkdir()
    set_limits(groups, limits)


def join(groups: CellGroups, pid: int) -> None:
    # ESRCH: the process has ended already.
    with _errors(), contextlib.suppress(ProcessLookupError):
        for directory in groups.directories:
            (directory / "cgroup.procs").write_text(str(pid))


def remove_empty(groups: CellGroups) -> None:
    for directory in groups.directories:
        if not processes_in(directory):
            remove_group(directory)


def set_limits(groups: CellGroups, limits: GroupLimits) -> None:
    with _errors():
        for controller, directory in groups.paths.items():
            for name, value in _settings(controller, limits, unified=groups.unified):
                file = directory / name.rstrip("?")
                if file.exists() or not name.endswith("?"):
                    file.write_text(value)


def _settings(controller: str, limits: GroupLimits, *, unified: bool) -> _Settings:
    memory = str(limits.memory_max_bytes)
    quota_us = None
    if limits.cpu_quota_percent is not None:
        quota_us = limits.cpu_quota_percent * _CPU_PERIOD_US // 100
    match controller, unified:
        case "memory", True:
            return [("memory.max", memory), ("memory.swap.max?", "0")]
        case "memory", False:
            # What sockets hold is counted in version 1 only where it has a limit, and then beside
            # the rest.
            sockets_bytes = str(limits.memory_max_bytes // SOCKETS_SHARE)
            sockets = ("memory.kmem.tcp.limit_in_bytes?", sockets_bytes)
            # Where swap isn't counted nothing bounds it: a group at its limit would swap for
            # minutes, not end.
            no_swap = ("memory.swappiness?", "0")
            limit = ("memory.limit_in_bytes", memory)
            # In this order: the kernel refuses a memsw limit below the memory limit (EINVAL).
            return [no_swap, limit, ("memory.memsw.limit_in_bytes?", memory), sockets]
        case "pids", _:
            return [("pids.max", str(limits.processes))]
        case "cpu", True if quota_us is not None:
            return [("cpu.max", f"{quota_us} {_CPU_PERIOD_US}")]
        case "cpu", False if quota_us is not None:
            period = ("cpu.cfs_period_us", str(_CPU_PERIOD_US))
            return [period, ("cpu.cfs_quota_us", str(quota_us))]
    return []


def processes_in(directory: Path, *, threads: bool = True) -> tuple[int, ...]:
    """Return pids and thread ids, of descendants too."""
    pids: list[int] = []
    for below in _tree(directory):
        # cgroup.threads is version 2's, tasks version 1's.
        for name in ("cgroup.procs", "cgroup.threads", "tasks") if threads else ("cgroup.procs",):
            try:
                pids.extend(int(line) for line in (below / name).read_text().split())
            except OSError as exc:
                raise_if_blind(exc)
    return tuple(sorted(set(pids)))


def _tree(directory: Path) -> list[Path]:
    walked = os.walk(directory, onerror=raise_if_blind)  # where one goes, `Path.glob` raises
    return [directory, *(Path(path, name) for path, names, _ in walked for name in names)]


def halt(directory: Path) -> None:
    """Freeze and kill all of it (version 2 only)."""
    # Frozen first: before Linux 5.14 there is no cgroup.kill, and what is frozen does nothing more.
    for name in ("cgroup.freeze", "cgroup.kill"):
        flags = os.O_WRONLY | os.O_CLOEXEC
        with contextlib.suppress(OSError), open_fd(os.open(directory / name, flags)) as fd:
            os.write(fd, b"1")


def out_of_memory_kills(directory: Path) -> int:
    counts = (_counted(directory / name, "oom_kill") for name in _OOM_FILES)
    return next((count for count in counts if count is not None), 0)


def refused_forks(directory: Path) -> int:
    return _counted(directory / "pids.events", "max") or 0


def process_counts(directory: Path) -> tuple[int, int]:
    """Return current and peak, 0 if unreadable (peak before Linux 6.1)."""
    return _number(directory / "pids.current"), _number(directory / "pids.peak")


def memory_bytes(directory: Path) -> int | None:
    now = _number(directory / "memory.current") or _number(directory / "memory.usage_in_bytes")
    return now or None


def cpu_s(directory: Path) -> float | None:
    if (microseconds := _counted(directory / "cpu.stat", "usage_usec")) is not None:
        return microseconds / 1e6
    # Version 1 has it where cpuacct is mounted together with cpu.
    nanoseconds = _number(directory / "cpuacct.usage")
    return nanoseconds / 1e9 if nanoseconds else None


def _counted(file: Path, key: str) -> int | None:
    for line in text_of(file).splitlines():
        name, _, count = line.partition(" ")
        if name == key and count.isdigit():
            return int(count)
    return None


def _number(file: Path) -> int:
    text = text_of(file).strip()
    return int(text) if text.isdigit() else 0


def remove_group(directory: Path) -> bool:
    """Return True if it is gone within 0.5 s."""
    give_up = time.monotonic() + _REMOVE_TIMEOUT_S
    while directory.exists():
        try:
            # Children first: a group with groups in it can't be removed.
            for below in reversed(_tree(directory)):
                below.rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            if time.monotonic() > give_up:
                return False
            time.sleep(0.002)
    return True
