"""One evaluation's shared state: its run directory, model cells, stop, and the end of its cells.

Under `inspect eval` the first `task_init` opens a run, and the last `task_cleanup` closes it.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import anyio
import anyio.to_thread
from inspect_ai._util.error import PrerequisiteError
from inspect_ai.util import LimitExceededError
from rich.markup import escape

from belljar.descriptors import raise_soft_limit
from belljar.errors import BelljarError, CellError, ContainmentBreach, PolicyError
from belljar.events import Actor, Event, JsonValue, Kind
from belljar.harness.attach import login_command, remove_dead_sockets
from belljar.harness.config import BelljarConfig
from belljar.harness.evidence import own_evidence, put_on_record
from belljar.harness.host_processes import HostActivity
from belljar.harness.operator import Operator, restore_start, within
from belljar.harness.source import RealCells
from belljar.isolation.hold import killed_error, read_order
from belljar.model.serve import ModelCell, open_model
from belljar.policy.limits import Tier, demanded_tier
from belljar.policy.loaded import with_tier
from belljar.probe.witness import sweep_watches
from belljar.report.samples import headline
from belljar.report.verdict import judge
from belljar.store.home import belljar_home
from belljar.units import printable
from belljar.waiting import print_status

if TYPE_CHECKING:
    from belljar.compose.document import ServiceBuild
    from belljar.ledger.rundir import RunDirectory
    from belljar.policy.loaded import LoadedPolicy, PresetPolicy
    from belljar.policy.model import Policy
    from belljar.report.reasons import ReasonCode

# Time for the interrupt of a stopped run to arrive; then its sample is ended here.
_STOP_TIMEOUT_S: Final = 10.0
_CHECK_INTERVAL_S: Final = 2.0  # a person waits for kept cells to end; nothing else depends on it


class ModelCells:
    def __init__(self) -> None:
        self.tier: Tier | None = None
        self.opened: dict[str, ModelCell | BelljarError] = {}
        self._owners: list[AsyncExitStack] = []
        self._opening = anyio.Lock()

    def need(self, tier: Tier) -> None:
        """Raises `PolicyError` for a model cell of a lower tier than a sample's."""
        for served in self.opened.values():
            if not isinstance(served, BelljarError) and Tier(served.cell.tier) < tier:
                what = f"the model cell's tier, `{served.cell.tier}`, is less than `{tier}`"
                hint = f"write `tier: {tier}` into the model's policy"
                raise PolicyError(what, where=printable(served.policy.source), hint=hint)
        self.tier = tier if self.tier is None else max(self.tier, tier)

    async def get(self, policy: LoadedPolicy, run: RunDirectory, home: Path | None) -> ModelCell:
        async with self._opening:  # samples that begin together must share one cell
            if (found := self.opened.get(policy.source)) is None:
                print_status(f"belljar: starting the model cell of {printable(policy.source)}")
                own = demanded_tier(policy.policy.risk, policy.policy.tier)
                # At least the tier of the samples so far: `need` refuses a lower one.
                raised = with_tier(policy, max(own, self.tier or own))
                owner = AsyncExitStack()
                opening = open_model(raised, run=run, home=home)
                try:
                    found = await owner.enter_async_context(opening)
                    print_status(f"belljar: the model answers, in {found.cell!r}")
                except BelljarError as error:
                    found = error
                self._owners.append(owner)
                self.opened[policy.source] = found
            if isinstance(found, BelljarError):
                raise found
            return found

    async def close(self) -> list[BelljarError]:
        """Destroy them with proof; return the run's errors."""
        self.opened.clear()
        errors: list[BelljarError] = []
        while self._owners:
            with anyio.CancelScope(shield=True):
                try:
                    await self._owners.pop().aclose()
                except BelljarError as error:
                    errors.append(error)
                except Exception as error:  # noqa: BLE001 - the others are destroyed, too
                    errors.append(CellError(f"{type(error).__name__}: {error}"))
        return errors


