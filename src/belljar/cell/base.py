"""The parts that a cell's operations share: identity, state, record, cause of death."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import anyio
import anyio.to_thread

from belljar.capture import body_of
from belljar.cell import record
from belljar.cell.guarded import GuardedRecorder
from belljar.errors import BelljarError, CellError, ProtocolViolation
from belljar.events import Actor, Body, Event, JsonValue, Kind, Recorder
from belljar.image.config import ImageConfig, image_health
from belljar.isolation.hold import killed_error
from belljar.isolation.sandbox import Sandbox
from belljar.isolation.survivors import Destruction
from belljar.plan.model import Plan
from belljar.policy.guarding import Action, Place
from belljar.signals.observe import output_part


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
        return (
            f"<Cell {self.id} "
            f"{self.tier}{' emulated' if self.emulated else ''}{' dead' if self.failure else ''}>"
        )

    def console(self) -> bytes:
        """Return the guest kernel's console output, bounded. It is the guest's word."""
        return self._live.console()

    async def _redacted(self, data: bytes, operation: str) -> bytes:
        """Return the cell's bytes as the policy's `guard` lets them out."""
        if not self._redacts:
            return data
        return await anyio.to_thread.run_sync(self._let_out, data, operation)

    def _let_out(self, data: bytes, operation: str) -> bytes:
        if not self._redacts or not data or (guard := self.guard) is None:
            return data
        return guard.let_out(output_part(data, operation), cell_id=self.id).data

    def note(self, kind: Kind, data: Mapping[str, JsonValue]) -> None:
        """Record an event of the cell outside any operation."""
        event = Event(kind=kind, cell_id=self.id, actor=self._actor, data=data)
        self._recorder.record(event)

    def _operation(self) -> record.RecordedOperation:
        if self.failure is not None:
            raise self.failure
        self.last_op += 1
        return record.RecordedOperation(cell_id=self.id, op=self.last_op, actor=self._actor)

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
        """Record an operation's start, and its end with what the block puts into the result.

        `sent` and `seen` are the bodies of the first and the last event.
        """
        operation, result = self._operation(), dict[str, JsonValue]()
        self._recorder.record(operation.event(kinds[0], started, bodies=sent))
        began, action = anyio.current_time(), str(started.get("action", ""))
        with self._failure_recorded(operation, kinds[2], action=action, bodies=seen):
            yield result
        result["duration_ms"] = round((anyio.current_time() - began) * 1000, 3)
        self._recorder.record(operation.event(kinds[1], result, bodies=seen()))

    @contextmanager
    def _failure_recorded(
        self,
        operation: record.RecordedOperation,
        kind: Kind,
        *,
        action: str = "",
        bodies: Callable[[], Sequence[Body]] = tuple,
    ) -> Iterator[None]:
        """Record the block's failure and the limits it ran into."""
        try:
            yield
            if self._reverted is not None:
                raise self._reverted  # what ends after a revert has failed
        except BaseException as error:
            failed = record.failed(operation, kind, error, action=action, bodies=bodies())
            is_write = kind is Kind.FILE_WRITE_FAILED or action == "upload"
            for event in (failed, *record.limits_hit(operation, error, is_write=is_write)):
                self._recorder.record(event)
            self._end_if_dead(error)
            raise

    def _end_if_dead(self, error: BaseException) -> None:
        """Raise a dead cell's error with the cause of death, recorded once."""
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
        """Record its death, unless an operation has met it already."""
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
