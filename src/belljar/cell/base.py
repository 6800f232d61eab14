"""The parts that a cell's operations share: identity, state, record, cause of death."""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final, TypeAlias

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

# The events of the limits that an operation ran into, by its error.
_LimitsOf: TypeAlias = Callable[[record.RecordedOperation, BaseException], Iterable[Event]]


class CellBase:
    """The state of a `Cell`; how operations begin and fail."""

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
        self._recorder = recorder
        self._actor = actor
        self.last_op = 0  # the number of the operation that was begun last
        self.origin: Any = None  # a `cell.range.CellOrigin`, whose module knows this one
        self.describe: Callable[..., None] = lambda **_fields: None
        self._dead: BelljarError | None = None
        self._reverted: CellError | None = None
        self._is_ending = False
        self.destruction: Destruction | None = None

    def __repr__(self) -> str:
        return (
            f"<Cell {self.id} "
            f"{self.tier}{' emulated' if self.emulated else ''}{' dead' if self._dead else ''}>"
        )

    @property
    def tier(self) -> str:
        """How the cell is isolated."""
        return self.plan.tier.value

    @property
    def emulated(self) -> bool:
        """True without hardware virtualisation between guest and VMM."""
        return self._live.emulated

    @property
    def env(self) -> Mapping[str, str]:
        """A command's default variables: the image's with the policy's on top."""
        return MappingProxyType(self.plan.env)

    @property
    def timings_ms(self) -> Mapping[str, float]:
        """Milliseconds by phase of making this cell."""
        return self._live.timings_ms

    def console(self) -> bytes:
        """The guest kernel's console output, bounded. The guest's word."""
        return self._live.console()

    @property
    def guard(self) -> GuardedRecorder | None:
        """What looks at all that leaves the cell."""
        return self._recorder if isinstance(self._recorder, GuardedRecorder) else None

    async def _redacted(self, data: bytes, operation: str) -> bytes:
        """Return the cell's bytes as the policy's `guard` lets them out."""
        if not self._redacts:
            return data
        return await anyio.to_thread.run_sync(self._let_out, data, operation)

    def _let_out(self, data: bytes, operation: str) -> bytes:
        """As `_redacted`, in the caller's thread."""
        if not self._redacts or not data or (guard := self.guard) is None:
            return data
        return guard.let_out(output_part(data, operation), cell_id=self.id).data

    @property
    def _redacts(self) -> bool:
        guard = self.guard
        return guard is not None and guard.rules.action(Place.OUTPUT) is Action.REDACT

    def note(self, kind: Kind, data: Mapping[str, JsonValue]) -> None:
        """Record an event of the cell outside any operation."""
        event = Event(kind=kind, cell_id=self.id, actor=self._actor, data=data)
        self._recorder.record(event)

    def _operation(self) -> record.RecordedOperation:
        if self._dead is not None:
            raise self._dead
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
        limits: _LimitsOf = lambda *_: (),
    ) -> Iterator[dict[str, JsonValue]]:
        """Record an operation's start, and its end with what the block puts into the result.

        `kinds`: started, completed, failed. `sent`, `seen`: bodies of the first and last event.
        """
        operation, result = self._operation(), dict[str, JsonValue]()
        self._recorder.record(operation.event(kinds[0], started, bodies=sent))
        began, action = anyio.current_time(), str(started.get("action", ""))
        with self._failure_recorded(operation, kinds[2], action=action, bodies=seen, limits=limits):
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
        limits: _LimitsOf = lambda *_: (),
    ) -> Iterator[None]:
        """Record the block's failure and the limits it ran into."""
        try:
            yield
            if self._reverted is not None:
                raise self._reverted  # what ends after a revert has failed
        except BaseException as error:
            failed = record.failed(operation, kind, error, action=action, bodies=bodies())
            for event in (failed, *limits(operation, error)):
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
        if self._dead is None:
            console = self._live.console()
            cause = str(self._live.killed() or self._live.cause_of_death())
            if self._live.death_limit() == "memory":
                limit = self.plan.limits.memory_sum(self.plan.jail.memory_max_bytes)
                cause = f"out of memory: it reached its limit of {limit}"
            self._dead = killed_error(self._live.killed(), where=f"cell {self.id}") or CellError(
                f"the cell died: {cause or error.what}",
                where=f"cell {self.id}",
                hint="its record is complete up to here: `belljar ledger show last`",
            )
            self._record_death_limit()
            kind = Kind.PROTOCOL_VIOLATION if is_violation else Kind.CELL_FAILED
            data = {"error": type(error).__name__, "reason": cause or error.what}
            bodies = (body_of("console", console),) if console else ()
            self._recorder.record(Event(kind=kind, cell_id=self.id, data=data, bodies=bodies))
        raise self._dead from error

    @property
    def failure(self) -> BelljarError | None:
        """The error of its death; None until an operation has met it."""
        return self._dead

    def record_death(self) -> None:
        """Record its death, unless an operation has met it already."""
        if self.destruction is None and self._live.end() is not None:
            with suppress(CellError):
                self._end_if_dead(CellError("it had died"))

    def _record_death_limit(self) -> None:
        """Record once which limit the cell died of."""
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
