"""The sandbox provider that Inspect calls: each method maps Inspect's terms to the cell's.

The signatures and errors are Inspect's contract. `exec` must keep exactly these eight parameters:
Inspect counts them.
"""

from __future__ import annotations

import errno
import os
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, overload

import anyio
from inspect_ai.model._model import active_model
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
)
from pydantic import BaseModel
from typing_extensions import override

from belljar.cell.health import HealthWatch, may_be_broken
from belljar.cell.range import Range, RevertibleCell
from belljar.cell.targets import serve, words_to_run
from belljar.channel import ExecOutput, FileTooLargeError
from belljar.compose.document import COMPOSE_NAMES
from belljar.descriptors import NO_ROOM, os_error_below
from belljar.differences import sentences
from belljar.errors import BelljarError, CellError, ContainmentBreach, first_of
from belljar.harness import config as configs
from belljar.harness.attach import AttachSocket, login_command, release_cells
from belljar.harness.bridge import ModelBridge
from belljar.harness.operator import SamplePolicy, sample_policy, within
from belljar.harness.sample import SampleCell, SampleIdentity, identify
from belljar.harness.session import Session, as_prerequisite_error, current_session, plain
from belljar.host.cgroups import cell_bytes, free_bytes
from belljar.isolation.reap import reap
from belljar.plan.explain import announcements
from belljar.plan.network import StandInPlan
from belljar.policy.guarding import OWN_CELL
from belljar.policy.limits import Tier, demanded_tier
from belljar.policy.loaded import LoadedPolicy
from belljar.policy.reference import is_idle
from belljar.policy.stand_ins import ServiceProgram
from belljar.probe.run import breach_of
from belljar.units import format_size, printable
from belljar.waiting import print_status

if TYPE_CHECKING:
    from belljar.cell.cell import Cell, Snapshot

# A shell's exit codes, which Inspect's tools and a model know.
NOT_FOUND: Final = 127
NOT_RUN: Final = 126


def decode_tail(data: bytes, limit_bytes: int) -> str:
    """Cut what *encodes* to more: a broken byte becomes three."""
    text = data[-limit_bytes:].decode("utf-8", "replace") if limit_bytes else ""
    encoded = text.encode()
    return text if len(encoded) <= limit_bytes else encoded[-limit_bytes:].decode("utf-8", "ignore")


def to_result(
    output: ExecOutput, cmd: list[str], *, limit_bytes: int, timeout_s: float | None
) -> ExecResult[str]:
    """Convert to Inspect's terms; over its bound the tail is kept, as by its Docker provider.

    Raises `TimeoutError` (`truncated_output` has the output), `PermissionError`, and
    `OutputLimitExceededError` over the *policy's* output bound.
    """
    stdout = decode_tail(output.stdout, limit_bytes)
    stderr = decode_tail(output.stderr, limit_bytes)
    if output.timed_out:
        after = f" after {timeout_s:g} seconds" if timeout_s is not None else ""
        error = TimeoutError(f"Command timed out{after}")
        if stdout + stderr:
            # Inspect's proxy reads this attribute.
            error.truncated_output = stdout + stderr  # type: ignore[attr-defined]
        raise error
    if output.not_started_errno is not None:
        return not_started(output, output.not_started_errno, cmd)
    if output.output_cap_reached:
        raise OutputLimitExceededError(
            limit_str=format_size(limit_bytes), truncated_output=stdout + stderr
        )
    code = output.returncode
    status = code if code >= 0 else 128 - code  # as shells report a death by signal
    return ExecResult(success=status == 0, returncode=status, stdout=stdout, stderr=stderr)


def not_started(output: ExecOutput, code: int, cmd: list[str]) -> ExecResult[str]:
    """Return `docker exec`'s status. Raises `PermissionError`."""
    stage, why, status = output.stage, os.strerror(code), NOT_RUN
    is_missing = code in {errno.ENOENT, errno.ENOTDIR}
    name = cmd[0] if cmd else ""
    if stage in {"user", "cwd"} and is_missing:
        status = NOT_FOUND if stage == "cwd" and code == errno.ENOENT else NOT_RUN
        text = printable(output.why_not_started)
    elif code in {errno.EACCES, errno.EPERM}:
        if stage == "cwd":
            raise PermissionError(code, f"{why}: {printable(output.why_not_started)}")
        raise PermissionError(code, why, name if stage == "exec" and cmd else stage)
    elif stage == "exec" and is_missing:
        status, text = NOT_FOUND, f"{name}: not found"
    else:
        text = f"{name}: {why}"
    return ExecResult(success=False, returncode=status, stdout="", stderr=f"{text}\n")


