"""What the operations of a cell share: its state, its record (`docs/events.md`), its death."""

from __future__ import annotations

import asyncio
import contextvars
import errno
import hashlib
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from signal import Signals
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import anyio
import anyio.to_thread

from belljar.capture import Capture, body_of
from belljar.cell.guarded import GuardedRecorder
from belljar.channel import ExecOutput, ExecRequest, FileTooLargeError, Stream
from belljar.dataclass import asdict, dataclass, replace
from belljar.errors import BelljarError, CellError, ProtocolViolation
from belljar.events import Actor, Body, Event, JsonValue, Kind, Recorder, Trust
from belljar.image.config import ImageConfig, image_health
from belljar.isolation.hold import killed_error
from belljar.isolation.sandbox import Sandbox
from belljar.isolation.survivors import Destruction
from belljar.plan.model import Plan
from belljar.policy.guarding import Action, Place
from belljar.signals.observe import output_part

Pieces: TypeAlias = bytes | AsyncIterator[bytes] | None
TIME_STEP_MS: Final = 50  # pieces that come closer are one
MAX_TIMES: Final = 500  # of one stream; the last has all that came after
_LIMIT_OF_ERROR = {errno.ENOSPC: "disk", errno.EDQUOT: "disk", errno.ENOMEM: "memory"}
# PEP 383: bytes that are no UTF-8 become lone surrogates, and are not lost.
_RAW = ("utf-8", "surrogateescape")


def text(value: str | bytes) -> str:
    """Return text for JSON; bytes that are not UTF-8 become visible."""
    decoded = value.decode(*_RAW) if isinstance(value, bytes) else value
    return decoded.encode("utf-8", "backslashreplace").decode("utf-8")


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

    def failed(
        self, kind: Kind, error: BaseException, *, bodies: Sequence[Body] = (), **more: JsonValue
    ) -> Event:
        """Return the end of an operation without a result."""
        reason = f"{type(error).__name__}: {text(str(error))}"[:4096]
        data: dict[str, JsonValue] = {"reason": reason, **more}
        if isinstance(error, OSError) and error.errno is not None:
            data["errno"] = error.errno
        return self.event(kind, data, bodies=bodies)

    def limits_hit(self, error: BaseException, *, is_write: bool) -> Iterator[Event]:
        if isinstance(error, FileTooLargeError):
            yield self.event(Kind.LIMIT_HIT, {"limit": "max_bytes", "value": error.max_bytes})
        # Of another operation it may be this host's disk that is full
        elif is_write and isinstance(error, OSError) and error.errno in _LIMIT_OF_ERROR:
            data = {"limit": _LIMIT_OF_ERROR[error.errno], "value": None}
            yield self.event(Kind.LIMIT_HIT, data, trust=Trust.GUEST_REPORTED)


class CommandRecord:
    """One command's record: its start, streams, limits and end."""

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
        self._counts = {"memory": live.oom_kills, "processes": live.refused_forks}
        self._counted = {name: count() for name, count in self._counts.items()}
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
        return [body for capture in self._streams.values() for body in capture.bodies()]

    def with_limits(self, output: ExecOutput) -> ExecOutput:
        self._fired |= self._full() - self._full_before
        self._fired |= {
            each for each, count in self._counts.items() if count() > self._counted[each]
        }
        fired = tuple(sorted(self._fired))
        is_memory = output.out_of_memory or "memory" in fired
        return replace(output, host_limits=fired, out_of_memory=is_memory) if fired else output

    def end(self, output: ExecOutput | None) -> None:
        """Record the end; None if it was left early."""
        times: dict[str, JsonValue] = {**self._times}
        bodies = self.bodies()
        if output is None:
            error = CellError("left before the command had ended; its tree was killed")
            kind = Kind.EXEC_FAILED
            self._recorder.record(self.operation.failed(kind, error, bodies=bodies, **times))
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


