"""The sandbox provider that Inspect calls.

Thin: each method turns Inspect's words into the cell's, and back.

The signatures and errors are Inspect's contract (`inspect_ai.util.SandboxEnvironment`). `exec` must
keep exactly these eight parameters: Inspect counts them.
"""

from __future__ import annotations

import logging
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

import anyio
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
)
from pydantic import BaseModel
from typing_extensions import override

from belljar.cell.health import may_be_broken
from belljar.compose.document import COMPOSE_NAMES
from belljar.differences import sentences
from belljar.errors import BelljarError, CellError, ContainmentBreach, PolicyError
from belljar.events import Actor, Event, JsonValue, Kind
from belljar.harness import config as configs
from belljar.harness import lifecycle, results
from belljar.harness.adapt import of_active_sample
from belljar.harness.bridge import ModelBridge
from belljar.harness.capacity import cells_at_once, host_cpus_and_memory
from belljar.harness.containment import Containment, bind, tell_transcript
from belljar.harness.door import Door
from belljar.harness.health import Degraded, HealthWatch, bind_degraded
from belljar.harness.identity import SampleIdentity, identify, is_preparing
from belljar.harness.operator import read_operator
from belljar.harness.programs import start_program
from belljar.harness.session import Session, current_session
from belljar.plan.network_radius import announcements
from belljar.policy.network import OWN_CELL
from belljar.probe.run import breach_of
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.cell import Cell
    from belljar.policy import LoadedPolicy
    from belljar.probe.model import ProbeReport

logger = logging.getLogger(__name__)

_POLLING_INTERVAL_S: Final = 0.2
_UNAVAILABLE: Final = "the machine is not running and cannot take commands"
"""What the model may read when its cell is gone: nothing of the host, nothing of the cause."""


