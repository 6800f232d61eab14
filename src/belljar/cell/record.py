"""The events of a cell, each built by one pure function.

Their data is documented in `docs/events.md`.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Mapping, Sequence

from belljar.channel import ExecOutput, ExecRequest, FileTooLargeError
from belljar.dataclass import dataclass
from belljar.events import Actor, Body, Event, JsonValue, Kind, Trust
from belljar.isolation.sandbox import Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOperation:
    """What the events of one operation share."""

    cell_id: str
    op: int
    actor: Actor

    def event(
        self,
        kind: Kind,
        data: Mapping[str, JsonValue],
        *,
        trust: Trust = Trust.HOST_OBSERVED,
        bodies: Sequence[Body] = (),
    ) -> Event:
        """An event of this operation."""
        full = {"op": self.op, **data}
        return Event(
            kind=kind,
            cell_id=self.cell_id,
            actor=self.actor,
            trust=trust,
            data=full,
            bodies=tuple(bodies),
        )


def exec_started(
    operation: RecordedOperation, request: ExecRequest, *, bodies: Sequence[Body] = ()
) -> Event:
    """A command is about to be sent.

    Environment values may be secrets: their names and one digest are kept.
    """
    pairs = b"".join(
        f"{name}={value}".encode(*_RAW) + b"\0" for name, value in sorted(request.env.items())
    )
    return operation.event(
        Kind.EXEC_STARTED,
        {
            "argv": [text(arg) for arg in request.argv],
            "cwd": text(request.cwd),
            "user": text(request.user),
            "env_names": sorted(text(name) for name in request.env),
            "env_sha256": hashlib.sha256(pairs).hexdigest(),
            "timeout_s": request.timeout_s,
            "stdin": request.stdin,
            "pty": request.pty is not None,
        },
        bodies=bodies,
    )


def exec_finished(
    operation: RecordedOperation,
    output: ExecOutput,
    *,
    timeout_s: float | None,
    stdout: Body,
    stderr: Body,
    stdin: Body | None,
    times: Mapping[str, JsonValue] | None = None,
) -> Event:
    """A command ended, or could not start: the guest's word on its outcome, and what the host saw
    of its streams.
    """
    if output.not_started_errno is not None:
        data: dict[str, JsonValue] = {
            "reason": text(output.why_not_started),
            "stage": output.stage,
            "errno": output.not_started_errno,
        }
        return operation.event(Kind.EXEC_FAILED, data, trust=Trust.GUEST_REPORTED)
    data = {
        "stdout_bytes": stdout.total_bytes,
        "stderr_bytes": stderr.total_bytes,
        "stdout_dropped_bytes": output.stdout_dropped_bytes,
        "stderr_dropped_bytes": output.stderr_dropped_bytes,
        "stdin_bytes": stdin.total_bytes if stdin else 0,
        "duration_ms": round(output.duration_s * 1000, 3),
        **(times or {}),
    }
    if output.timed_out:
        kind = Kind.EXEC_TIMED_OUT
        data["timeout_s"] = timeout_s
    else:
        kind = Kind.EXEC_COMPLETED
        data |= {
            "status": "signalled" if output.signalled else "exited",
            "code": output.code,
            "killed": output.killed,
            **{word: True for word in ("runs_on", "program_ended") if getattr(output, word)},
        }
    bodies = [body for body in (stdin, stdout, stderr) if body is not None and body.total_bytes]
    return operation.event(kind, data, trust=Trust.GUEST_REPORTED, bodies=bodies)


def limits_hit(
    operation: RecordedOperation, output: ExecOutput, *, timeout_s: float | None
) -> list[Event]:
    """One event for each limit that fired during the command."""
    values: dict[str, JsonValue] = {
        "exec_timeout": timeout_s,
        "output": output.stdout_dropped_bytes + output.stderr_dropped_bytes,
    }
    return [
        operation.event(
            Kind.LIMIT_HIT,
            {"limit": name, "value": values.get(name)},
            trust=Trust.HOST_OBSERVED if name in output.host_limits else Trust.GUEST_REPORTED,
        )
        for name in output.limits_hit
    ]


def write_limits(operation: RecordedOperation, error: BaseException) -> list[Event]:
    """The limit that a write ran into, by the guest's error."""
    name = _LIMIT_OF_ERROR.get(error.errno or 0) if isinstance(error, OSError) else None
    data: dict[str, JsonValue] = {"limit": name, "value": None}
    return [operation.event(Kind.LIMIT_HIT, data, trust=Trust.GUEST_REPORTED)] if name else []


def too_large(
    operation: RecordedOperation, error: BaseException, *, limit: str, value: int | None
) -> list[Event]:
    """The limit that a copy out of the cell hit, by the host's count."""
    data: dict[str, JsonValue] = {"limit": limit, "value": value}
    return [operation.event(Kind.LIMIT_HIT, data)] if isinstance(error, FileTooLargeError) else []


def failed(
    operation: RecordedOperation,
    kind: Kind,
    error: BaseException,
    *,
    bodies: Sequence[Body] = (),
    action: str = "",
) -> Event:
    """An operation ended without a result: a guest's error, a dead cell, or cancelled by its
    caller.
    """
    data: dict[str, JsonValue] = {"reason": f"{type(error).__name__}: {text(str(error))}"[:4096]}
    if action:
        data["action"] = action
    if isinstance(error, OSError) and error.errno is not None:
        data["errno"] = error.errno
    return operation.event(kind, data, bodies=bodies)


_LIMIT_OF_ERROR = {errno.ENOSPC: "disk", errno.EDQUOT: "disk", errno.ENOMEM: "memory"}
_RAW = ("utf-8", "surrogateescape")


def text(value: str | bytes) -> str:
    """Text that JSON and UTF-8 can carry: bytes that are not UTF-8 become `\\udcNN`, visibly."""
    decoded = value.decode(*_RAW) if isinstance(value, bytes) else value
    return decoded.encode("utf-8", "backslashreplace").decode("utf-8")


class LimitWatch:
    """Begins with the operation.

    `look` in between catches what is over again before the end: a disk that was full and was
    emptied.
    """

    def __init__(self, live: Sandbox) -> None:
        self._live = live
        self._oom_kills = live.oom_kills()
        self._refused_forks = live.refused_forks()
        self._disk_was_full = live.disk_full()
        self._disk = False
        self._processes_were_full = live.processes_full()
        self._processes = False

    def look(self) -> None:
        """See whether the disk or the process table is full now, if it was not when the operation
        began. Cheap.
        """
        self._disk = self._disk or (not self._disk_was_full and self._live.disk_full())
        self._processes = self._processes or (
            not self._processes_were_full and self._live.processes_full()
        )

    def hit(self) -> tuple[str, ...]:
        """The limits that fired since the beginning."""
        self.look()
        fired = {
            "memory": self._live.oom_kills() > self._oom_kills,
            "processes": self._processes or self._live.refused_forks() > self._refused_forks,
            "disk": self._disk,
        }
        return tuple(name for name, did in fired.items() if did)
