"""Checks cheaply whether a cell can still run commands, compared with a baseline.

The check runs the image's shell as the workload's user, through the guest agent, which is static
and needs no file of the image. A cell without a shell at its baseline is not degraded by having
none. The output is guest-controlled: a hostile cell can hide damage or pretend to have some.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio

from belljar.channel.trees import Usage
from belljar.dataclass import asdict, dataclass
from belljar.events import Actor, Event, JsonValue, Kind, Trust
from belljar.isolation.cgroup import HostUsage
from belljar.policy import Resources

if TYPE_CHECKING:
    from belljar.channel import ExecOutput


PROGRAMS: Final = ("ls", "cat", "cp", "mv", "rm", "mkdir", "chmod", "env")
_SCRIPT: Final = (
    f'for p in {" ".join(PROGRAMS)}; do command -v "$p" >/dev/null 2>&1 && echo "$p"; done;'
    " ls -d / >/dev/null 2>&1 && echo +ran; echo +end"
)
SHELL: Final = "/bin/sh"
ARGV: Final = (SHELL, "-c", _SCRIPT)
TIMEOUT_S: Final = 15.0
"""Of a check. It takes milliseconds, but a busy host must not look like a broken cell."""
MAX_OUTPUT_BYTES: Final = 4096


class Cause(StrEnum):
    """What is broken in a cell."""

    AGENT_DIED = "agent_died"
    PROCESS_TABLE_FULL = "process_table_full"
    USER_MISSING = "user_missing"
    WORKDIR_UNUSABLE = "workdir_unusable"
    SHELL_MISSING = "shell_missing"
    SHELL_BROKEN = "shell_broken"
    COREUTILS_MISSING = "coreutils_missing"
    COREUTILS_BROKEN = "coreutils_broken"
    CANNOT_START = "cannot_start"
    UNRESPONSIVE = "unresponsive"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """What one check found.

    Attributes:
        stage, errno: where and why the shell could not be started; "" and 0 when it was.
        ended: the shell ran the script to its end.
        ran: it could run a program. programs: those of `PROGRAMS` that it found.
        timed_out: no answer within `TIMEOUT_S`.
        processes_full: the guest agent met the limit of processes.
        died: why the cell is dead, "" when it lives.
    """

    stage: str = ""
    errno: int = 0
    ended: bool = False
    ran: bool = False
    programs: frozenset[str] = frozenset()
    timed_out: bool = False
    processes_full: bool = False
    died: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What a check found broken since the baseline. `detail` is for a person."""

    cause: Cause
    detail: str = ""


def read_health(output: ExecOutput) -> HealthFinding:
    """The facts of one check."""
    words = output.stdout[:MAX_OUTPUT_BYTES].decode("ascii", "replace").splitlines()
    return HealthFinding(
        stage=output.stage if output.not_started_errno is not None else "",
        errno=output.not_started_errno or 0,
        ended="+end" in words,
        ran="+ran" in words,
        programs=frozenset(words) & frozenset(PROGRAMS),
        timed_out=output.timed_out,
        processes_full=output.processes_full,
    )


def damage(baseline: HealthFinding, now: HealthFinding) -> Damage | None:
    """What broke since the baseline. None: nothing, or the baseline can't tell."""
    if now.died:
        return Damage(cause=Cause.AGENT_DIED, detail=now.died)
    if baseline.died or baseline.timed_out:
        return None
    if now.timed_out:
        return Damage(cause=Cause.UNRESPONSIVE, detail=f"no answer within {TIMEOUT_S:g} s")
    if now.errno:
        return (
            _not_started(now)
            if (now.stage, now.errno) != (baseline.stage, baseline.errno)
            else None
        )
    return _shell_damage(baseline, now)


def _not_started(now: HealthFinding) -> Damage:
    why = os.strerror(now.errno)
    if now.processes_full or (now.stage == "fork" and now.errno == errno.EAGAIN):
        return Damage(cause=Cause.PROCESS_TABLE_FULL, detail="no process can be started")
    if now.stage == "user":
        return Damage(cause=Cause.USER_MISSING, detail="the user's account can't be read")
    if now.stage == "cwd":
        return Damage(cause=Cause.WORKDIR_UNUSABLE, detail=f"the working directory: {why}")
    if now.stage == "exec" and now.errno in {errno.ENOENT, errno.ENOTDIR}:
        return Damage(cause=Cause.SHELL_MISSING, detail=f"{SHELL} or its loader is missing")
    if now.stage == "exec":
        return Damage(cause=Cause.SHELL_BROKEN, detail=f"{SHELL}: {why}")
    return Damage(cause=Cause.CANNOT_START, detail=f"{now.stage}: {why}")


