# ruff: noqa: ANN401, SIM105
"""A fake cell: a directory and subprocesses of this host. Never a sandbox."""

from __future__ import annotations

import errno
import itertools
import os
import pwd
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.abc
import anyio.lowlevel
from tests.fakes.probing import PROBES, FakeProgram, dead
from tests.fakes.recorder import MemoryRecorder

from belljar.cell.health import HealthFinding
from belljar.cell.range import Range, revertible
from belljar.channel import ExecOutput, FileTooLargeError
from belljar.compose.document import ServiceBuild
from belljar.differences import Difference
from belljar.errors import CellError, HostError
from belljar.events import Event, Kind
from belljar.harness.source import RealCells
from belljar.image.store import MissingImage
from belljar.ledger.rundir import RunDirectory
from belljar.plan.make import granted
from belljar.policy.limits import Risk, Tier
from belljar.policy.loaded import LoadedPolicy
from belljar.probe.judge import Router
from belljar.probe.model import ProbeReport
from belljar.probe.run import probe_cell

_numbers = itertools.count(1)


class _KeyedRecorder(MemoryRecorder):
    key = SimpleNamespace(fingerprint="0" * 64)


class FakeRun:
    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.run_id = "fake-run"
        self.path = Path("/nowhere")
        self.is_sealed = False
        self.files: dict[str, Any] = {}
        self.recorder = _KeyedRecorder()
        self.outcome = ""
        self.closed = False
        self.before_end = ExitStack()

    def finish(
        self, outcome: str, *, exit_code: int | None, error: str | None = None, **details: Any
    ) -> None:
        self.outcome = outcome

    def write_json(self, name: str, value: Any) -> None:
        self.files[name] = value

    def shared(self, name: str) -> Any:
        """Nothing is shared."""


class EndedProgram:
    running = False

    def __init__(self, output: ExecOutput) -> None:
        self.output = output

    async def wait(self) -> ExecOutput:
        return self.output

    async def leave(self) -> None:
        """Nothing runs."""


class FakeCell:
    """Runs commands by subprocess in a directory of its own."""

    def __init__(self, policy: LoadedPolicy, directory: Path, run: FakeRun) -> None:
        self.id = f"fake{next(_numbers):04d}"
        self.policy = policy
        self.directory = directory
        self.run = run
        self.dead = False
        self.death = anyio.Event()
        self.destroyed = False
        self.reason = ""
        self.tier, self.host_pid, self.has_port = "microvm", None, False
        self.last_op = 0
        self.guard: Any = None
        self.healths = [HealthFinding(began=True, ended=True, ran=True)]
        self.image_command, self.image_entrypoint = (), ()
        self.image_health: dict[str, Any] = {}
        self.run_probe_program = FakeProgram()
        self._live = SimpleNamespace(killed=lambda: None)
        resources = policy.policy.resources
        self.plan = SimpleNamespace(
            policy=SimpleNamespace(model=None),
            limits=resources,
            oci=None,
            workdir=str(directory),
            user=policy.policy.user or "root",
            rights=granted(policy.policy.rights, Tier.MICROVM),
            risk=Risk.LOW,
            image="image",
        )

    def note(self, kind: Kind, data: Mapping[str, Any]) -> None:
        self.run.recorder.record(Event(kind=kind, cell_id=self.id, data=data))

    def record_death(self) -> None:
        """It isn't looked for."""

    def describe(self, **said: Any) -> None:
        """Nobody asks."""

    async def start(
        self, argv: Sequence[str], *, service: bool, timeout_s: float | None
    ) -> EndedProgram:
        return EndedProgram(await self.exec(argv, timeout_s=timeout_s))

    async def exec(
        self,
        argv: Sequence[str],
        *,
        input: bytes | None = None,  # noqa: A002 - as the real one
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        keep: str = "head",
    ) -> ExecOutput:
        self._alive()
        missing = partial(ExecOutput, returncode=126, code=126, not_started_errno=errno.ENOENT)
        try:
            identity = _identity(user or self.plan.user)
        except KeyError:
            return missing(stage="user", detail=user or "")
        where = self.directory / cwd
        if not where.is_dir():
            return missing(stage="cwd")
        try:
            process = await anyio.open_process(
                list(argv),
                cwd=where,
                env={**os.environ, **self.policy.policy.env, **(env or {})},
                start_new_session=True,
                **identity,
            )
        except OSError as error:
            return ExecOutput(returncode=127, code=127, not_started_errno=error.errno, stage="exec")
        wait_s = timeout_s or self.plan.limits.exec_timeout_s
        code, timed_out, out = await _run(process, input or b"", wait_s)
        cap = self.plan.limits.output_bytes
        limit = min(cap, max_output_bytes or cap)
        kept = {
            name: bytes(data[:cap][-limit:] if keep == "tail" else data[:limit])
            for name, data in out.items()
        }
        return ExecOutput(
            returncode=code if code >= 0 else 128 - code,
            code=abs(code),
            stdout=kept["stdout"],
            stderr=kept["stderr"],
            timed_out=timed_out,
            output_cap_reached=any(len(data) > cap for data in out.values()),
            stdout_dropped_bytes=len(out["stdout"]) - len(kept["stdout"]),
        )

    async def write_file(self, path: str, contents: bytes, **_: Any) -> None:
        self._alive()
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(contents)

    async def read_file(self, path: str, *, max_bytes: int, **_: Any) -> bytes:
        self._alive()
        target = self.directory / path
        if target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
        if not target.exists():
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        contents = target.read_bytes()
        if len(contents) > max_bytes:
            raise FileTooLargeError(path, size_bytes=len(contents), max_bytes=max_bytes)
        return contents

    async def check_health(self) -> HealthFinding:
        """As the real one: what it finds is next of `healths`, the last for ever."""
        if self.dead:
            return HealthFinding(died="it died")
        return self.healths.pop(0) if len(self.healths) > 1 else self.healths[0]

    async def ping(self, **_: Any) -> float:
        self._alive()
        return 0.0

    async def wait_dead(self) -> str:
        await self.death.wait()
        return "it died"

    def die(self) -> None:
        self.dead = True
        self.death.set()

    def disconnect(self) -> None:
        self.die()

    def mark_failed(self, _error: Exception) -> None:
        self.die()

    async def destroy(self, *, reason: str = "closed") -> None:
        self.reason = self.reason or reason

    def _alive(self) -> None:
        if self.dead:
            raise CellError("the cell died: /secret/host/path", where=f"cell {self.id}")


