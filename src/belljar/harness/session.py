"""One evaluation's shared state, and each sample's cell.

`belljar run` opens a session around Inspect. Under `inspect eval` the first `task_init` opens a run
directory and the last `task_cleanup` closes it.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypeVar

import anyio
import anyio.to_thread
from inspect_ai.util import LimitExceededError, SandboxUnavailableError

from belljar.cell.health import HealthWatch
from belljar.errors import BelljarError, CellError, ContainmentBreach
from belljar.events import Actor, Event, JsonValue, Kind
from belljar.harness.attach import AttachSocket
from belljar.harness.host_processes import HostActivity, proxies_here
from belljar.harness.models import ModelCells
from belljar.harness.operator import OperatorOptions
from belljar.harness.sample_record import (
    Containment,
    SampleIdentity,
    bind_containment,
    bind_degraded,
    is_preparing,
    note_probes,
)
from belljar.harness.source import RealCells
from belljar.probe.run import breach_of
from belljar.units import printable
from belljar.waiting import print_status

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.cell.range import Range
    from belljar.compose.document import ServiceBuild
    from belljar.ledger.rundir import RunDirectory
    from belljar.model.serve import ModelCell
    from belljar.policy.loaded import LoadedPolicy
    from belljar.probe.model import ProbeReport
    from belljar.report.reasons import ReasonCode

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
# Time for the interrupt of a stopped run to arrive; then its sample is ended here.
_STOP_TIMEOUT_S: Final = 10.0
# Of a sample's files for a revert, larger ones wait on disk: cells have the memory.
_MAX_KEPT_BYTES: Final = 1 << 20
# The model learns nothing of host or cause.
_UNAVAILABLE: Final = "the machine is not running and cannot take commands"


@dataclass
class Session:
    """One evaluation. Mutable, owned by one event loop.

    `run`: None until the first use; `own` holds one that the provider opened. `users`: `task_init`
    calls without their `task_cleanup`. `refusal`: the first error that refused a task. `failure`:
    what ended the evaluation. `breaches`: errors of destruction and probes; any voids the run.
    `stopped`: the breach after which no cell takes work, at monotonic `stopped_at_s`. `stop`: ends
    the evaluation at once, if its owner can. `termination_signals`: after one no cell is kept.
    `directories`, `builds`: of begun tasks. `is_previewed`: differences were shown before the run.
    """

    run: RunDirectory | None = None
    operator_options: OperatorOptions = field(default_factory=OperatorOptions)
    home: Path | None = None
    source: RealCells = field(default_factory=RealCells)
    own: ExitStack | None = None
    users: int = 0
    live: list[SampleCell] = field(default_factory=list)
    refusal: BelljarError | None = None
    failure: str = ""
    failure_code: int = 0
    breaches: list[BelljarError] = field(default_factory=list)
    stopped: BelljarError | None = None
    stopped_at_s: float = 0.0
    stop: Callable[[], None] | None = None
    termination_signals: list[int] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)
    directories: list[Path] = field(default_factory=list)
    builds: list[ServiceBuild] = field(default_factory=list)
    is_previewed: bool = False
    models: ModelCells = field(default_factory=ModelCells)
    host: HostActivity | None = None

    def ensure_run(self) -> RunDirectory:
        """The run directory, opened if needed. Raises `HostError`."""
        if self.run is None:
            # A second evaluation in this process must not inherit the first one's breaches.
            own, self.breaches, self.refusal = ExitStack(), [], None
            self.failure, self.failure_code = "", 0
            self.run = own.enter_context(self.source.start_run("inspect", sys.argv, home=self.home))
            self.own = own
        return self.run

    async def model_cell(self, policy: LoadedPolicy) -> ModelCell:
        """The model cell of this policy, opened if needed. Raises as `open_model`.

        Without its model an evaluation has nothing to do: it ends.
        """
        try:
            return await self.models.get(policy, self.ensure_run(), self.home)
        except ContainmentBreach as error:
            self.breached(error)
            raise
        except BelljarError as error:
            if self.stop is not None and self.refusal is None:
                self.stop()
            self.refusal = self.refusal or error
            raise

    def show_once(self, notes: Iterable[str]) -> None:
        """Print each note once in this session."""
        for note in dict.fromkeys(notes):
            if note not in self.shown:
                self.shown.add(note)
                print_status(f"belljar: {note}")

    def record_end(self, *, interrupted: bool) -> None:
        """Record the evaluation's end and errors, and the last check of the air gap."""
        if self.run is not None:
            self.run.before_end.close()
        data: dict[str, JsonValue] = {
            "interrupted": interrupted,
            "stopped": self.stopped is not None,
            "errors": [plain(error) for error in self.breaches],
            "causes": [getattr(error, "cause", "") for error in self.breaches],
        }
        if self.host is not None:
            data["host_processes"] = dict(self.host.programs)
            data["connections"] = dict(self.host.connections)
            data["proxies"] = [*proxies_here()]
        if self.refusal is not None:
            data["refusal"], data["refusal_code"] = plain(self.refusal), self.refusal.exit_code
        if self.failure:
            data["failure"], data["failure_code"] = self.failure, self.failure_code
        self.record(Event(kind=Kind.RUN_EVALUATED, data=data, actor=Actor.HARNESS))

    def close_own_run(self) -> None:
        """Close the run directory if `ensure_run` opened it."""
        if self.own is None:
            return
        # Cleared before it closes: an error there must not leave a closed run behind.
        own, self.own, self.run = self.own, None, None
        self.directories.clear()
        own.close()

    def breached(self, error: BelljarError) -> None:
        """Refuse further work, and end the evaluation."""
        self.breaches.append(error)
        if self.stopped is None:
            self.stopped_at_s, self.stopped = time.monotonic(), error
            if self.stop is not None:
                self.stop()

    def refuse(self, what: str, *, where: str, hint: str, cause: ReasonCode) -> NoReturn:
        """Stop the run. Raises `ContainmentBreach`."""
        error = ContainmentBreach(what, where=where, hint=hint)
        error.cause = cause.value
        self.breached(error)
        raise error

    async def end_sample(self, error: Exception, *, where: str) -> NoReturn:
        """Stop the run after an error in a hook of Inspect."""
        # Inspect only logs what a hook raises, and goes on, except for a limit: should the
        # interrupt be late, the limit ends the sample before its solver runs or its model is
        # called.
        if not isinstance(error, ContainmentBreach):
            what = f"could not be checked: {type(error).__name__}: {error}"
            error = ContainmentBreach(printable(what), where=where)
            self.breached(error)
        await self.await_end()
        raise LimitExceededError("custom", value=1, limit=0, message=error.what) from error

    async def check_running(self) -> None:
        """Raise a stopped evaluation's breach, once it ended."""
        if (error := self.stopped) is not None:
            await self.await_end()
            what = f"the run is stopped: {error.what}"
            raise ContainmentBreach(what, where=error.where, hint=error.hint)

    async def end_if_killed(self) -> None:
        """End the evaluation if a kill order names it."""
        # Inspect has no entry for a sample whose own error meets the cancellation for another's:
        # the end is awaited here.
        from belljar.isolation.hold import killed_error, read_order
        from belljar.store.home import belljar_home

        run = self.ensure_run().run_id
        killed = killed_error(read_order(self.home or belljar_home(), run), where=f"run {run}")
        if killed is not None:
            # Another sample may have seen the same order before.
            if self.stopped is None:
                self.breached(killed)
            await self.await_end()

    async def await_end(self) -> None:
        """Wait to be cancelled after a breach, up to a timeout."""
        # Inspect's control server takes the signal, closes, and only then passes it on; its log
        # stays unfinished when a sample fails in between.
        # Without `stop`, as under `inspect eval`, nothing would cancel this wait.
        if self.stop is not None:
            await anyio.sleep(max(0.0, self.stopped_at_s + _STOP_TIMEOUT_S - time.monotonic()))

    def record(self, event: Event) -> None:
        """Record an event of the harness."""
        self.ensure_run().recorder.record(event)


