"""The events of a cell's operations (`docs/events.md`); one command's record."""

from __future__ import annotations

import errno
import hashlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from signal import Signals
from typing import Final, TypeAlias

from belljar.capture import Capture
from belljar.channel import ExecOutput, ExecRequest, FileTooLargeError, Stream
from belljar.dataclass import asdict, dataclass, replace
from belljar.errors import CellError
from belljar.events import Actor, Body, Event, JsonValue, Kind, Recorder, Trust
from belljar.isolation.sandbox import Sandbox

Pieces: TypeAlias = bytes | AsyncIterator[bytes] | None
TIME_STEP_MS: Final = 50  # pieces that come closer are one
MAX_TIMES: Final = 500  # of one stream; the last has all that came after


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOperation:
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
        return Event(
            kind=kind,
            cell_id=self.cell_id,
            actor=self.actor,
            trust=trust,
            data={"op": self.op, **data},
            bodies=tuple(bodies),
        )


def limits_hit(
    operation: RecordedOperation, error: BaseException, *, is_write: bool
) -> list[Event]:
    """Return the limit that a copy hit, here or in the guest."""
    if isinstance(error, FileTooLargeError):
        data: dict[str, JsonValue] = {"limit": "max_bytes", "value": error.max_bytes}
        return [operation.event(Kind.LIMIT_HIT, data)]
    code = error.errno if isinstance(error, OSError) else None
    # Of another operation it may be this host's disk that is full
    name = _LIMIT_OF_ERROR.get(code or 0) if is_write else None
    data = {"limit": name, "value": None}
    return [operation.event(Kind.LIMIT_HIT, data, trust=Trust.GUEST_REPORTED)] if name else []


def failed(
    operation: RecordedOperation,
    kind: Kind,
    error: BaseException,
    *,
    bodies: Sequence[Body] = (),
    action: str = "",
    times: Mapping[str, JsonValue] | None = None,
) -> Event:
    """Return the end of an operation without a result: an error, a dead cell, or cancelled."""
    reason = f"{type(error).__name__}: {text(str(error))}"[:4096]
    data: dict[str, JsonValue] = {"reason": reason, **(times or {})}
    if action:
        data["action"] = action
    if isinstance(error, OSError) and error.errno is not None:
        data["errno"] = error.errno
    return operation.event(kind, data, bodies=bodies)


_LIMIT_OF_ERROR = {errno.ENOSPC: "disk", errno.EDQUOT: "disk", errno.ENOMEM: "memory"}
# PEP 383: bytes that are no UTF-8 become lone surrogates, and are not lost.
_RAW = ("utf-8", "surrogateescape")


def text(value: str | bytes) -> str:
    """Return text for JSON: bytes that are not UTF-8 become `\\udcNN`, visibly."""
    decoded = value.decode(*_RAW) if isinstance(value, bytes) else value
    return decoded.encode("utf-8", "backslashreplace").decode("utf-8")


