"""Checks cheaply whether a cell can still run commands, compared with a baseline.

The output is guest-controlled: a hostile cell can hide damage or feign it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, Literal

import anyio

from belljar.channel import ExecOutput
from belljar.dataclass import dataclass
from belljar.events import Event, JsonValue, Kind, Trust

# What each command of a harness needs, so its loss is what breaks a sample.
SHELL: Final = "/bin/sh"
ARGV: Final = (SHELL, "-c", "echo +began; ls -d / >/dev/null 2>&1 && echo +ran; echo +end")
# Of a check. It takes milliseconds, but a busy host must not look like a broken cell.
TIMEOUT_S: Final = 15.0
# The words are a few bytes; more is a hostile cell's.
MAX_OUTPUT_BYTES: Final = 4096


class Cause(StrEnum):
    AGENT_DIED = "agent_died"
    PROCESS_TABLE_FULL = "process_table_full"
    SHELL_MISSING = "shell_missing"
    CANNOT_START = "cannot_start"
    PROGRAMS_BROKEN = "programs_broken"
    UNRESPONSIVE = "unresponsive"


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthFinding:
    """One check's findings.

    Attributes:
        stage, errno: why the shell did not start.
        began, ended: it ran the script, to its end.
        ran: it also ran a program of the image.
    """

    stage: str = ""
    errno: int = 0
    began: bool = False
    ended: bool = False
    ran: bool = False
    timed_out: bool = False
    processes_full: bool = False
    died: str = ""


def read_health(output: ExecOutput) -> HealthFinding:
    words = output.stdout[:MAX_OUTPUT_BYTES].splitlines()
    return HealthFinding(
        stage=output.stage if output.not_started_errno is not None else "",
        errno=output.not_started_errno or 0,
        began=b"+began" in words,
        ended=b"+end" in words,
        ran=b"+ran" in words,
        timed_out=output.timed_out,
        processes_full=output.processes_full,
    )


def damage(baseline: HealthFinding, now: HealthFinding) -> tuple[Cause, str] | None:
    """Return what broke since the baseline, and why."""
    if now.died:
        return Cause.AGENT_DIED, now.died
    if baseline.died or baseline.timed_out:
        return None
    if now.timed_out:
        return Cause.UNRESPONSIVE, f"no answer within {TIMEOUT_S:g} s"
    no_longer = (baseline.ended and not now.ended) or (baseline.ran and not now.ran)
    is_as_before = (now.stage, now.errno) == (baseline.stage, baseline.errno)
    if is_as_before if now.errno else not no_longer:
        return None
    # A shell that can't fork (dash) ends at the first program that it is to start.
    stopped = now.began and not now.ended
    is_full = now.processes_full or (now.stage == "fork" and now.errno == errno.EAGAIN)
    if is_full or stopped:
        return Cause.PROCESS_TABLE_FULL, "no process can be started"
    if now.errno:
        is_missing = now.stage == "exec" and now.errno in {errno.ENOENT, errno.ENOTDIR}
        why = f"{SHELL} can't be started: {now.stage}: {os.strerror(now.errno)}"
        return Cause.SHELL_MISSING if is_missing else Cause.CANNOT_START, why
    return Cause.PROGRAMS_BROKEN, "the shell fails, or can't run `ls`"


def may_be_broken(output: ExecOutput) -> bool:
    # A POSIX shell's statuses for a program that it can't execute, and that it can't find.
    failed = output.returncode in {126, 127}
    return output.not_started_errno is not None or output.timed_out or failed


class HealthWatch:
    """Checks one cell in use; `degraded` is its first damage."""

    # A `Cell`, whose module knows this one
    def __init__(self, cell: Any, record: Callable[[Event], object]) -> None:  # noqa: ANN401
        self.degraded: dict[str, JsonValue] = {}
        self._cell = cell
        self._record = record
        self._baseline: HealthFinding | None = None

    async def take_baseline(self) -> None:
        self._baseline = await self._check("baseline")

    async def look(self, phase: Literal["call", "end"]) -> None:
        if self._baseline is not None and not self.degraded:
            await self._check(phase)

    async def _check(self, phase: str) -> HealthFinding:
        data: dict[str, JsonValue] = {"phase": phase}
        self._record(Event(kind=Kind.CELL_CHECKING, data={**data}, cell_id=self._cell.id))
        began = anyio.current_time()
        health: HealthFinding = await self._cell.check_health()
        found = damage(self._baseline, health) if self._baseline is not None else None
        cause, detail = (found[0].value, found[1]) if found else ("", "")
        op, cell_id = self._cell.last_op, self._cell.id
        if cause and not self.degraded:
            self.degraded = {"cell": cell_id, "cause": cause, "phase": phase, "op": op}
        data |= {
            "op": op,
            "cause": cause,
            "detail": detail,
            "duration_ms": round((anyio.current_time() - began) * 1000, 3),
        }
        trust = Trust.GUEST_REPORTED
        self._record(Event(kind=Kind.CELL_CHECKED, data=data, cell_id=cell_id, trust=trust))
        return health
