"""What the cells of one evaluation share: the run directory they record into, the operator's
policy, and the list of those that live.

`belljar run` opens a session around Inspect. Under a plain `inspect eval` the provider's first
`task_init` opens a run directory of its own and the last `task_cleanup` closes it, so that there is
evidence then too.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence, Set
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

import anyio

from belljar.differences import Difference
from belljar.errors import BelljarError, ContainmentBreach, HostError
from belljar.events import Actor, Event, JsonValue, Kind
from belljar.harness.operator import OperatorOptions
from belljar.units import printable

if TYPE_CHECKING:
    from pydantic import BaseModel

    from belljar.cell import Cell
    from belljar.harness.provider import BelljarSandboxEnvironment
    from belljar.harness.warm import WarmCells
    from belljar.ledger import RunDirectory
    from belljar.policy import LoadedPolicy
    from belljar.probe.model import ProbeReport
    from belljar.report.reasons import ReasonCode

_STOP_TIMEOUT_S: Final = 10.0


class CellSource(Protocol):
    """Where cells and run directories come from: `RealCells`, or a test's."""

    def start_run(
        self, kind: str, argv: list[str], *, home: Path | None, what: str = ""
    ) -> AbstractContextManager[RunDirectory]:
        """A new run directory; leaving the block closes it. `what` names it in lists."""

    def build_images(self, builds: Iterable[str], *, images: Set[str], home: Path | None) -> None:
        """Build those of `builds` (as `BelljarConfig.builds`) that are among `images` and not in
        the store."""

    def check_images(self, policies: Sequence[LoadedPolicy], *, home: Path | None) -> None:
        """Raises `HostError` that names every image that is missing."""

    def image_differences(
        self, policy: LoadedPolicy, *, home: Path | None
    ) -> tuple[Difference, ...]:
        """What becomes of the configuration of the images of a cell and the others of its range."""

    async def prepare(self, policy: LoadedPolicy, *, run: RunDirectory, home: Path | None) -> None:
        """Plan and make the template."""

    def open_cell(
        self, policy: LoadedPolicy, *, run: RunDirectory, home: Path | None, ahead: bool = False
    ) -> AbstractAsyncContextManager[Cell]:
        """A fresh cell; leaving the block destroys it.

        `ahead`: no sample needs it yet, for the record.
        """

    async def probe(self, cell: Cell, *, run: RunDirectory, phase: str) -> ProbeReport:
        """The quick set of probes in a running cell, recorded."""


