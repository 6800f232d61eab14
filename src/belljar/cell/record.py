"""The events of a cell, each built by one pure function. Their data is documented in `docs/events.md`."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from belljar.cell.capture import body_of
from belljar.cell.output import ExecOutput
from belljar.events import Actor, Body, Event, JsonValue, Kind, Trust

ARGV_IN_LINE_BYTES: Final = 16 << 10
"""Arguments longer than this go into a body, so that a line of the ledger stays readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Who does what in which cell: the part that the events of one operation share."""

    cell_id: str
    op: int
    actor: Actor

    def event(self, kind: Kind, data: Mapping[str, JsonValue], *, trust: Trust = Trust.HOST_OBSERVED, bodies: Sequence[Body] = ()) -> Event:
        """An event of this operation."""
        return Event(kind=kind, cell_id=self.cell_id, actor=self.actor, trust=trust, data={"op": self.op, **data}, bodies=tuple(bodies))


def exec_started(
    operation: Operation,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    user: str,
    timeout_s: float | None,
    stdin: bool,
    pty: bool,
    bodies: Sequence[Body] = (),
) -> Event:
    """A command is about to be sent. Environment values may be secrets: their names and one digest are kept."""
    joined = "\0".join(argv).encode("utf-8", "surrogateescape")
    in_line = len(joined) <= ARGV_IN_LINE_BYTES
    pairs = "\0".join(f"{name}={value}" for name, value in sorted(env.items())).encode("utf-8", "surrogateescape")
    return operation.event(
        Kind.EXEC_STARTED,
        {
            "argv": [_text(arg) for arg in argv] if in_line else [],
            "argc": len(argv),
            "argv_sha256": hashlib.sha256(joined).hexdigest(),
            "cwd": _text(cwd),
            "user": user,
            "env_names": sorted(_text(name) for name in env),
            "env_sha256": hashlib.sha256(pairs).hexdigest(),
            "timeout_s": timeout_s,
            "stdin": stdin,
            "pty": pty,
        },
        bodies=[*bodies, *([] if in_line else [body_of("argv", joined)])],
    )


def exec_finished(operation: Operation, output: ExecOutput, *, stdout: Body, stderr: Body, stdin: Body | None) -> Event:
    """A command ended (or could not start): its outcome, and what the host saw of its streams."""
    kind = Kind.EXEC_TIMED_OUT if output.timed_out else Kind.EXEC_FAILED if output.not_started_errno is not None else Kind.EXEC_COMPLETED
    bodies = [body for body in (stdin, stdout, stderr) if body is not None and body.total_bytes]
    data: dict[str, JsonValue] = {
        "returncode": output.returncode,
        "stdin_bytes": stdin.total_bytes if stdin else 0,
        "stdout_bytes": stdout.total_bytes,
        "stderr_bytes": stderr.total_bytes,
        "stdout_dropped_bytes": output.stdout_dropped_bytes,
        "stderr_dropped_bytes": output.stderr_dropped_bytes,
        "killed": output.killed,
        "duration_ms": round(output.duration_s * 1000, 3),
    }
    if output.not_started_errno is not None:
        data |= {"errno": output.not_started_errno, "stage": output.stage, "reason": _text(output.why_not_started)}
    return operation.event(kind, data, trust=Trust.GUEST_REPORTED, bodies=bodies)


def limits_hit(operation: Operation, output: ExecOutput, *, timeout_s: float | None) -> list[Event]:
    """One event for each limit that fired during the command."""
    hit: list[tuple[str, JsonValue]] = []
    if output.timed_out:
        hit.append(("exec_timeout", timeout_s))
    if output.out_of_memory:
        hit.append(("memory", None))
    if output.output_cap_reached:
        hit.append(("output", output.stdout_dropped_bytes + output.stderr_dropped_bytes))
    return [operation.event(Kind.LIMIT_HIT, {"limit": name, "value": value}, trust=Trust.GUEST_REPORTED) for name, value in hit]


def failed(operation: Operation, kind: Kind, error: BaseException, *, bodies: Sequence[Body] = ()) -> Event:
    """An operation ended without a result: an error of ours, a dead cell, or cancelled by its caller."""
    return operation.event(kind, {"error": type(error).__name__, "reason": _text(str(error))[:4096]}, bodies=bodies)


def file_started(operation: Operation, kind: Kind, path: str, *, user: str, body: Body | None = None) -> Event:
    """A file is about to be copied in (with its contents) or out."""
    data: dict[str, JsonValue] = {"path": _text(path), "user": user}
    if body is not None:
        data |= {"bytes": body.total_bytes, "sha256": body.sha256}
    return operation.event(kind, data, bodies=[body] if body is not None else [])


def file_finished(operation: Operation, kind: Kind, path: str, *, size_bytes: int, sha256: str, bodies: Sequence[Body] = ()) -> Event:
    """A file was copied."""
    return operation.event(kind, {"path": _text(path), "bytes": size_bytes, "sha256": sha256}, bodies=bodies)


def command_line(argv: Sequence[str]) -> str:
    """The command as a person would type it, for messages."""
    return shlex.join(argv)


def _text(value: str) -> str:
    """Text that JSON and UTF-8 can carry: bytes that aren't UTF-8 become visible escapes."""
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