def plain(error: BelljarError) -> str:
    """An error in one sentence with its place."""
    return f"{error.where}: {error.what}" if error.where else error.what


_given: ContextVar[Session | None] = ContextVar("belljar_session", default=None)
_process = Session()


@contextmanager
def session_scope(session: Session) -> Iterator[Session]:
    """Make `session` the block's session."""
    token = _given.set(session)
    try:
        yield session
    finally:
        _given.reset(token)


def current_session() -> Session:
    """The session given by `session_scope`, else the process's own."""
    return _given.get() or _process


class SampleCell:
    """The part of a sandbox that Inspect doesn't call."""

    def __init__(
        self,
        opened: Range,
        cell: Cell,
        *,
        session: Session,
        identity: SampleIdentity,
        stack: AsyncExitStack,
        policy: LoadedPolicy,
    ) -> None:
        self.range = opened
        self.cell = cell
        self.identity = identity
        self.policy = policy
        self._session = session
        self._stack = stack
        self._closed = False
        self._running = False
        self.is_own = True
        self.containment = Containment(machines=[cell.id])
        self.health = HealthWatch(cell, session.record)
        self._past_health: list[HealthWatch] = []
        self._preparation: list[tuple[Callable[[Cell], Awaitable[object]], int]] = []
        self._beside: list[SampleCell] = []
        self._beginning = anyio.Lock()
        self.attach_socket = AttachSocket.for_cell(cell, home=session.home)

    @asynccontextmanager
    async def _operation(self, *harmless: type[Exception]) -> AsyncIterator[None]:
        """Prepare for a call of Inspect's; a broken cell is noticed by its errors.

        `harmless`: errors that say nothing of the cell's health.
        """
        await self._session.check_running()
        if not self._running and not is_preparing():
            async with self._beginning:  # no operation before the baseline
                if not self._running:
                    self._record(Kind.SAMPLE_RUNNING, self.identity.data())
                    await self.health.take_baseline()
                    self._running = True
        self.attach_socket.open_in_sample(self.cell)
        try:
            yield
        except harmless:
            raise
        except CellError as error:
            # Only the log has the cause.
            sample, why = printable(self.identity.sample), printable(str(error))
            logger.warning("cell %s of sample %s: %s", self.cell.id, sample, why)
            await self._session.end_if_killed()
            await self.health.look("call")
            raise SandboxUnavailableError(_UNAVAILABLE) from None
        except OSError:
            await self.health.look("call")
            raise

    def _record(self, kind: Kind, data: dict[str, JsonValue], cell: Cell | None = None) -> None:
        cell_id = (cell or self.cell).id
        self._session.record(Event(kind=kind, data=data, cell_id=cell_id, actor=Actor.HARNESS))

    def _record_start(self, cell: Cell) -> None:
        """Whose cell it is, for the record and `belljar ps`."""
        started = self.identity.started(self.policy, self.containment.differences)
        self._record(Kind.SAMPLE_STARTED, {**started, "preparing": True}, cell)
        cell.describe(sample=str(self.identity.sample), epoch=self.identity.epoch)

    async def probe_start(self) -> None:
        """Probe the fresh cell. Raises `ContainmentBreach`."""
        # Other cells of its range already were.
        report = await self._probe_noted(self.range, "start")
        await self._stop_if_breached(report, self.range.cell)

    async def _probe(self, opened: Range, cell: Cell, phase: str) -> ProbeReport:
        run, router = self._session.ensure_run(), opened.routers.get(cell.id)
        return await self._session.source.probe(cell, router, run=run, phase=phase)

    async def _probe_noted(self, opened: Range, phase: Literal["start", "end"]) -> ProbeReport:
        """Probe its cells. Every cell is on record; the worst report is returned."""
        cells = [opened.cell] if phase == "start" else opened.cells.values()
        reports = {cell.id: await self._probe(opened, cell, phase) for cell in cells}
        report = max(reports.values(), key=lambda each: each.verdict.badness)
        (self.containment.starts if phase == "start" else self.containment.ends).update(reports)
        note_probes(phase, report, self._session.ensure_run().run_id)
        return report

    async def _act(self, act: Callable[[Cell], Awaitable[_T]]) -> _T:
        """Act in the cell. What prepares the sample is done again after a revert."""
        result = await act(self.cell)
        if self._may_repeat():
            self._preparation.append((act, getattr(result, "returncode", 0)))
        return result

    def _may_repeat(self) -> bool:
        # No range with a network, or with other cells, can be reverted
        return self.range.network is None and not self.range.targets and is_preparing()

    async def _kept(self, content: bytes) -> Callable[[], bytes]:
        """The content of a file, as often as a revert repeats it: a large one is not kept in memory
        if the host's disk takes it.
        """
        if len(content) > _MAX_KEPT_BYTES and self._may_repeat():
            with suppress(OSError):  # a full disk: memory keeps it
                spool = self._stack.enter_context(TemporaryFile(buffering=0))  # noqa: SIM115
                if await anyio.to_thread.run_sync(spool.write, content) == len(content):
                    size = len(content)
                    return lambda: os.pread(spool.fileno(), size, 0)
        return lambda: content

    def beside(self, cell: Cell) -> Self:
        """Another cell of this range; ends with it."""
        about: dict[str, Any] = {
            "session": self._session,
            "identity": self.identity,
            "policy": self.policy,
        }
        environment = type(self)(self.range, cell, stack=AsyncExitStack(), **about)
        environment.is_own = False
        self._beside.append(environment)
        self._stack.push_async_callback(environment.attach_socket.close)
        return environment

    async def _stop_if_breached(
        self, report: ProbeReport | None, cell: Cell, *, cancelled: bool = False
    ) -> None:
        # `cancelled`: Inspect shields this from cancellation: the breach is on record, but waiting
        # for the evaluation's end would be in vain.
        breach = breach_of(report, cell.id)
        if breach is None:
            return
        self._session.breached(breach)
        if cancelled and self._session.stop is not None:
            return
        await self._session.await_end()
        raise breach

    @property
    def run_path(self) -> Path:
        """This cell's run directory. For scorers."""
        return self._session.ensure_run().path

    @asynccontextmanager
    async def another_cell(self) -> AsyncIterator[Cell]:
        """A fresh cell of this sample. For scorers."""
        session = self._session
        async with session.source.open_range(
            self.policy, run=session.ensure_run(), home=session.home
        ) as opened:
            cell = opened.cell
            self._record(Kind.SAMPLE_STARTED, self.identity.started(self.policy), cell)
            await self._stop_if_breached(await self._probe(opened, cell, "start"), cell)
            try:
                yield cell
            finally:
                # Also for a cancelled scorer: a cell without a last probe proves nothing.
                with anyio.CancelScope(shield=True):
                    last = await self._probe(opened, cell, "end")
                # Whatever the scorer raised
                await self._stop_if_breached(last, cell)

    async def close(self, *, outcome: str) -> None:
        """Probe the cell once more, destroy it, record the end. Shielded; idempotent.

        Raises `ContainmentBreach` when a probe found a way out (not for an interrupted sample of an
        evaluation that is being ended), or something was left.
        """
        if self._closed:
            return
        # Before the first await: a second call meanwhile returns at once.
        self._closed = True
        report: ProbeReport | None = None
        with anyio.CancelScope(shield=True):
            try:
                if outcome == "completed":  # an interrupted sample has no score to be doubted
                    for environment in (self, *self._beside):  # the probes end all that runs there
                        await environment.health.look("end")
                report = await self._probe_noted(self.range, "end")
            finally:
                try:
                    await self._end(outcome)
                except BelljarError:
                    # This error leaves first; a breach stops the run all the same.
                    if (breach := breach_of(report, self.cell.id)) is not None:
                        self._session.breached(breach)
                    raise
        await self._stop_if_breached(report, self.cell, cancelled=outcome == "interrupted")

    async def _end(self, outcome: str) -> None:
        try:
            await self._stack.aclose()
            self.containment.clean = True
        except BelljarError as error:
            self.containment.clean = False
            self._session.breaches.append(error)
            raise
        # The end is on record however the cell ended: without it the sample is void.
        finally:
            self.containment.run_id = self._session.ensure_run().run_id
            data = self.identity.data()
            data |= {"outcome": outcome, "containment": self.containment.data()}
            self._record(Kind.SAMPLE_FINISHED, data)
            bind_containment(self.containment, self.identity)
            watches = (*self._past_health, *(each.health for each in (self, *self._beside)))
            bind_degraded(watches, self.identity)

    async def _forget(self) -> None:
        self._session.live.remove(self)
        await self.attach_socket.close()