@dataclass
class Session:
    """One evaluation. Mutable, owned by one event loop.

    `own` holds a run that the provider opened. `users`: `task_init` calls without `task_cleanup`.
    `refusal`: the first error that refused a task. `failure`: what ended the evaluation.
    `stopped`: the breach after which no cell takes work. `stop`: ends the evaluation at once.
    `directories`, `builds`: of begun tasks. `is_previewed`: differences were shown before.
    """

    run: RunDirectory | None = None
    given_operator: Operator | None = None
    home: Path | None = None
    source: RealCells = field(default_factory=RealCells)
    own: ExitStack | None = None
    users: int = 0
    live: list[Any] = field(default_factory=list)  # of `SampleCell`, whose module knows this one
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

    def __post_init__(self) -> None:
        self.source.home = self.home

    @property
    def operator(self) -> Operator:
        return self.given_operator or Operator()

    def default_policy(self) -> Policy | PresetPolicy:
        """Raises `PolicyError`, `HostError`."""
        return within(BelljarConfig(), self.operator).policy.policy

    def ensure_run(self) -> RunDirectory:
        """Raises `HostError`."""
        if self.run is None:
            # A second evaluation in this process must not inherit the first one's breaches.
            own, self.breaches, self.refusal = ExitStack(), [], None
            self.failure, self.failure_code = "", 0
            self.run = own.enter_context(self.source.start_run("inspect", sys.argv))
            self.own = own
        return self.run

    async def model_cell(self, policy: LoadedPolicy) -> ModelCell:
        try:
            return await self.models.get(policy, self.ensure_run(), self.home)
        except BelljarError as error:
            if isinstance(error, ContainmentBreach):
                self.breached(error)
            elif self.refusal is None:
                self.refusal = error
                if self.stop is not None:
                    self.stop()
            raise

    def show_once(self, notes: Iterable[str]) -> None:
        for note in dict.fromkeys(notes):
            if note not in self.shown:
                self.shown.add(note)
                print_status(f"belljar: {note}")

    def record_end(self, *, interrupted: bool) -> None:
        if self.run is not None:
            self.run.before_end.close()
        data: dict[str, JsonValue] = {
            "interrupted": interrupted,
            "stopped": self.stopped is not None,
            "errors": [plain(error) for error in self.breaches],
            "causes": [getattr(error, "cause", "") for error in self.breaches],
            **(self.host.data() if self.host is not None else {}),
        }
        if self.refusal is not None:
            data["refusal"], data["refusal_code"] = plain(self.refusal), self.refusal.exit_code
        if self.failure:
            data["failure"], data["failure_code"] = self.failure, self.failure_code
        self.record(Event(kind=Kind.RUN_EVALUATED, data=data, actor=Actor.HARNESS))

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
        """Stop the run after one of our hooks' errors."""
        # Inspect only logs what a hook raises, and goes on, except for a limit: should the
        # interrupt be late, that ends the sample before its solver runs or its model is called.
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
        # Inspect has no entry for a sample whose own error meets the cancellation for another's.
        run = self.ensure_run().run_id
        killed = killed_error(read_order(self.home or belljar_home(), run), where=f"run {run}")
        if killed is not None:
            if self.stopped is None:  # another sample may have seen the same order before
                self.breached(killed)
            await self.await_end()

    async def await_end(self) -> None:
        # Inspect's control server takes the signal, closes, and only then passes it on; its log
        # stays unfinished when a sample fails in between.
        # Without `stop`, as under `inspect eval`, nothing would cancel this wait.
        if self.stop is not None:
            await anyio.sleep(max(0.0, self.stopped_at_s + _STOP_TIMEOUT_S - time.monotonic()))

    def record(self, event: Event) -> None:
        self.ensure_run().recorder.record(event)

    def enter(self) -> None:
        """Count a task in; the first opens a run."""
        raise_soft_limit()  # each cell holds several descriptors of this process
        if self.run is None:
            restore_start()  # Inspect's command has read a `.env` file by now
            print_status(f"belljar: recording into {self.ensure_run().path}")
        if not self.users:
            remove_dead_sockets(self.home)
            sweep_watches()
        self.users += 1

    async def leave(self) -> None:
        """Count a task out; the last closes the run."""
        self.users = max(0, self.users - 1)  # `on_run_end` leaves without having entered
        if not self.users:
            self.breaches += await self.models.close()
        if self.users or self.own is None:
            return
        run = self.ensure_run()
        run.finish("failed", exit_code=2)  # until it is judged
        try:
            self.record_end(interrupted=bool(self.termination_signals))
            # In a thread: Inspect reads logs with its own event loop.
            findings = judge(await anyio.to_thread.run_sync(own_evidence, run))
            put_on_record(run, findings)
        finally:
            # Cleared before it closes: an error there must not leave a closed run behind.
            own, self.own, self.run = self.own, None, None
            self.directories.clear()
            own.close()
        if not findings.refusal_code:
            print_status(f"belljar: {printable(headline(findings))}")
            print_status(f"belljar: reasons and evidence: belljar verdict {run.run_id}")

    async def keep_cells(self) -> None:
        """Keep the cells for a person (`--no-sandbox-cleanup`), and serve their attach sockets.

        Returns at Ctrl-C, SIGTERM, `inspect sandbox cleanup belljar`, or when the last cell's
        lifetime is over: a cell never outlives its process.
        """
        count = f"{len(self.live)} cell(s) kept until this process ends"
        print_status(f"belljar: {count}; Ctrl-C destroys them.")
        for each in self.live:
            sample = printable(each.identity.sample)
            print_status(f"  {each.cell.id}  sample {sample}  {login_command(each.cell.id, None)}")
        async with anyio.create_task_group() as tasks:

            async def end_at_signal() -> None:
                with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                    async for _ in signals:
                        tasks.cancel_scope.cancel()

            # Python handles signals in the main thread only.
            if threading.current_thread() is threading.main_thread():
                tasks.start_soon(end_at_signal)
            for each in tuple(self.live):  # a copy: a cell that is closed leaves the list
                tasks.start_soon(each.attach_socket.serve, each.cell)
            while self.live:
                for each in tuple(self.live):
                    try:
                        await each.cell.ping()
                        is_over = each.attach_socket.released
                    # It died, or reached the end of its lifetime.
                    except CellError:
                        is_over = True
                    if is_over:
                        await each.close(outcome="completed")
                await anyio.sleep(_CHECK_INTERVAL_S)
            tasks.cancel_scope.cancel()

    async def close_all(self, *, outcome: str) -> None:
        """Close every running cell, then raise an error of theirs."""
        async with AsyncExitStack() as stack:  # an error of one must not keep the others running
            for each in tuple(self.live):
                stack.push_async_callback(each.close, outcome=outcome)


def plain(error: BelljarError) -> str:
    return f"{error.where}: {error.what}" if error.where else error.what


def as_prerequisite_error(error: BelljarError) -> Exception:
    # Inspect prints the text as rich's markup, where brackets are styles.
    return PrerequisiteError(escape("\n".join(printable(line) for line in str(error).splitlines())))


_given: ContextVar[Session | None] = ContextVar("belljar_session", default=None)
_process = Session()


@contextmanager
def session_scope(session: Session) -> Iterator[Session]:
    token = _given.set(session)
    try:
        yield session
    finally:
        _given.reset(token)


def current_session() -> Session:
    return _given.get() or _process
