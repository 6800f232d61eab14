"""The events of a cell, each built by one pure function, and the record of one command.

Their data is documented in `docs/events.md`.
"""

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
        return Event(
            kind=kind,
            cell_id=self.cell_id,
            actor=self.actor,
            trust=trust,
            data={"op": self.op, **data},
            bodies=tuple(bodies),
        )


def exec_started(operation: RecordedOperation, request: ExecRequest) -> Event:
    """A command is about to be sent.

    Environment values may be secrets: their names and one digest are kept.
    """
    pairs = b"".join(
        f"{name}={value}".encode(*_RAW) + b"\0" for name, value in sorted(request.env.items())
    )
    data: dict[str, JsonValue] = {
        "argv": [text(arg) for arg in request.argv],
        "cwd": text(request.cwd),
        "user": text(request.user),
        "env_names": sorted(text(name) for name in request.env),
        "env_sha256": hashlib.sha256(pairs).hexdigest(),
        "timeout_s": request.timeout_s,
        "stdin": request.stdin,
        "pty": request.pty is not None,
    }
    data |= {} if request.pty is None else asdict(request.pty)
    return operation.event(Kind.EXEC_STARTED, data)


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
    dropped = output.stdout_dropped_bytes + output.stderr_dropped_bytes
    values: dict[str, JsonValue] = {"exec_timeout": timeout_s, "output": dropped}
    is_seen = dict.fromkeys(output.host_limits, Trust.HOST_OBSERVED)
    return [
        operation.event(
            Kind.LIMIT_HIT,
            {"limit": name, "value": values.get(name)},
            trust=is_seen.get(name, Trust.GUEST_REPORTED),
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
    times: Mapping[str, JsonValue] | None = None,
) -> Event:
    """An operation ended without a result: a guest's error, a dead cell, or cancelled by its
    caller.
    """
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
        self._oom_kills, self._refused_forks = live.oom_kills(), live.refused_forks()
        self._full_before = self._full()
        self._fired = set[str]()

    def _full(self) -> set[str]:
        full = {"disk": self._live.disk_full(), "processes": self._live.processes_full()}
        return {name for name, is_full in full.items() if is_full}

    def look(self) -> None:
        """See whether the disk or the process table is full now, if it was not when the operation
        began. Cheap.
        """
        self._fired |= self._full() - self._full_before

    def hit(self) -> tuple[str, ...]:
        """The limits that fired since the beginning."""
        self.look()
        if self._live.oom_kills() > self._oom_kills:
            self._fired.add("memory")
        if self._live.refused_forks() > self._refused_forks:
            self._fired.add("processes")
        return tuple(sorted(self._fired))


class StreamTimes:
    """When how many bytes of each stream had passed, and a terminal was resized, for a replay."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._of: dict[str, list[list[int]]] = {}

    def note(self, name: str, total_bytes: int) -> None:
        """Note that so many bytes have passed now."""
        found = self._of.setdefault(name, [])
        now_ms = round((time.monotonic() - self._began_s) * 1000)
        if found and (now_ms - found[-1][0] < TIME_STEP_MS or len(found) >= MAX_TIMES):
            found[-1][1] = total_bytes
        else:
            found.append([now_ms, total_bytes])

    def resized(self, rows: int, cols: int) -> None:
        """Note the size of its terminal from now on."""
        found = self._of.setdefault("size", [])
        del found[MAX_TIMES - 1 :]
        found.append([round((time.monotonic() - self._began_s) * 1000), cols, rows])

    def data(self) -> dict[str, JsonValue]:
        """As fields of the command's last event."""
        return {f"{name}_times": found for name, found in self._of.items()}


class CommandRecord:
    """What is recorded of one command: its start, its streams, the limits it hits, and its end."""

    def __init__(
        self, operation: RecordedOperation, request: ExecRequest, recorder: Recorder, live: Sandbox
    ) -> None:
        self.operation = operation
        self.request = request
        self._recorder = recorder
        self._stdin = Capture("stdin")
        self._stdout, self._stderr = Capture("stdout"), Capture("stderr")
        recorder.record(exec_started(operation, request))
        self._limits = LimitWatch(live)
        self._times = StreamTimes()

    def output(self, stream: Stream, chunk: bytes) -> None:
        """Take what the command has written."""
        capture = self._stdout if stream is Stream.STDOUT else self._stderr
        capture.feed(chunk)
        self._times.note(capture.name, capture.total_bytes)
        self._limits.look()

    def input(self, source: Pieces) -> Pieces:
        """The command's input, seen as it is sent."""

        async def pieces(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
            async for chunk in source:
                self._stdin.feed(chunk)
                yield chunk

        if source is None or isinstance(source, bytes):
            self._stdin.feed(source or b"")
            return source
        return pieces(source)

    def resized(self, rows: int, cols: int) -> None:
        """Keep the new size of its terminal."""
        self._times.resized(rows, cols)

    def signalled(self, signal: Signals, *, whole_tree: bool) -> None:
        """Record a signal that is about to be sent."""
        data = {"signal": signal.name, "scope": "tree" if whole_tree else "main"}
        self._recorder.record(self.operation.event(Kind.EXEC_SIGNAL, data))

    def bodies(self) -> list[Body]:
        """What went by so far."""
        captures = (self._stdin, self._stdout, self._stderr)
        return [capture.body() for capture in captures if capture.total_bytes]

    def end(self, output: ExecOutput | None) -> None:
        """Record the end; None: it was left before that, and its tree was killed."""
        times, timeout_s = self._times.data(), self.request.timeout_s
        if output is None:
            error = CellError("left before the command had ended; its tree was killed")
            kind, bodies = Kind.EXEC_FAILED, self.bodies()
            self._recorder.record(failed(self.operation, kind, error, bodies=bodies, times=times))
            return
        for event in limits_hit(self.operation, output, timeout_s=timeout_s):
            self._recorder.record(event)
        finished = exec_finished(
            self.operation,
            output,
            timeout_s=timeout_s,
            stdout=self._stdout.body(),
            stderr=self._stderr.body(),
            stdin=self._stdin.body() if self._stdin.total_bytes else None,
            times=times,
        )
        self._recorder.record(finished)

    def with_limits(self, output: ExecOutput) -> ExecOutput:
        """The same outcome with the limits that the host saw fire."""
        fired = self._limits.hit()
        is_memory = output.out_of_memory or "memory" in fired
        return replace(output, host_limits=fired, out_of_memory=is_memory) if fired else output