class FakeCells(RealCells):
    """A source of fake cells. `prepared` and `opened` remember the policies."""

    def __init__(self) -> None:
        super().__init__()
        self.runs: list[FakeRun] = []
        self.prepared: list[LoadedPolicy] = []
        self.opened: list[FakeCell] = []
        self.prepare_error: Exception | None = None
        self.of_images: tuple[Difference, ...] = ()
        self.destroy_error: BaseException | None = None
        self.router: Router | None = None
        self.on_probe: Callable[[FakeCell, str], None] = lambda _cell, _phase: None
        self.are_revertible = False

    async def probe(self, cell: Any, router: Any = None, *, run: Any, phase: str) -> ProbeReport:
        """As the real one, with a program that is one of the tests'."""
        self.on_probe(cell, phase)
        if cell.dead:
            cell.run_probe_program.error = dead()
        return await probe_cell(
            cell, recorder=run.recorder, router=router, phase=phase, probes=PROBES
        )

    @contextmanager
    def start_run(self, kind: str, argv: list[str], *, what: str = "") -> Iterator[Any]:
        run = FakeRun(kind)
        self.runs.append(run)
        yield run
        run.closed = True

    def build_images(self, builds: Iterable[ServiceBuild], images: Set[str]) -> None:
        """Nothing is built."""

    def missing_images(self, policies: Iterable[LoadedPolicy]) -> tuple[MissingImage, ...]:
        return ()

    def image_differences(self, policy: LoadedPolicy) -> tuple[Difference, ...]:
        return self.of_images

    async def prepare(self, policy: LoadedPolicy, run: Any) -> None:
        self.prepared.append(policy)
        if self.prepare_error is not None:
            raise self.prepare_error

    @asynccontextmanager
    async def open_range(
        self, policy: LoadedPolicy, run: Any, *, ahead: bool = False
    ) -> AsyncIterator[Any]:
        make = partial(self._one, policy, run)
        async with revertible(make) if self.are_revertible else make() as opened:
            yield opened

    @asynccontextmanager
    async def _one(self, policy: LoadedPolicy, run: Any) -> AsyncIterator[Any]:
        directory = Path(tempfile.mkdtemp(prefix="fake-cell-"))
        cell = FakeCell(policy, directory, run)
        self.opened.append(cell)
        routers: dict[str, Router] = {}
        targets: dict[str, Any] = {}
        if self.router is not None:
            targets["depot"] = FakeCell(policy, directory, run)
            for each in (cell, targets["depot"]):
                each.has_port, routers[each.id] = True, self.router
        try:
            yield Range(cell=cast("Any", cell), targets=targets, routers=routers)
        finally:
            shutil.rmtree(directory)
            await anyio.lowlevel.checkpoint()  # as a real end waits: without a shield it ends here
            cell.destroyed = True
            run.recorder.record(
                Event(
                    kind=Kind.CELL_DESTROYED,
                    cell_id=cell.id,
                    data={"clean": self.destroy_error is None, "survivors": [], "duration_ms": 0},
                )
            )
        if self.destroy_error is not None:
            raise self.destroy_error


