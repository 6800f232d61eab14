"""One sample's cell from its first probe to its destruction, with what is recorded of both."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import anyio
from inspect_ai.util import (
    SandboxUnavailableError,
)

from belljar.errors import BelljarError, CellError
from belljar.events import Actor, Event, Kind
from belljar.harness.attach_socket import AttachSocket
from belljar.harness.containment import Containment, bind, tell_transcript
from belljar.harness.health import Degraded, HealthWatch, bind_degraded
from belljar.harness.identity import SampleIdentity, is_preparing
from belljar.harness.session import Session
from belljar.probe.run import breach_of
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.cell import Cell
    from belljar.policy import LoadedPolicy
    from belljar.probe.model import ProbeReport

logger = logging.getLogger(__name__)

_UNAVAILABLE: Final = "the machine is not running and cannot take commands"
"""What the model may read when its cell is gone: nothing of the host, nothing of the cause."""


class SampleCell:
    """The part of the sandbox environment that Inspect does not call: probes, health, the end."""

    def __init__(
        self,
        cell: Cell,
        *,
        session: Session,
        who: SampleIdentity,
        stack: AsyncExitStack,
        policy: LoadedPolicy,
    ) -> None:
        self.cell = cell
        self.who = who
        self.policy = policy
        self._session = session
        self._stack = stack
        self._closed = False
        self._running = False
        self.is_own = True
        self.containment = Containment()
        self.health = HealthWatch(cell, session.record)
        self._beside: list[SampleCell] = []
        self._beginning = anyio.Lock()
        self.attach_socket = AttachSocket.for_cell(cell, home=session.home)

    async def _before_operation(self) -> None:
        """Refuse after a breach; record once that the sample's own work has begun; let terminals
        in."""
        await self._session.check_running()
        if not self._running and not is_preparing():
            await self._begin_running()
        self.attach_socket.open_in_sample(self.cell)

    async def _begin_running(self) -> None:
        async with self._beginning:  # no operation before the baseline
            if self._running:
                return
            data = self.who.data()
            self._session.record(
                Event(
                    kind=Kind.SAMPLE_RUNNING, data=data, cell_id=self.cell.id, actor=Actor.HARNESS
                )
            )
            await self.health.take_baseline()
            self._running = True

    async def probe_start(self) -> None:
        """Probe the fresh cell (the others of its range were, before their programs ran).

        Raises `ContainmentBreach`.
        """
        self.containment.start = report = await self._probe(self.cell, "start")
        tell_transcript("start", report, self._session.ensure_run().run_id)
        await self._stop_if_breached(report, self.cell)

    async def _probe_end(self) -> ProbeReport:
        """Every cell of the range; the worst report stands for all (each is on record)."""
        reports = [
            await self._probe(cell, "end") for cell in (self.cell, *self.cell.others.values())
        ]
        return max(reports, key=lambda report: report.verdict.badness)

    def beside(self, cell: Cell) -> Self:
        """Another cell of this range through Inspect's interface.

        It is made, probed and destroyed with this one.
        """
        environment = type(self)(
            cell, session=self._session, who=self.who, stack=AsyncExitStack(), policy=self.policy
        )
        environment.is_own = False
        self._beside.append(environment)
        self._stack.push_async_callback(environment.attach_socket.close)
        return environment

    async def _probe(self, cell: Cell, phase: str) -> ProbeReport:
        return await self._session.source.probe(cell, run=self._session.ensure_run(), phase=phase)

    async def _stop_if_breached(
        self, report: ProbeReport | None, cell: Cell, *, cancelled: bool = False
    ) -> None:
        """`cancelled`: the sample was, and Inspect shields what is done for it now: the breach is
        on record, but nothing more would end it.
        """
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
        """The run directory that records this cell. For scorers that judge by the record."""
        return self._session.ensure_run().path

    @asynccontextmanager
    async def another_cell(self) -> AsyncIterator[Cell]:
        """A fresh cell of the same policy, destroyed when the block is left; on record as a second
        cell of this sample.

        For scorers: it is what the next sample would get.
        """
        session = self._session
        async with session.source.open_cell(
            self.policy, run=session.ensure_run(), home=session.home
        ) as cell:
            started = Event(
                kind=Kind.SAMPLE_STARTED,
                data=self.who.started(self.policy),
                cell_id=cell.id,
                actor=Actor.HARNESS,
            )
            session.record(started)
            await self._stop_if_breached(await self._probe(cell, "start"), cell)
            try:
                yield cell
            finally:
                with anyio.CancelScope(shield=True):
                    last = await self._probe(cell, "end")
            await self._stop_if_breached(last, cell)

    async def close(self, *, outcome: str) -> None:
        """Probe the cell once more, destroy it, and record how its sample ended.

        Can't be cancelled; a second call does nothing.

        Raises `ContainmentBreach` when a probe found a way out now (not for an interrupted sample
        of an evaluation that is being ended), or the destruction something left.
        """
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True):
            try:
                if outcome == "completed":  # an interrupted sample has no score to be doubted
                    for environment in (self, *self._beside):  # the probes end all that runs there
                        await environment.health.look("end")
                self.containment.end = report = await self._probe_end()
                tell_transcript("end", report, self._session.ensure_run().run_id)
            finally:
                await self._end(outcome)
        await self._stop_if_breached(
            self.containment.end, self.cell, cancelled=outcome == "interrupted"
        )

    async def _end(self, outcome: str) -> None:
        try:
            await self._stack.aclose()
            self.containment.clean = True
        except BelljarError as error:
            self.containment.clean = False
            self._session.breaches.append(error)
            raise
        finally:
            self.containment.run_id = self._session.ensure_run().run_id
            data = {**self.who.data(), "outcome": outcome, "containment": self.containment.data()}
            finished = Event(
                kind=Kind.SAMPLE_FINISHED, data=data, cell_id=self.cell.id, actor=Actor.HARNESS
            )
            self._session.record(finished)
            bind(self.containment, self.who)
            bind_degraded(self._degraded(), self.who)

    def _degraded(self) -> list[Degraded]:
        found = (environment.health.degraded for environment in (self, *self._beside))
        return [each for each in found if each is not None]

    async def _forget(self) -> None:
        self._session.live.pop(self.cell.id, None)
        await self.attach_socket.close()

    async def _unavailable(self, error: CellError) -> SandboxUnavailableError:
        """The cell is gone.

        The operator reads why in the log and the ledger; the model reads only that.
        """
        logger.warning(
            "cell %s of sample %s: %s",
            self.cell.id,
            printable(self.who.sample),
            printable(str(error)),
        )
        await self._session.end_if_killed()
        await self.health.look("call")
        return SandboxUnavailableError(_UNAVAILABLE)
