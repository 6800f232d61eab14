"""What the cells of one evaluation share: the run directory they record into, the operator's policy, and the list of
those that live.

`belljar run` opens a session around Inspect. Under a plain `inspect eval` the provider's first `task_init` opens a run
directory of its own and the last `task_cleanup` closes it, so that there is evidence then too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from belljar.errors import BelljarError
from belljar.events import Actor, Event

if TYPE_CHECKING:
    from belljar.cell import Cell
    from belljar.harness.provider import BelljarSandboxEnvironment
    from belljar.ledger import RunDirectory
    from belljar.policy import LoadedPolicy


class CellSource(Protocol):
    """Where cells and run directories come from: `RealCells`, or a test's."""

    def start_run(
        self, kind: str, argv: list[str], *, home: Path | None, what: str = ""
    ) -> AbstractContextManager[RunDirectory]:
        """A new run directory; leaving the block closes it. `what` names it in lists."""

    async def prepare(self, policy: LoadedPolicy, *, run: RunDirectory, home: Path | None) -> None:
        """Plan and make the template."""

    def open_cell(
        self, policy: LoadedPolicy, *, run: RunDirectory, home: Path | None
    ) -> AbstractAsyncContextManager[Cell]:
        """A fresh cell; leaving the block destroys it."""


class RealCells:
    """Cells of this host."""

    def start_run(
        self, kind: str, argv: list[str], *, home: Path | None, what: str = ""
    ) -> AbstractContextManager[RunDirectory]:
        """A new run directory in the store, with the versions of what takes part."""
        from belljar.host.home import belljar_home
        from belljar.ledger import create_run

        versions = {name: version(name) for name in ("inspect-ai", "anyio", "pydantic")}
        return create_run(home or belljar_home(), kind, argv, what=what, versions=versions)

    async def prepare(self, policy: LoadedPolicy, *, run: RunDirectory, home: Path | None) -> None:
        """Plan on this host and make the template."""
        from belljar.cell import prepare

        await prepare(policy, recorder=run.recorder, home=home)

    def open_cell(
        self, policy: LoadedPolicy, *, run: RunDirectory, home: Path | None
    ) -> AbstractAsyncContextManager[Cell]:
        """A clone of the template."""
        from belljar.cell import open_cell

        return open_cell(policy, run=run, home=home, actor=Actor.HARNESS)


@dataclass
class Session:
    """One evaluation. Mutable, owned by one event loop.

    Attributes:
        run: the run directory; None until the first use.
        forced_policy: the operator's policy (`belljar run --policy`); it beats every other.
        home: the store, None for the default.
        own: holds the run directory open when the provider opened it.
        users: `task_init` calls without their `task_cleanup`.
        live: the cells that stand, by id.
        refusal: the first error of ours that ended a task before it began.
        breaches: errors of destruction; any of them voids the run.
        told_to_end: the SIGTERMs and SIGHUPs that came: then nothing is held for a person to look at.
    """

    run: RunDirectory | None = None
    forced_policy: str = ""
    home: Path | None = None
    source: CellSource = field(default_factory=RealCells)
    own: ExitStack | None = None
    users: int = 0
    live: dict[str, BelljarSandboxEnvironment] = field(default_factory=dict)
    refusal: BelljarError | None = None
    breaches: list[BelljarError] = field(default_factory=list)
    told_to_end: list[int] = field(default_factory=list)

    def ensure_run(self) -> RunDirectory:
        """The run directory; opened now if nobody gave one. Raises `HostError` when it can't be made: without a
        record nothing may run.
        """
        if self.run is None:
            import sys

            self.own = ExitStack()
            self.run = self.own.enter_context(self.source.start_run("inspect", sys.argv, home=self.home))
        return self.run

    def close_own_run(self, outcome: str) -> None:
        """Close the run directory if `ensure_run` opened it."""
        if self.own is None or self.run is None:
            return
        self.run.finish(outcome, exit_code=None)
        own, self.own, self.run = self.own, None, None
        own.close()

    def record(self, event: Event) -> None:
        """Record an event of the harness."""
        self.ensure_run().recorder.record(event)


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