class RealCells:
    """Cells of this host.

    An image that a run was prepared with stays the image of its name for this run.
    """

    def __init__(self) -> None:
        self._digests: dict[tuple[Path | None, str], str] = {}

    def start_run(
        self, kind: str, argv: list[str], *, home: Path | None, what: str = ""
    ) -> AbstractContextManager[RunDirectory]:
        """A new run directory in the store, with the versions of what takes part."""
        from belljar.ledger import create_run
        from belljar.store.home import belljar_home

        versions = {name: version(name) for name in ("inspect-ai", "anyio", "pydantic")}
        return create_run(home or belljar_home(), kind, argv, what=what, versions=versions)

    def build_images(self, builds: Iterable[str], *, images: Set[str], home: Path | None) -> None:
        """By buildah, with its output on standard error. Raises `PolicyError` or `HostError`."""
        from belljar.harness.builds import build_missing
        from belljar.harness.lifecycle import say
        from belljar.store.home import belljar_home

        build_missing(builds, images, home or belljar_home(), report=say)

    def check_images(self, policies: Sequence[LoadedPolicy], *, home: Path | None) -> None:
        """Against the store."""
        from belljar.harness.preview import check_images
        from belljar.store.home import belljar_home

        check_images(policies, home or belljar_home())

    def image_differences(
        self, policy: LoadedPolicy, *, home: Path | None
    ) -> tuple[Difference, ...]:
        """As the store has it."""
        from belljar.harness.preview import differences_of_images
        from belljar.store.home import belljar_home

        return differences_of_images(policy, home or belljar_home())

    async def prepare(self, policy: LoadedPolicy, *, run: RunDirectory, home: Path | None) -> None:
        """Plan on this host and make the template. Prints which tiers were skipped."""
        from belljar.cell import prepare
        from belljar.harness.lifecycle import say

        self.check_unchanged(policy, home=home)
        parts = await prepare(policy, recorder=run.recorder, home=home)
        for sentence in parts.plan.skipped_tiers:
            say(f"belljar: {sentence}")

    def open_cell(
        self, policy: LoadedPolicy, *, run: RunDirectory, home: Path | None, ahead: bool = False
    ) -> AbstractAsyncContextManager[Cell]:
        """A clone of the template."""
        from belljar.cell import open_cell

        async def on_target(target: Cell) -> None:
            """A target cell is probed before its own program runs."""
            from belljar.probe.run import breach_of

            breach = breach_of(await self.probe(target, run=run, phase="start"), target.id)
            if breach is not None:
                raise breach

        opening = open_cell(
            policy, run=run, home=home, actor=Actor.HARNESS, ahead=ahead, on_target=on_target
        )
        return self._unchanged(opening, home)

    @asynccontextmanager
    async def _unchanged(
        self, opening: AbstractAsyncContextManager[Cell], home: Path | None
    ) -> AsyncIterator[Cell]:
        """The cell, if it and those beside it have the images that the run was prepared with."""
        async with opening as cell:
            for each in (cell, *cell.others.values()):
                if each.plan.image is not None:
                    self._check(home, each.plan.policy.image, each.plan.image.digest)
            yield cell

    def check_unchanged(self, policy: LoadedPolicy, *, home: Path | None) -> None:
        """Raises `HostError` when a name stands for another image than it did at the run's first
        look."""
        from belljar.image import Store
        from belljar.image.store import find_images
        from belljar.store.home import belljar_home

        for name, image in find_images(Store(home or belljar_home()), policy.policy.images).items():
            self._check(home, name, image.digest)

    def _check(self, home: Path | None, name: str, digest: str) -> None:
        if self._digests.setdefault((home, name), digest) != digest:
            what = f"the image {printable(name)} was replaced in the store while this run uses it"
            raise HostError(
                what, hint="start the run again; give images of other tasks names of their own"
            )

    async def probe(self, cell: Cell, *, run: RunDirectory, phase: str) -> ProbeReport:
        """As the workload, with the host's witnesses."""
        from belljar.probe.run import probe_cell

        return await probe_cell(cell, recorder=run.recorder, phase=phase)