class RecordedCells(FakeCells):
    """Fake cells that write into real run directories, event by event as a real cell does.

    `full_after`: so many cells can be made, then the disk is full.
    """

    full_after = 1 << 20

    @contextmanager
    def start_run(self, kind: str, argv: list[str], *, what: str = "") -> Iterator[Any]:
        with RunDirectory(self.store, kind, argv, what=what) as run:
            yield run

    @asynccontextmanager
    async def open_range(
        self, policy: LoadedPolicy, run: Any, *, ahead: bool = False
    ) -> AsyncIterator[Any]:
        async with super().open_range(policy, run, ahead=ahead) as opened:
            cell = opened.cell
            planned: dict[str, Any] = {
                **({"ahead": True} if ahead else {}),
                "policy_sha256": "0" * 64,
                "tier": "microvm",
                "emulated": True,
                "layers": [],
            }
            run.recorder.record(Event(kind=Kind.CELL_PLANNED, cell_id=cell.id, data=planned))
            self.full_after -= 1
            if self.full_after < 0:
                failed = {"error": "HostError", "reason": "no room"}
                run.recorder.record(Event(kind=Kind.CELL_FAILED, cell_id=cell.id, data=failed))
                full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                raise HostError(f"it could not be made: {full.strerror}") from full
            yield Range(cell=cast("Any", _Recorded(cell, run)))


class _Recorded:
    def __init__(self, cell: FakeCell, run: Any) -> None:
        self._cell, self._run, self._ops = cell, run, itertools.count(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cell, name)

    def _record(self, kind: Kind, **data: Any) -> None:
        self._run.recorder.record(Event(kind=kind, cell_id=self._cell.id, data=data))

    async def exec(self, argv: Sequence[str], **options: Any) -> ExecOutput:
        op = next(self._ops)
        started: dict[str, Any] = {"argv": list(argv), "cwd": "/", "user": "u", "env_names": []}
        started |= {"stdin": False, "timeout_s": None}
        self._record(Kind.EXEC_STARTED, op=op, **started)
        output = await self._cell.exec(argv, **options)
        sizes: dict[str, Any] = {
            "stdout_bytes": len(output.stdout) + output.stdout_dropped_bytes,
            "stderr_bytes": len(output.stderr),
            "stdout_dropped_bytes": output.stdout_dropped_bytes,
            "stderr_dropped_bytes": 0,
        }
        if output.timed_out:
            self._record(Kind.EXEC_TIMED_OUT, op=op, timeout_s=1.0, duration_ms=1.0, **sizes)
        elif output.not_started_errno is not None:
            why = {"stage": output.stage, "errno": output.not_started_errno}
            self._record(Kind.EXEC_FAILED, op=op, reason="could not start", **why)
        else:
            sizes |= {"status": "exited", "code": output.code, "duration_ms": 1.0}
            self._record(Kind.EXEC_COMPLETED, op=op, **sizes)
        return output

    async def write_file(self, path: str, contents: bytes, **options: Any) -> None:
        op = next(self._ops)
        self._record(Kind.FILE_WRITE_STARTED, op=op, path=path, bytes=len(contents))
        await self._cell.write_file(path, contents, **options)
        self._record(Kind.FILE_WRITE_COMPLETED, op=op)


def _identity(user: str) -> dict[str, Any]:
    if user in {"root", "0"} or os.geteuid() != 0:
        return {}
    entry = pwd.getpwnam(user)
    return {"user": entry.pw_uid, "group": entry.pw_gid}


async def _run(
    process: anyio.abc.Process, contents: bytes, timeout_s: float
) -> tuple[int, bool, dict[str, bytearray]]:
    """Its exit code, whether it was killed for its time, and its output."""
    out: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
    try:
        with anyio.move_on_after(timeout_s) as timeout:
            async with anyio.create_task_group() as streams:
                streams.start_soon(_collect, process.stdout, out["stdout"])
                streams.start_soon(_collect, process.stderr, out["stderr"])
                streams.start_soon(_feed, process.stdin, contents)
                await process.wait()
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                with _quiet():
                    os.killpg(process.pid, signal.SIGKILL)
            code = await process.wait()
            await process.aclose()
    return code, timeout.cancelled_caught, out


async def _collect(stream: Any, into: bytearray) -> None:
    async for chunk in stream:
        into += chunk


async def _feed(stream: Any, contents: bytes) -> None:
    with _quiet():
        await stream.send(contents)
    await stream.aclose()


@contextmanager
def _quiet() -> Iterator[None]:
    try:
        yield
    except (OSError, anyio.BrokenResourceError):
        pass
