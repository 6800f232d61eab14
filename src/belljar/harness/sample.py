"""One sample's cell: its operations, probes and end in Inspect's log."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

import anyio
import anyio.to_thread
from inspect_ai.log import transcript
from inspect_ai.log._samples import sample_active
from inspect_ai.solver._task_state import sample_state
from inspect_ai.util import SandboxUnavailableError

from belljar.cell.health import HealthWatch
from belljar.dataclass import dataclass, field
from belljar.differences import Difference, sentences
from belljar.errors import BelljarError, CellError
from belljar.events import Actor, Event, JsonValue, Kind
from belljar.harness.attach import AttachSocket
from belljar.harness.evidence import CONTAINMENT_KEY, DEGRADED_KEY, SOURCE
from belljar.policy.loaded import LoadedPolicy
from belljar.probe.model import ProbeReport, Verdict, worst
from belljar.probe.run import breach_of
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.cell.range import Range
    from belljar.harness.session import Session

logger = logging.getLogger(__name__)
_T = TypeVar("_T")
# Of a sample's files for a revert, larger ones wait on disk: cells have the memory.
_MAX_KEPT_BYTES: Final = 1 << 20
# The model learns nothing of host or cause.
_UNAVAILABLE: Final = "the machine is not running and cannot take commands"


class SampleCell:
    """The part of a sandbox that Inspect doesn't call."""

    def __init__(
        self,
        opened: Range,
        cell: Cell,
        session: Session,
        identity: SampleIdentity,
        stack: AsyncExitStack,
        policy: LoadedPolicy,
    ) -> None:
        super().__init__()  # Inspect keeps attributes of its own
        self.range, self.cell, self.identity, self.policy = opened, cell, identity, policy
        self._session, self._stack = session, stack
        self._closed = self._running = False
        self.is_own = True
        self.containment = Containment(machines=[cell.id])
        self.health = HealthWatch(cell, session.record)
        self._past_health: list[HealthWatch] = []
        self._preparation: list[tuple[Callable[[Cell], Awaitable[object]], int]] = []
        self._beside: list[SampleCell] = []
        self._beginning = anyio.Lock()
        self.attach_socket = AttachSocket(cell, home=session.home)

    @asynccontextmanager
    async def _operation(self, *harmless: type[Exception]) -> AsyncIterator[None]:
        """`harmless`: errors that say nothing of the cell's health."""
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
        started = self.identity.started(self.policy, self.containment.differences)
        self._record(Kind.SAMPLE_STARTED, {**started, "preparing": True}, cell)
        cell.describe(sample=str(self.identity.sample), epoch=self.identity.epoch)

    async def _probe(self, opened: Range, cell: Cell, phase: str) -> ProbeReport:
        run, router = self._session.ensure_run(), opened.routers.get(cell.id)
        return await self._session.source.probe(cell, router, run=run, phase=phase)

    async def _probe_noted(self, opened: Range, phase: Literal["start", "end"]) -> ProbeReport:
        """Probe the range's cells; log and return the worst report."""
        cells = [opened.cell] if phase == "start" else opened.cells.values()
        reports = {cell.id: await self._probe(opened, cell, phase) for cell in cells}
        report = max(reports.values(), key=lambda each: each.verdict.badness)
        (self.containment.starts if phase == "start" else self.containment.ends).update(reports)
        noted: dict[str, Any] = {"phase": phase, "run_id": self._session.ensure_run().run_id}
        transcript().info(noted | _brief(report), source=SOURCE)
        return report

    async def _act(self, act: Callable[[Cell], Awaitable[_T]]) -> _T:
        """Act in the cell. Preparation is repeated after a revert."""
        result = await act(self.cell)
        if self._may_repeat():
            self._preparation.append((act, getattr(result, "returncode", 0)))
        return result

    def _may_repeat(self) -> bool:
        # No range with a network, or with other cells, can be reverted
        return self.range.network is None and not self.range.targets and is_preparing()

    async def _kept(self, content: bytes) -> Callable[[], bytes]:
        """Keep a file for each repetition; a large one on disk."""
        if len(content) > _MAX_KEPT_BYTES and self._may_repeat():
            with suppress(OSError):  # a full disk: memory keeps it
                spool = self._stack.enter_context(TemporaryFile(buffering=0))  # noqa: SIM115
                if await anyio.to_thread.run_sync(spool.write, content) == len(content):
                    size = len(content)
                    return lambda: os.pread(spool.fileno(), size, 0)
        return lambda: content

    def beside(self, cell: Cell) -> Self:
        own = (self._session, self.identity, AsyncExitStack(), self.policy)
        environment = type(self)(self.range, cell, *own)
        environment.is_own = False
        self._beside.append(environment)
        self._stack.push_async_callback(environment.attach_socket.close)
        return environment

    async def _stop_if_breached(
        self, report: ProbeReport | None, cell: Cell, *, cancelled: bool = False
    ) -> None:
        # `cancelled`: Inspect shields this, and waiting for the evaluation's end would be in vain.
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
        """Return this cell's run directory, for scorers."""
        return self._session.ensure_run().path

    @asynccontextmanager
    async def another_cell(self) -> AsyncIterator[Cell]:
        """Open a fresh cell of this sample, for scorers."""
        session = self._session
        async with session.source.open_range(self.policy, session.ensure_run()) as opened:
            cell = opened.cell
            self._record(Kind.SAMPLE_STARTED, self.identity.started(self.policy), cell)
            await self._stop_if_breached(await self._probe(opened, cell, "start"), cell)
            try:
                yield cell
            finally:
                # Also for a cancelled scorer: a cell without a last probe proves nothing.
                with anyio.CancelScope(shield=True):
                    last = await self._probe(opened, cell, "end")
                await self._stop_if_breached(last, cell)  # whatever the scorer raised

    async def close(self, *, outcome: str) -> None:
        """Probe the cell once more, destroy it, record the end. Shielded; idempotent.

        Raises `ContainmentBreach` when a probe found a way out (not for an interrupted sample of an
        evaluation that is being ended), or something was left.
        """
        if self._closed:
            return
        self._closed = True  # before the first await: a second call meanwhile returns at once
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
            watches = (*self._past_health, *(each.health for each in (self, *self._beside)))
            bind_end(self.containment, watches, self.identity)

    async def _forget(self) -> None:
        self._session.live.remove(self)
        await self.attach_socket.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleIdentity:
    sample: str
    epoch: int
    task: str
    uuid: str = ""
    eval_id: str = ""
    log: str = ""

    def started(
        self, policy: LoadedPolicy, differences: Iterable[Difference] = ()
    ) -> dict[str, JsonValue]:
        return {
            **self.data(),
            "log": self.log,
            "host_tools": list(policy.policy.host_tools_rule.allow),
            "differences": [each.data() for each in differences],
        }

    def data(self) -> dict[str, JsonValue]:
        return {name: value for name, value in asdict(self).items() if name != "log"}