@dataclass
class Session:
    """One evaluation.

    Mutable, owned by one event loop; `breached` may be called from the thread of cells made ahead
    too.

    Attributes:
        run: the run directory; None until the first use.
        operator_options: what the operator typed: `--policy`, `--override`, `--tier`,
            `--allow-upstreams`.
        home: the store, None for the default.
        own: holds the run directory open when the provider opened it.
        users: `task_init` calls without their `task_cleanup`.
        live: the cells of samples that stand, by id.
        warm: cells made ahead, if the operator wants them.
        refusal: the first error of ours that ended a task before it began.
        breaches: errors of destruction and of probes; any of them voids the run.
        stopped: the breach after which nothing more is done in any cell; `stopped_at_s`, when, by
            the monotonic clock.
        stop: how to end the evaluation at once, if its owner gave a way.
        directories: those of the tasks that were begun.
        builds: those of the configurations that were begun, as `BelljarConfig.builds`.
        said: sentences about tasks that the operator has read.
        is_previewed: what differs from the tasks was shown before the run.
        told_to_end: the SIGTERMs and SIGHUPs that came: then nothing is held for a person to look
            at.
    """

    run: RunDirectory | None = None
    operator_options: OperatorOptions = field(default_factory=OperatorOptions)
    home: Path | None = None
    source: CellSource = field(default_factory=RealCells)
    own: ExitStack | None = None
    users: int = 0
    live: dict[str, BelljarSandboxEnvironment] = field(default_factory=dict)
    warm: WarmCells | None = None
    refusal: BelljarError | None = None
    breaches: list[BelljarError] = field(default_factory=list)
    stopped: BelljarError | None = None
    stopped_at_s: float = 0.0
    stop: Callable[[], None] | None = None
    told_to_end: list[int] = field(default_factory=list)
    said: set[str] = field(default_factory=set)
    directories: list[Path] = field(default_factory=list)
    builds: list[str] = field(default_factory=list)
    is_previewed: bool = False

    def ensure_run(self) -> RunDirectory:
        """The run directory; opened now if nobody gave one.

        Raises `HostError` when it can't be made: without a record nothing may run.
        """
        if self.run is None:
            import sys

            self.own, self.breaches, self.refusal = ExitStack(), [], None
            self.run = self.own.enter_context(
                self.source.start_run("inspect", sys.argv, home=self.home)
            )
        return self.run

    def cell_of_sample(
        self, config: BaseModel | str | None, policy: LoadedPolicy, *, is_shared: bool
    ) -> AbstractAsyncContextManager[Cell]:
        """A cell for one sample; leaving the block destroys it.

        Args:
            config: the sandbox's, as Inspect hands it over; with `policy`, what it means for the
                sample.
            is_shared: nothing of the sample's own is in it: only then it can take a cell that was
                made ahead.
        """
        if self.warm is None or not is_shared:
            return self.source.open_cell(policy, run=self.ensure_run(), home=self.home)
        return self.warm.cell(config, policy)

    def record_end(self, *, interrupted: bool) -> None:
        """Record that the evaluation is over, with what only this process knows of it.

        What follows is judged.
        """
        refusal = self.refusal
        why: dict[str, JsonValue] = (
            {"refusal": _plain(refusal), "refusal_code": refusal.exit_code}
            if refusal is not None
            else {}
        )
        data: dict[str, JsonValue] = {
            "interrupted": interrupted,
            "stopped": self.stopped is not None,
            "errors": [_plain(error) for error in self.breaches],
            "causes": [getattr(error, "cause", "") for error in self.breaches],
            **why,
        }
        self.record(Event(kind=Kind.RUN_EVALUATED, data=data, actor=Actor.HARNESS))

    def close_own_run(self) -> None:
        """Close the run directory if `ensure_run` opened it."""
        if self.own is None:
            return
        own, self.own, self.run = self.own, None, None
        self.directories.clear()
        own.close()

    def breached(self, error: BelljarError) -> None:
        """A probe found a way out: from now on no cell of this session takes work, and the
        evaluation is ended, if its owner gave a way.
        """
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
        """Stop the run, whatever was raised while a hook of Inspect looked at the sample.

        Inspect only logs what a hook raises, and goes on, but for a limit: should the interrupt
        be late, the limit ends the sample before its solver runs or its model is asked.
        """
        from inspect_ai.util import LimitExceededError

        if not isinstance(error, ContainmentBreach):
            what = f"could not be checked: {type(error).__name__}: {error}"
            error = ContainmentBreach(printable(what), where=where)
            self.breached(error)
        await self.await_end()
        raise LimitExceededError("custom", value=1, limit=0, message=error.what) from error

    async def check_running(self) -> None:
        """Raises the breach that stopped this session, if one has; first lets the evaluation's end
        arrive.
        """
        if self.stopped is not None:
            await self.await_end()
            raise ContainmentBreach(
                f"the run is stopped: {self.stopped.what}",
                where=self.stopped.where,
                hint=self.stopped.hint,
            )

    async def end_if_killed(self) -> None:
        """A kill order over the run ends the evaluation as a breach does, and is awaited here.

        Left to fail one by one, its samples would not all be logged: Inspect has no entry for one
        whose own error meets the cancellation for another's.
        """
        from belljar.isolation.hold import killed_error, read_order
        from belljar.store.home import belljar_home

        run = self.ensure_run().run_id
        killed = killed_error(read_order(self.home or belljar_home(), run), where=f"run {run}")
        if killed is not None:
            if self.stopped is None:
                self.breached(killed)
            await self.await_end()

    async def await_end(self) -> None:
        """After a breach: be cancelled here, if the evaluation is being ended; returns at once if
        it is not, or should have been long ago.

        The way from the interrupt to the cancellation is not immediate (Inspect's control server
        takes the signal, closes, and only then passes it on), and Inspect leaves its log unfinished
        when a sample fails in between.
        """
        if self.stop is not None:
            await anyio.sleep(max(0.0, self.stopped_at_s + _STOP_TIMEOUT_S - time.monotonic()))

    def record(self, event: Event) -> None:
        """Record an event of the harness."""
        self.ensure_run().recorder.record(event)


def _plain(error: BelljarError) -> str:
    return f"{error.where}: {error.what}" if error.where else error.what


_given: ContextVar[Session | None] = ContextVar("belljar_session", default=None)
_process = Session()


@contextmanager
def session_scope(session: Session) -> Iterator[Session]:
    """Make `session` the one that providers inside the block use."""
    token = _given.set(session)
    try:
        yield session
    finally:
        _given.reset(token)


def current_session() -> Session:
    """The session of this evaluation: the one given by `session_scope`, else the process's own."""
    return _given.get() or _process