def _shell_damage(baseline: HealthFinding, now: HealthFinding) -> Damage | None:
    missing = sorted(baseline.programs - now.programs)
    no_longer = (baseline.ended and not now.ended) or (baseline.ran and not now.ran)
    # A shell that can't fork (dash) ends at the first program that it is to start, behind the list.
    stopped = baseline.ended and not now.ended and bool(now.programs) and not missing
    if stopped or (no_longer and now.processes_full):
        return Damage(cause=Cause.PROCESS_TABLE_FULL, detail="the shell can start no process")
    if baseline.ended and not now.ended:
        return Damage(cause=Cause.SHELL_BROKEN, detail=f"{SHELL} starts and fails")
    if missing:
        return Damage(cause=Cause.COREUTILS_MISSING, detail=f"missing: {', '.join(missing)}")
    if baseline.ran and not now.ran:
        return Damage(cause=Cause.COREUTILS_BROKEN, detail="ls is there and can't be run")
    return None


def may_be_broken(output: ExecOutput) -> bool:
    """Whether a command ended as in a broken cell, perhaps by its own fault."""
    failed = output.returncode in {126, 127}
    return output.not_started_errno is not None or output.timed_out or failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What a cell uses now, and may use.

    Attributes:
        cpu_s: processor time since it was made.
        memory_bytes, memory_limit_bytes: of a virtual machine, the whole machine's.
        disk_bytes: what its writable file system holds.
        processes: and threads, of the workload.
        uptime_s: since it was ready for its first operation.
        guest_reported: fields that the guest counted, and may lie about; the host counted the
            others. None: neither can tell.
    """

    cpu_s: float | None
    memory_bytes: int | None
    memory_limit_bytes: int
    disk_bytes: int | None
    disk_limit_bytes: int
    processes: int | None
    processes_limit: int
    uptime_s: float
    guest_reported: frozenset[str]

    def as_data(self) -> Mapping[str, JsonValue]:
        """As the ledger has it."""
        return {**asdict(self), "guest_reported": sorted(self.guest_reported)}


def join_metrics(host: HostUsage, guest: Usage, limits: Resources) -> Metrics:
    """The host's counts, else the guest's, whose 0 is no count."""
    words: dict[str, float | int | None] = {
        "cpu_s": guest.cpu_us / 1e6 if guest.cpu_us else None,
        "memory_bytes": guest.memory_bytes or None,
        "disk_bytes": guest.disk_bytes if guest.disk_limit_bytes else None,
        "processes": guest.processes if guest.processes_limit else None,
    }
    counted = {name: getattr(host, name) for name in words}
    from_guest = frozenset(
        name for name in words if counted[name] is None and words[name] is not None
    )
    found = {name: words[name] if name in from_guest else counted[name] for name in words}
    return Metrics(
        **found,  # type: ignore[arg-type]
        memory_limit_bytes=host.memory_limit_bytes or limits.memory_bytes,
        disk_limit_bytes=limits.disk_bytes,
        processes_limit=limits.processes,
        uptime_s=host.uptime_s,
        guest_reported=from_guest,
    )


class HealthWatch:
    """Checks one cell in use, and records each check.

    `degraded`: its first damage, for people; `op`: the latest operation then.
    """

    # A `Cell`, whose module knows this one
    def __init__(self, cell: Any, record: Callable[[Event], object]) -> None:  # noqa: ANN401
        self.degraded: dict[str, JsonValue] = {}
        self._cell = cell
        self._record = record
        self._baseline: HealthFinding | None = None

    async def take_baseline(self) -> None:
        """Take what later checks are compared with."""
        self._baseline, _ = await self._check("baseline")

    async def look(self, phase: Literal["call", "end"]) -> None:
        """Check, unless idle or already degraded."""
        if self._baseline is None or self.degraded:
            return
        _, found = await self._check(phase)
        if found is not None and not self.degraded:
            self.degraded = {"cell": self._cell.id, "cause": found.cause.value, "phase": phase}
            self.degraded["op"] = self._cell.last_op

    async def _check(self, phase: str) -> tuple[HealthFinding, Damage | None]:
        self._record_check(Kind.CELL_CHECKING, phase=phase)
        began = anyio.current_time()
        health = await self._cell.check_health()
        found = damage(self._baseline, health) if self._baseline is not None else None
        self._record_check(
            Kind.CELL_CHECKED,
            phase=phase,
            op=self._cell.last_op,
            cause=found.cause.value if found is not None else "",
            detail=found.detail if found is not None else "",
            duration_ms=round((anyio.current_time() - began) * 1000, 3),
        )
        return health, found

    def _record_check(self, kind: Kind, **data: JsonValue) -> None:
        trust = Trust.GUEST_REPORTED if kind is Kind.CELL_CHECKED else Trust.HOST_OBSERVED
        self._record(
            Event(kind=kind, data=data, cell_id=self._cell.id, actor=Actor.BELLJAR, trust=trust)
        )