class BelljarSandboxEnvironment(SandboxEnvironment):
    """One sample's cell, seen through Inspect's interface."""

    @override
    @classmethod
    def default_concurrency(cls) -> int | None:
        """As many cells as this host carries if each uses all that the default policy allows."""
        cpus, available_bytes = host_cpus_and_memory()
        try:
            resources = configs.load(None, **current_session().operator_options).policy.resources
        except BelljarError:  # `task_init` refuses it, as Inspect shows errors of set-up
            return None
        return cells_at_once(
            cpus=cpus,
            available_bytes=available_bytes,
            memory_bytes=resources.memory_bytes,
            disk_bytes=resources.disk_bytes,
        )

    @override
    @classmethod
    def config_files(cls) -> list[str]:
        """A policy beside the task is found by these names, else a compose file, else a Dockerfile:
        as Docker's."""
        return [*configs.POLICY_NAMES, *COMPOSE_NAMES, "Dockerfile"]

    @override
    @classmethod
    def is_docker_compatible(cls) -> bool:
        """Yes: compose files and Dockerfiles are converted; what a cell can't keep of them is
        refused before anything runs."""
        return True

    @override
    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """A configuration from an Inspect log."""
        return configs.BelljarConfig.model_validate(config)

    @override
    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        """Once per configuration: check the policy and this host, and make the template.

        Refuses here what would fail later.
        """
        session = current_session()
        lifecycle.enter(session)
        session.directories.append(Path.cwd())  # the task's, here
        try:
            operator = read_operator(**session.operator_options)
            ours = configs.settled(configs.as_config(config), None)
            loaded, differences = configs.within(ours, operator)
            lifecycle.tell(session, () if session.is_previewed else sentences(differences))
            lifecycle.tell(session, announcements(loaded))
            if ours.builds and not session.is_previewed:
                # with those of earlier configurations: another build of the same name is refused
                session.builds.append(ours.builds)
                images = set(loaded.policy.images)
                build = partial(session.source.build_images, images=images, home=session.home)
                builds = tuple(session.builds)
                await anyio.to_thread.run_sync(build, builds, abandon_on_cancel=True)
            await session.source.prepare(loaded, run=session.ensure_run(), home=session.home)
        except BelljarError as error:
            session.refusal = session.refusal or error
            await lifecycle.leave(session)
            raise lifecycle.refused(error) from error
        except BaseException:
            with anyio.CancelScope(shield=True):
                await lifecycle.leave(session)
            raise

    @override
    @classmethod
    async def task_init_environment(
        cls, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, str]:
        """The sample's metadata by which its images and cells differ from other samples': for each
        such set `task_init` is called once.
        """
        try:
            return configs.shaping(configs.as_config(config), metadata)
        except PolicyError:  # `task_init` refuses it, as Inspect shows errors of set-up
            return {}

    @override
    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Open the sample's cell, and with it the others of its range: fresh, recorded, and probed
        before anything of the sample is in them.

        Raises `ContainmentBreach` when a probe found a way out: the sample does not run, and the
        run is stopped.
        """
        session = current_session()
        await session.check_running()
        own = of_active_sample(config, session.directories)
        sample = configs.sample_policy(own, metadata, **session.operator_options)
        if own is not config:  # `task_init` has not seen it
            lifecycle.tell(session, sentences(sample.differences))
            await session.source.prepare(sample.policy, run=session.ensure_run(), home=session.home)
        lifecycle.tell(session, announcements(sample.policy))
        environment = await cls._open(session, own, sample, identify(task_name, metadata))
        try:
            await environment.probe_start()
            await start_program(environment.cell, sample.service, sample.program)
        except BaseException:
            await environment.close(outcome="stopped")
            raise
        others = {name: environment.beside(cell) for name, cell in environment.cell.others.items()}
        return {sample.service or OWN_CELL: environment, **others}

    @classmethod
    async def _open(
        cls,
        session: Session,
        config: SandboxEnvironmentConfigType | None,
        sample: configs.SamplePolicy,
        who: SampleIdentity,
    ) -> Self:
        """Open the sample's cells and record that the sample started in each; nothing runs yet."""
        of_images = session.source.image_differences(sample.policy, home=session.home)
        differences = (*sample.differences, *of_images)
        data: dict[str, JsonValue] = {
            **who.started(sample.policy, differences),
            "preparing": True,
        }
        stack = AsyncExitStack()
        try:
            cell = await stack.enter_async_context(
                session.cell_of_sample(config, sample.policy, is_shared=sample.is_shared)
            )
            environment = cls(cell, session=session, who=who, stack=stack, policy=sample.policy)
            environment.containment.differences = differences
            stack.push_async_callback(environment._forget)
            if cell.questions is not None:
                bridge = ModelBridge()
                cell.questions.answerer, cell.questions.on_close = bridge, bridge.close
            for each in (cell, *cell.others.values()):
                started = Event(
                    kind=Kind.SAMPLE_STARTED, data=data, cell_id=each.id, actor=Actor.HARNESS
                )
                session.record(started)
                each.describe(sample=str(who.sample), epoch=who.epoch)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await stack.aclose()
            if isinstance(error, ContainmentBreach):
                session.breached(error)
            raise
        session.live[cell.id] = environment
        return environment

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Destroy the sample's cell, with proof, whatever happened to the sample."""
        outcome = "interrupted" if interrupted else "completed"
        for environment in environments.values():
            ours = environment.as_type(BelljarSandboxEnvironment)
            if ours.is_own:  # what is beside it ends with it
                await ours.close(outcome=outcome)

    @override
    @classmethod
    async def task_cleanup(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, cleanup: bool
    ) -> None:
        """Destroy what is left; with `--no-sandbox-cleanup` keep it first for as long as someone
        wants to look.
        """
        session = current_session()
        try:
            if session.users == 1 and session.live and not cleanup and not session.told_to_end:
                await lifecycle.hold(session)
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await lifecycle.close_all(
                        session, outcome="completed" if not cleanup else "interrupted"
                    )
                finally:
                    await lifecycle.leave(session)

    @override
    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """`inspect sandbox cleanup belljar [ID]`: release held cells and remove what crashed owners
        left.
        """
        await lifecycle.clean(id)

    def __init__(
        self,
        cell: Cell,
        *,
        session: Session,
        who: SampleIdentity,
        stack: AsyncExitStack,
        policy: LoadedPolicy,
    ) -> None:
        super().__init__()
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
        self._beside: list[BelljarSandboxEnvironment] = []
        self._beginning = anyio.Lock()
        self.door = Door.for_cell(cell, home=session.home)

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command in the cell.

        A command that timed out is never run again, whatever `timeout_retry` says: it ran, and may
        have had effects. Retries are for a provider whose transport hangs; this one's can't without
        ending the cell. `concurrency` throttles local subprocesses: there are none.
        """
        await self._before_operation()
        limit_bytes = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        try:
            output = await self.cell.exec(
                cmd,
                input=input.encode() if isinstance(input, str) else input,
                env=env or {},
                cwd=cwd or "",
                user=user,
                timeout_s=timeout,
                max_output_bytes=limit_bytes,
                keep="tail",
            )
        except CellError as error:
            raise await self._unavailable(error) from None
        if may_be_broken(output):
            await self.health.look("call")
        return results.to_result(
            output,
            cmd,
            limit_bytes=limit_bytes,
            timeout_s=timeout or self.cell.plan.limits.exec_timeout_s,
        )

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write a file as the default user; parents are made, the target changes whole or not at
        all.
        """
        await self._before_operation()
        try:
            await self.cell.write_file(
                file, contents.encode() if isinstance(contents, str) else contents
            )
        except CellError as error:
            raise await self._unavailable(error) from None
        except IsADirectoryError:
            raise
        except OSError:
            await self.health.look("call")
            raise

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...  # noqa: FBT002 - Inspect's signature

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Read a regular file as the default user."""
        from belljar.channel import FileTooLarge

        await self._before_operation()
        try:
            contents = await self.cell.read_file(
                file, max_bytes=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
            )
        except FileTooLarge:
            raise OutputLimitExceededError(
                limit_str=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, truncated_output=None
            ) from None
        except CellError as error:
            raise await self._unavailable(error) from None
        except (FileNotFoundError, IsADirectoryError):
            raise
        except OSError:
            await self.health.look("call")
            raise
        return contents.decode("utf-8") if text else contents

    @override
    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """A command that opens a terminal in this cell, from another shell of the same user on this
        host, as long as the cell lives.
        """
        if self._closed:
            raise ConnectionError(f"cell {self.cell.id} is gone")
        self.door.open_in_sample(self.cell)
        return SandboxConnection(
            type="belljar", command=login_command(self.cell.id, user), container=self.cell.id
        )

    @override
    def default_polling_interval(self) -> float:
        """Seconds between two looks of Inspect's polling services."""
        return _POLLING_INTERVAL_S

    async def _before_operation(self) -> None:
        """Refuse after a breach; record once that the sample's own work has begun; let terminals
        in."""
        await self._session.check_running()
        if not self._running and not is_preparing():
            await self._begin_running()
        self.door.open_in_sample(self.cell)

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

    def beside(self, cell: Cell) -> BelljarSandboxEnvironment:
        """Another cell of this range through Inspect's interface.

        It is made, probed and destroyed with this one.
        """
        environment = type(self)(
            cell, session=self._session, who=self.who, stack=AsyncExitStack(), policy=self.policy
        )
        environment.is_own = False
        self._beside.append(environment)
        self._stack.push_async_callback(environment.door.close)
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
        await self.door.close()

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


def login_command(cell_id: str, user: str | None) -> str:
    """What a person types to get a terminal in a cell."""
    script = Path(sys.executable).with_name("belljar")
    launcher = [str(script)] if script.exists() else [sys.executable, "-m", "belljar"]
    return shlex.join([*launcher, "attach", cell_id, *(["--user", user] if user else [])])