async def start_program(cell: Cell, service: str, program: ServiceProgram | None) -> None:
    """Start the service's program behind its entrypoint, and wait until ready. Raises `CellError`.

    Ready: healthy where there is a check; else `SETTLE_S` of running, or exit status 0. `program`:
    None for the image's.
    """
    settings = {} if program is None else program.model_dump(mode="json", exclude_none=True)
    plan = StandInPlan(id=service, kind="cell", names=(), ports=(), settings=settings)
    is_needed = settings.get("health") or settings.get("directories")
    if is_needed or not is_idle(words_to_run(settings, cell)):
        await serve(cell, plan)


class BelljarSandboxEnvironment(SampleCell, SandboxEnvironment):
    @override
    @classmethod
    def default_concurrency(cls) -> int | None:
        """Return twice the processors, if memory holds so many full cells."""
        try:
            resources = current_session().default_policy().resources
        except BelljarError:  # `task_init` refuses it, as Inspect shows errors of set-up
            return None
        return max(1, min(2 * len(os.sched_getaffinity(0)), free_bytes() // cell_bytes(resources)))

    @override
    @classmethod
    def config_files(cls) -> list[str]:
        return [*configs.POLICY_NAMES, *COMPOSE_NAMES, "Dockerfile"]

    @override
    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return configs.of_log(config)

    @override
    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        import belljar.harness.model_boundary  # noqa: F401 - its hook looks at what models are sent

        session = current_session()
        try:
            session.enter()
            session.directories.append(Path.cwd())  # the task's, here
            ours, operator = configs.as_config(config), session.operator
            if ours.compose is None:  # else it needs a sample's metadata
                await cls._prepare(session, within(ours, operator))
        except BelljarError as error:
            session.refusal = session.refusal or error
            await session.leave()
            raise as_prerequisite_error(error) from error
        except BaseException:
            with anyio.CancelScope(shield=True):
                await session.leave()
            raise

    @classmethod
    async def _prepare(cls, session: Session, made: SamplePolicy) -> None:
        loaded, builds = made.policy, made.asked.builds
        session.show_once(() if session.is_previewed else sentences(made.differences))
        if builds and not session.is_previewed:
            session.builds += builds  # another build of the same name is refused
            build = partial(session.source.build_images, images=set(loaded.policy.images))
            known = tuple(session.builds)
            await anyio.to_thread.run_sync(build, known, abandon_on_cancel=True)
        await session.source.prepare(loaded, session.ensure_run())

    @override
    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """Raises `ContainmentBreach` when a probe found a way out."""
        session = current_session()
        await session.check_running()
        own = configs.of_active_sample(config, session.directories)
        ours = configs.as_config(own)
        sample = sample_policy(ours, metadata, session.operator)
        if own is not config or ours.compose is not None:  # `task_init` has not seen it
            await cls._prepare(session, sample)
        session.show_once(announcements(sample.policy))
        policy, asked = sample.policy.policy, sample.asked
        session.models.need(demanded_tier(policy.risk, policy.tier))
        model = active_model()
        served = getattr(model.api, "policy", None) if model is not None else None
        if isinstance(served, LoadedPolicy) and served.weights is not None:
            await session.model_cell(served)  # before the task's first sample
        environment = await cls._open(session, sample, identify(task_name, metadata))
        try:
            session.models.need(Tier(environment.cell.tier))
            # Other cells of its range already were.
            report = await environment._probe_noted(environment.range, "start")
            await environment._stop_if_breached(report, environment.cell)
            await environment._act(lambda cell: start_program(cell, asked.service, asked.program))
            targets = environment.range.targets
            others = {name: environment.beside(cell) for name, cell in targets.items()}
        except BaseException:
            await environment.close(outcome="stopped")
            raise
        return {asked.service or OWN_CELL: environment, **others}

    @classmethod
    async def _open(cls, session: Session, sample: SamplePolicy, identity: SampleIdentity) -> Self:
        of_images = session.source.image_differences(sample.policy)
        stack = AsyncExitStack()
        try:
            opening = session.source.open_range(sample.policy, session.ensure_run())
            opened = await stack.enter_async_context(opening)
            environment = cls(opened, opened.cell, session, identity, stack, sample.policy)
            environment.containment.differences = (*sample.differences, *of_images)
            session.live.append(environment)
            stack.push_async_callback(environment._forget)
            if (requests := opened.model_requests) is not None:
                bridge = ModelBridge()
                requests.handler, requests.on_close = bridge, bridge.close
            for each in opened.cells.values():
                environment._record_start(each)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await stack.aclose()
            if (breach := first_of(error, ContainmentBreach)) is not None:
                session.breached(breach)
            if os_error_below(error, NO_ROOM) is not None and isinstance(error, BelljarError):
                session.failure, session.failure_code = plain(error), CellError.exit_code
            raise
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
        session = current_session()
        try:
            is_last = session.users == 1 and bool(session.live)
            if is_last and not cleanup and not session.termination_signals:
                await session.keep_cells()
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await session.close_all(outcome="completed" if not cleanup else "interrupted")
                finally:
                    await session.leave()

    @override
    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        for name in await anyio.to_thread.run_sync(release_cells, id):
            print_status(f"belljar: {name} released; its owner destroys it")
        for reaped in await reap(None, cell_id=id):
            print_status(f"belljar: {printable(str(reaped))}")

    async def snapshot(self) -> Snapshot:
        """See `Cell.snapshot`. Raises `SandboxUnavailableError` for `CellError`."""
        async with self._operation():
            return await self.cell.snapshot()

    async def revert(self, *, verify: bool | None = None, to: Snapshot | None = None) -> None:
        """See `Cell.revert`. Raises `SandboxUnavailableError` for `CellError`.

        The new machine is probed, and without `to` prepared as Inspect prepared the first: the
        service's program, the sample's files, its set-up.
        """
        cell = self.cell
        if not isinstance(cell, RevertibleCell):
            await cell.revert(to=to)  # refuses by name
            return

        async def on_ready(opened: Range) -> None:
            new = opened.cell
            self.containment.machines.append(new.id)
            self._record_start(new)
            try:
                await self._stop_if_breached(await self._probe_noted(opened, "start"), new)
                for act, returncode in self._preparation if to is None else ():
                    if getattr(await act(new), "returncode", 0) != returncode:
                        raise CellError("the sample's set-up ended differently in the new machine")
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await on_end(opened)
                raise

        async def on_end(opened: Range) -> None:
            if self.attach_socket.path.name == opened.cell.id:  # else it would count as left
                await self.attach_socket.close()
            report = await self._probe_noted(opened, "end")
            if (breach := breach_of(report, opened.cell.id)) is not None:
                self._session.breached(breach)

        async with self._operation():
            await self.health.look("call")
            try:
                await cell.machines.revert(verify=verify, to=to, on_ready=on_ready, on_end=on_end)
            except ContainmentBreach as breach:
                if breach not in self._session.breaches:  # a probe may have reported it
                    self._session.breached(breach)
                raise
        if self._closed:  # the sample ended meanwhile
            return
        self._past_health.append(self.health)
        self.health, self._running = HealthWatch(cell, self._session.record), False
        await self.attach_socket.close()
        self.attach_socket = AttachSocket(cell, home=self._session.home)

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
        """A timed-out command is never run again: it had effects."""
        limit_bytes = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        async with self._operation(OSError):
            output = await self._act(
                lambda cell: cell.exec(
                    cmd,
                    input=input.encode() if isinstance(input, str) else input,
                    env=env or {},
                    cwd=cwd or "",
                    user=user,
                    timeout_s=timeout,
                    max_output_bytes=limit_bytes,
                    keep="tail",
                )
            )
        if may_be_broken(output):
            await self.health.look("call")
        timeout_s = timeout or self.cell.plan.limits.exec_timeout_s
        return to_result(output, cmd, limit_bytes=limit_bytes, timeout_s=timeout_s)

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        content = contents.encode() if isinstance(contents, str) else contents
        async with self._operation(IsADirectoryError):
            kept = await self._kept(content)
            await self._act(lambda cell: cell.write_file(file, kept()))

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...  # noqa: FBT002

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        try:
            async with self._operation(FileNotFoundError, IsADirectoryError, FileTooLargeError):
                max_bytes = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
                contents = await self.cell.read_file(file, max_bytes=max_bytes)
        except FileTooLargeError:
            raise OutputLimitExceededError(
                limit_str=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, truncated_output=None
            ) from None
        return contents.decode("utf-8") if text else contents

    @override
    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        if self._closed:
            raise ConnectionError(f"cell {self.cell.id} is gone")
        self.attach_socket.open_in_sample(self.cell)
        return SandboxConnection(
            type="belljar", command=login_command(self.cell.id, user), container=self.cell.id
        )

    @override
    def default_polling_interval(self) -> float:
        return 0.2
