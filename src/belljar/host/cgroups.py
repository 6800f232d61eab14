"""Control groups: where cells can have theirs."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from belljar.dataclass import dataclass
from belljar.host.model import CgroupFact, CgroupVersion
from belljar.policy.limits import Resources
from belljar.store.scratch import orphans, owned_name

# Without one of them a limit of the policy would hold nothing.
CONTROLLERS: Final = ("cpu", "memory", "pids")
# A group of version 1 that lacks its controller's file is a plain directory.
_LIMIT_FILE_V1: Final = {
    "cpu": "cpu.cfs_quota_us",
    "memory": "memory.limit_in_bytes",
    "pids": "pids.max",
}
_UNLIMITED_BYTES: Final = 1 << 60  # version 1 has a huge number for "no limit"
# Left to the host itself.
RESERVED_BYTES: Final = 1 << 30
# A VMM's own memory and the guest kernel's, beside what the policy gives the workload.
OVERHEAD_BYTES: Final = 192 << 20
# A group made only to see whether this user can make one.
_TRIAL: Final = "facts-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchies:
    """`own` are this process's groups; key "" is version 2."""

    v1: Mapping[str, Path]
    v2: Path | None
    own: Mapping[str, str]


def host_hierarchies() -> Hierarchies:
    """Raise `OSError` where /proc can't be read."""
    return parse_hierarchies(
        Path("/proc/self/mounts").read_text(), Path("/proc/self/cgroup").read_text()
    )


def parse_hierarchies(mounts: str, own: str) -> Hierarchies:
    """Lines that can't be read are left out."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) >= 4 and words[2] == "cgroup2" and v2 is None:
            v2 = Path(_unescape(words[1]))
        elif len(words) >= 4 and words[2] == "cgroup":
            v1 |= {
                name: Path(_unescape(words[1]))
                for name in CONTROLLERS
                if name in words[3].split(",") and name not in v1
            }
    groups: dict[str, str] = {}
    for line in own.splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            groups |= dict.fromkeys(parts[1].split(","), parts[2])
    return Hierarchies(v1=v1, v2=v2, own=groups)


def _unescape(word: str) -> str:
    return word.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def cgroup_fact(found: Hierarchies, *, is_root: bool) -> CgroupFact:
    """Root tries each by making a group."""

    def can_make(parent: Path, limit_file: str = "cgroup.procs") -> bool:
        if not os.access(parent, os.W_OK | os.X_OK):
            return False
        if is_root:
            return try_group(parent, limit_file)
        return os.access(parent / "cgroup.procs", os.W_OK)

    parents: dict[str, str] = {}
    if found.v1:
        version = CgroupVersion.V1
        for name, top in found.v1.items():
            # A user's: below its own groups, where an administrator gave it the right
            own = "/" if is_root else found.own.get(name, "")
            parent = top / own.lstrip("/")
            is_ours = (is_root or own.strip("/")) and ".." not in own.split("/")
            if is_ours and can_make(parent, _LIMIT_FILE_V1[name]):
                parents[name] = str(parent)
    elif found.v2 is None:
        return CgroupFact(version=CgroupVersion.NONE, reason="no control groups are mounted")
    else:
        version, own = CgroupVersion.V2, found.own.get("", "")
        # A group that holds processes can't hand on controllers: a user's cells become siblings of
        # its own group, where it may move processes.
        parent = found.v2 if is_root else (found.v2 / own.lstrip("/")).parent
        is_ours = own.strip("/") and ".." not in own and os.access(parent / "cgroup.procs", os.W_OK)
        if not (is_root or is_ours):
            return CgroupFact(
                version=version,
                reason="no group is delegated to this user where it runs; `systemd-run --user "
                "--scope` makes one",
            )
        names = _words(parent / "cgroup.controllers") if can_make(parent) else set()
        if not os.access(parent / "cgroup.subtree_control", os.W_OK):
            names &= _words(parent / "cgroup.subtree_control")
        parents = {name: str(parent) for name in names & set(CONTROLLERS)}
    missing = [name for name in CONTROLLERS if name not in parents]
    why = "can't be used here" if is_root else "not handed to this user"
    reason = f"{', '.join(missing)}: {why}" if missing else ""
    return CgroupFact(version=version, parents=dict(sorted(parents.items())), reason=reason)


def try_group(parent: Path, limit_file: str) -> bool:
    sweep_trials(parent)
    trial = parent / owned_name(_TRIAL, secrets.token_hex(4))
    try:
        trial.mkdir()
        is_writable = os.access(trial / limit_file, os.W_OK)
        trial.rmdir()
    except FileNotFoundError:
        # Swept from another PID namespace, which doesn't see this process; or the parent is gone
        return parent.is_dir() and try_group(parent, limit_file)
    except OSError:
        return False
    return is_writable


def sweep_trials(*parents: Path) -> None:
    for path in (path for parent in parents for path in orphans(parent, prefix=_TRIAL)):
        with contextlib.suppress(OSError):
            path.rmdir()


def text_of(file: Path) -> str:
    """Return "" if it can't be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def _words(file: Path) -> set[str]:
    return set(text_of(file).split())


def available_memory_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next((int(each.split()[1]) << 10 for each in lines if each.startswith("MemAv")), 0)


def cell_bytes(resources: Resources) -> int:
    """Return what a fully used cell takes of the host."""
    return resources.memory_bytes + resources.disk_bytes + OVERHEAD_BYTES


def free_bytes() -> int:
    return available_memory_bytes() - RESERVED_BYTES


def own_memory_limit_bytes(found: Hierarchies) -> int | None:
    if "memory" in found.v1:
        group = found.v1["memory"] / found.own.get("memory", "/").lstrip("/")
        name = "memory.limit_in_bytes"
    elif found.v2 is not None:
        group, name = found.v2 / found.own.get("", "/").lstrip("/"), "memory.max"
    else:
        return None
    text = text_of(group / name).strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED_BYTES else None