class CellBase:
    def __init__(
        self,
        live: Sandbox,
        plan: Plan,
        recorder: Recorder,
        *,
        actor: Actor,
        has_port: bool,
        image: ImageConfig | None = None,
    ) -> None:
        self.id = live.cell_id
        self.plan = plan
        self.has_port = has_port
        self.image = image or ImageConfig()
        self.image_entrypoint = self.image.entrypoint
        self.image_command = (*self.image.entrypoint, *self.image.cmd)
        self.image_health: Mapping[str, Any] = image_health(self.image) or {}
        self._live, self._pid = live, os.getpid()
        self.tier, self.emulated, self.timings_ms = plan.tier.value, live.emulated, live.timings_ms
        self.env: Mapping[str, str] = MappingProxyType(plan.env)
        self._recorder, self._actor = recorder, actor
        self.guard = recorder if isinstance(recorder, GuardedRecorder) else None
        redacts = self.guard and self.guard.rules.action(Place.OUTPUT) is Action.REDACT
        self._redacts = bool(redacts)
        self.last_op = 0  # the number of the operation that was begun last
        self.origin: Any = None  # a `cell.range.CellOrigin`, whose module knows this one
        self.describe: Callable[..., None] = lambda **_fields: None
        self.failure: BelljarError | None = None
        self._reverted: CellError | None = None
        self._is_ending = False
        self.destruction: Destruction | None = None

    def __repr__(self) -> str:
        return f"<Cell {self.id} {self.tier}{' dead' if self.failure else ''}>"

    def console(self) -> bytes:
        """Return the guest kernel's console output, bounded."""
        return self._live.console()

    def _let_out(self, data: bytes, operation: str) -> bytes:
        """Apply the policy's `guard`. It blocks."""
        if not self._redacts or not data or (guard := self.guard) is None:
            return data
        return guard.let_out(output_part(data, operation), cell_id=self.id) or b""

    def note(self, kind: Kind, data: Mapping[str, JsonValue]) -> None:
        event = Event(kind=kind, cell_id=self.id, actor=self._actor, data=data)
        self._recorder.record(event)

    def _operation(self) -> RecordedOperation:
        if self.failure is not None:
            raise self.failure
        self.last_op += 1
        return RecordedOperation(cell_id=self.id, op=self.last_op, actor=self._actor)

    def _user(self, user: str | None) -> str:
        return self.plan.user if user is None else user

    @contextmanager
    def _recorded(
        self,
        kinds: tuple[Kind, Kind, Kind],
        started: Mapping[str, JsonValue],
        *,
        sent: Sequence[Body] = (),
        seen: Callable[[], Sequence[Body]] = tuple,
    ) -> Iterator[dict[str, JsonValue]]:
        """Record an operation's start and its end with the block's result."""
        operation, result = self._operation(), dict[str, JsonValue]()
        self._recorder.record(operation.event(kinds[0], started, bodies=sent))
        began = anyio.current_time()
        action = {name: started[name] for name in started if name == "action"}
        with self._failure_recorded(operation, kinds[2], bodies=seen, **action):
            yield result
        result["duration_ms"] = round((anyio.current_time() - began) * 1000, 3)
        self._recorder.record(operation.event(kinds[1], result, bodies=seen()))

    @contextmanager
    def _failure_recorded(
        self,
        operation: RecordedOperation,
        kind: Kind,
        *,
        bodies: Callable[[], Sequence[Body]] = tuple,
        **action: JsonValue,
    ) -> Iterator[None]:
        try:
            yield
            if self._reverted is not None:
                raise self._reverted  # what ends after a revert has failed
        except BaseException as error:
            self._recorder.record(operation.failed(kind, error, bodies=bodies(), **action))
            is_write = kind is Kind.FILE_WRITE_FAILED or action == {"action": "upload"}
            for event in operation.limits_hit(error, is_write=is_write):
                self._recorder.record(event)
            self._end_if_dead(error)
            raise

    def _end_if_dead(self, error: BaseException) -> None:
        """Raise the cause of death, recorded once."""
        if not isinstance(error, CellError):
            return
        is_violation = isinstance(error, ProtocolViolation)
        if self._reverted is not None and self._is_ending and not is_violation:
            raise self._reverted  # its end is no death
        if self.failure is None:
            console = self._live.console()
            cause = str(self._live.killed() or self._live.cause_of_death())
            if self._live.death_limit() == "memory":
                limit = self.plan.limits.memory_sum(self.plan.jail.memory_max_bytes)
                cause = f"out of memory: it reached its limit of {limit}"
            self.failure = killed_error(self._live.killed(), where=f"cell {self.id}") or CellError(
                f"the cell died: {cause or error.what}",
                where=f"cell {self.id}",
                hint="its record is complete up to here: `belljar ledger show last`",
            )
            self._record_death_limit()
            kind = Kind.PROTOCOL_VIOLATION if is_violation else Kind.CELL_FAILED
            data = {"error": type(error).__name__, "reason": cause or error.what}
            bodies = (body_of("console", console),) if console else ()
            self._recorder.record(Event(kind=kind, cell_id=self.id, data=data, bodies=bodies))
        raise self.failure from error

    def record_death(self) -> None:
        if self.destruction is None and self._live.end() is not None:
            with suppress(CellError):
                self._end_if_dead(CellError("it had died"))

    def _record_death_limit(self) -> None:
        jail = self.plan.jail
        values = {"lifetime": jail.lifetime_s, "memory": jail.memory_max_bytes}
        if (limit := self._live.death_limit()) is not None:
            data = {"limit": limit, "value": values.get(limit)}
            self._recorder.record(Event(kind=Kind.LIMIT_HIT, cell_id=self.id, data=data))


_tasks: Final = set[asyncio.Task[None]]()


def spawn_task(task: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a task that raises nothing, without a task group."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        trio = import_module("trio")
        trio.lowlevel.spawn_system_task(task, context=contextvars.copy_context())
        return
    made = loop.create_task(task())
    _tasks.add(made)  # the event loop keeps no reference
    made.add_done_callback(_tasks.discard)