class CommandRecord:
    """One command's record: its start, streams, limits and end.

    The times of output and terminal sizes are kept for a replay. Limits are checked with
    each chunk: a full disk may be emptied before the end.
    """

    def __init__(
        self, operation: RecordedOperation, request: ExecRequest, recorder: Recorder, live: Sandbox
    ) -> None:
        self.operation, self.request = operation, request
        self._recorder, self._live = recorder, live
        self._streams = {stream: Capture(stream.name.lower()) for stream in Stream}
        # Environment values may be secrets: their names and one digest are kept.
        pairs = (f"{name}={value}\0".encode(*_RAW) for name, value in sorted(request.env.items()))
        data: dict[str, JsonValue] = {
            "argv": [text(arg) for arg in request.argv],
            "cwd": text(request.cwd),
            "user": text(request.user),
            "env_names": sorted(text(name) for name in request.env),
            "env_sha256": hashlib.sha256(b"".join(pairs)).hexdigest(),
            "timeout_s": request.timeout_s,
            "stdin": request.stdin,
            "pty": request.pty is not None,
            **({} if request.pty is None else asdict(request.pty)),
        }
        recorder.record(operation.event(Kind.EXEC_STARTED, data))
        self._oom_kills, self._refused_forks = live.oom_kills(), live.refused_forks()
        self._full_before, self._fired = self._full(), set[str]()
        self._began_s = time.monotonic()
        self._times: dict[str, list[list[int]]] = {}

    def _full(self) -> set[str]:
        full = {"disk": self._live.disk_full(), "processes": self._live.processes_full()}
        return {name for name, is_full in full.items() if is_full}

    def _passed_ms(self) -> int:
        return round((time.monotonic() - self._began_s) * 1000)

    def output(self, stream: Stream, chunk: bytes) -> None:
        capture, now_ms = self._streams[stream], self._passed_ms()
        capture.feed(chunk)
        found = self._times.setdefault(f"{capture.name}_times", [])
        if found and (now_ms - found[-1][0] < TIME_STEP_MS or len(found) >= MAX_TIMES):
            found[-1][1] = capture.total_bytes
        else:
            found.append([now_ms, capture.total_bytes])
        self._fired |= self._full() - self._full_before

    def input(self, source: Pieces) -> Pieces:
        """Return the command's input, seen as it is sent."""
        stdin = self._streams[Stream.STDIN]

        async def pieces(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
            async for chunk in source:
                stdin.feed(chunk)
                yield chunk

        if source is None or isinstance(source, bytes):
            stdin.feed(source or b"")
            return source
        return pieces(source)

    def resized(self, rows: int, cols: int) -> None:
        found = self._times.setdefault("size_times", [])
        del found[MAX_TIMES - 1 :]
        found.append([self._passed_ms(), cols, rows])

    def signalled(self, signal: Signals, *, whole_tree: bool) -> None:
        """Record a signal that is about to be sent."""
        data = {"signal": signal.name, "scope": "tree" if whole_tree else "main"}
        self._recorder.record(self.operation.event(Kind.EXEC_SIGNAL, data))

    def bodies(self) -> list[Body]:
        return [capture.body() for capture in self._streams.values() if capture.total_bytes]

    def with_limits(self, output: ExecOutput) -> ExecOutput:
        """Return the same outcome with the limits that the host saw hit."""
        self._fired |= self._full() - self._full_before
        if self._live.oom_kills() > self._oom_kills:
            self._fired.add("memory")
        if self._live.refused_forks() > self._refused_forks:
            self._fired.add("processes")
        fired = tuple(sorted(self._fired))
        is_memory = output.out_of_memory or "memory" in fired
        return replace(output, host_limits=fired, out_of_memory=is_memory) if fired else output

    def end(self, output: ExecOutput | None) -> None:
        """Record the end; None: left early, and its tree was killed."""
        times: dict[str, JsonValue] = {**self._times}
        bodies = self.bodies()
        if output is None:
            error = CellError("left before the command had ended; its tree was killed")
            kind = Kind.EXEC_FAILED
            self._recorder.record(failed(self.operation, kind, error, bodies=bodies, times=times))
            return
        dropped = output.stdout_dropped_bytes + output.stderr_dropped_bytes
        limits = {"exec_timeout": self.request.timeout_s, "output": dropped}
        for name in output.limits_hit:
            is_seen = name in output.host_limits
            hit = {"limit": name, "value": limits.get(name)}
            trust = Trust.HOST_OBSERVED if is_seen else Trust.GUEST_REPORTED
            self._recorder.record(self.operation.event(Kind.LIMIT_HIT, hit, trust=trust))
        data: dict[str, JsonValue] = {
            "stdout_dropped_bytes": output.stdout_dropped_bytes,
            "stderr_dropped_bytes": output.stderr_dropped_bytes,
            "duration_ms": round(output.duration_s * 1000, 3),
            **{f"{capture.name}_bytes": capture.total_bytes for capture in self._streams.values()},
            **times,
        }
        if output.not_started_errno is not None:
            kind, bodies = Kind.EXEC_FAILED, []
            why, stage = text(output.why_not_started), output.stage
            data = {"reason": why, "stage": stage, "errno": output.not_started_errno}
        elif output.timed_out:
            kind = Kind.EXEC_TIMED_OUT
            data["timeout_s"] = self.request.timeout_s
        else:
            kind = Kind.EXEC_COMPLETED
            data["status"] = "signalled" if output.signalled else "exited"
            data |= {"code": output.code, "killed": output.killed}
            data |= {name: True for name in ("runs_on", "program_ended") if getattr(output, name)}
        trust = Trust.GUEST_REPORTED
        self._recorder.record(self.operation.event(kind, data, trust=trust, bodies=bodies))