def identify(task_name: str, metadata: Mapping[str, object]) -> SampleIdentity:
    active = sample_active()
    named = str(metadata.get("__sample_id__", ""))
    if active is None:
        return SampleIdentity(sample=named or "-", epoch=1, task=task_name)
    return SampleIdentity(
        sample=named or str(active.sample.id),
        epoch=active.epoch,
        task=active.task,
        uuid=active.sample_uuid,
        eval_id=active.eval_id,
        # Path would resolve no `..`
        log=log if "://" in (log := active.log_location) else os.path.abspath(log),  # noqa: PTH100
    )


def is_preparing() -> bool:
    """Return whether Inspect prepares this sample, and logs no end."""
    active = sample_active()
    return active is not None and active.started is None


# What is missing is evidence that is missing: void, never contained.
_NOT_PROBED: Final = ProbeReport(
    verdict=Verdict.VOID, findings=(), which="", duration_ms=0, problem="it was not probed"
)
# Key of each score's metadata. Not `containment`: with that a *scorer* makes a verdict worse.
CELL_VERDICT_KEY: Final = "containment_cell_verdict"


@dataclass(slots=True, kw_only=True)
class Containment:
    """What is known of a sample's containment so far.

    `machines`: the sample's cells, one after another. `starts`, `ends`: the probes of each, and at
    the end of those beside it. `clean`: None until checked.
    """

    run_id: str = ""
    machines: list[str] = field(default_factory=list)
    starts: dict[str, ProbeReport] = field(default_factory=dict)
    ends: dict[str, ProbeReport] = field(default_factory=dict)
    clean: bool | None = None
    differences: tuple[Difference, ...] = ()

    @property
    def cell_verdict(self) -> Verdict:
        """Return the worst of probes and destruction; what is missing is void."""
        ends = (self._worst(reports).verdict for reports in (self.starts, self.ends))
        # A destruction that was not checked proves nothing.
        return worst([*ends, Verdict.CONTAINED if self.clean else Verdict.VOID])

    def _worst(self, reports: Mapping[str, ProbeReport]) -> ProbeReport:
        """Return the worst report; a machine without one is void."""
        missing = [_NOT_PROBED for cell in self.machines if cell not in reports]
        return max((*missing, *reports.values()), key=lambda each: each.verdict.badness)

    def data(self) -> dict[str, JsonValue]:
        return {
            "run_id": self.run_id,
            "cell_verdict": self.cell_verdict.value,
            "start": _brief(self._worst(self.starts)),
            "end": _brief(self._worst(self.ends)),
            "destroyed": self.clean is True,
        }


def _brief(report: ProbeReport) -> dict[str, JsonValue]:
    breaches: list[JsonValue] = [
        f"{each.name}: {each.seen}" for each in report.of(Verdict.BREACHED)
    ]
    return {
        "verdict": report.verdict.value,
        "probes": len(report.findings),
        "duration_ms": round(report.duration_ms, 3),
        "problem": report.problem,
        "breaches": breaches,
    }


def bind_end(
    containment: Containment, watches: Iterable[HealthWatch], identity: SampleIdentity
) -> None:
    """Inspect makes the logged sample from this state after the clean-up."""
    state = sample_state()
    if state is None or not identity.uuid or state.uuid != identity.uuid:
        return
    data: dict[str, Any] = containment.data()
    data["differences"] = list(sentences(containment.differences))
    state.metadata[CONTAINMENT_KEY] = data
    of_scores = {CELL_VERDICT_KEY: data["cell_verdict"]}
    if found := [watch.degraded for watch in watches if watch.degraded]:
        state.metadata[DEGRADED_KEY] = found
        of_scores[DEGRADED_KEY] = ", ".join(dict.fromkeys(str(each["cause"]) for each in found))
    for score in (state.scores or {}).values():
        score.metadata = {**(score.metadata or {}), **of_scores}
