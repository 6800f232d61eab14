"""A cell that stands: its recorded operations.

Each operation is recorded twice: before its first byte goes to the guest, and when its outcome is known, whatever that was. An operation on a cell that has died raises
`CellError` with the cause of death; nothing is retried behind the caller's back.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import anyio
import anyio.to_thread

from belljar.cell import record
from belljar.cell.background import BackgroundCommand, BackgroundOperations
from belljar.cell.capture import KEEP_BODY_BYTES, Capture, body_of, fed
from belljar.cell.connection import ConnectOperations
from belljar.cell.files import FileOperations
from belljar.cell.health import ARGV, MAX_OUTPUT_BYTES, TIMEOUT_S, Health, read_health
from belljar.cell.output import ExecOutput, output_of
from belljar.cell.questions import Questions
from belljar.cell.stream import RunningCommand, check_argv
from belljar.cell.watch import LimitWatch
from belljar.channel import ExecRequest, FileTooLarge, PtySize, Stream
from belljar.errors import BelljarError, CellError, ProtocolViolation
from belljar.events import Actor, Event, JsonValue, Kind, Recorder
from belljar.isolation.hold import killed_error
from belljar.isolation.sandbox import Sandbox
from belljar.isolation.survivors import Destruction
from belljar.isolation.touches import FileWatch
from belljar.plan import Plan

if TYPE_CHECKING:
    from belljar.probe.routed import Router

Input: TypeAlias = bytes | str | AsyncIterator[bytes] | None


class Cell(BackgroundOperations, ConnectOperations, FileOperations):
    """One running sandbox: one root filesystem, one guest agent. Made only by `open_cell`.

    Attributes:
        id: the cell's name in the ledger, the journal and on the host.
        plan: what it was made by.
        image_command: what the image says is to be run: its entrypoint and command, often nothing.
        image_entrypoint: the first of these alone.
        image_health: the image's own health check, as `health` of a target cell; empty where it has
            none.
        router: what its port leads to; None without a network device.
        others: the target cells of its range, by name; they end with it.
        questions: what its range's gateway asks; None when there is no range.
        describe: says what it is for, for `belljar ps`: `sample`, `epoch`.
        destruction: what its end found, once it has ended.
    """

    def __init__(
        self,
        live: Sandbox,
        plan: Plan,
        recorder: Recorder,
        *,
        actor: Actor,
        image_command: Sequence[str] = (),
        image_entrypoint: Sequence[str] = (),
        image_health: Mapping[str, Any] | None = None,
        router: Router | None = None,
    ) -> None:
        self.id = live.cell_id
        self.plan = plan
        self.image_command = tuple(image_command)
        self.image_entrypoint = tuple(image_entrypoint)
        self.image_health: Mapping[str, Any] = image_health or {}
        self._live = live
        self._recorder = recorder
        self._actor = actor
        self._last_op = 0
        self._background: list[BackgroundCommand] = []
        self.router = router
        self.others: Mapping[str, Cell] = {}
        self.questions: Questions | None = None
        self.describe: Callable[..., None] = lambda **_said: None
        self._dead: BelljarError | None = None
        self.destruction: Destruction | None = None

    def __repr__(self) -> str:
        return f"<Cell {self.id} {self.tier}{' emulated' if self.emulated else ''}{' dead' if self._dead else ''}>"

    @property
    def tier(self) -> str:
        """How the cell is isolated."""
        return self.plan.tier.value

    @property
    def emulated(self) -> bool:
        """True when no hardware virtualisation stands between guest and VMM."""
        return self._live.emulated

    @property
    def env(self) -> Mapping[str, str]:
        """What a command gets by default: the image's variables with the policy's on top. Read only.

        Besides, the guest sets HOME, USER, LOGNAME and SHELL of the command's user where they are
        not given.
        """
        return MappingProxyType(self.plan.env)

    @property
    def timings_ms(self) -> Mapping[str, float]:
        """Milliseconds by phase of making this cell."""
        return self._live.timings_ms

    def console(self) -> bytes:
        """What the guest's kernel wrote to its console, bounded. The guest's word."""
        return self._live.console()

    async def exec(
        self,
        argv: Sequence[str],
        *,
        input: Input = None,  # noqa: A002 - the name every caller of a subprocess knows
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        keep: Literal["head", "tail"] = "head",
        on_output: Callable[[Stream, bytes], None] | None = None,
    ) -> ExecOutput:
        """Run a command in the cell and wait for it.

        Args:
            argv: the program, looked up in the guest's PATH, and its arguments; at most 4 MiB together. A list: no shell reads it.
            input: its standard input; text is sent as UTF-8; `None`: empty.
            env: on top of `Cell.env`: a name in both has the value given here. None is removed.
            cwd: relative to the work directory of the policy or image; default that directory.
            user: name, uid or `uid:gid`; default the policy's or image's user.
            timeout_s: then the whole tree of the command is killed and `timed_out` is set; default the policy's `exec_timeout`.
            max_output_bytes: kept of each stream, at most the policy's `output`; `keep` says which end. The rest is dropped and counted.
            on_output: called with each chunk as it arrives, redacted by itself where the guard does.

        Raises:
            CellError: the cell died or broke the protocol. A command that fails, or can't be started, is a result.
            TypeError: `argv` is a string, or holds something else than text.
        """
        if isinstance(input, str):
            input = input.encode()  # noqa: A001 - as above
        operation, request = self._begin(
            argv, env=env, cwd=cwd, user=user, timeout_s=timeout_s, stdin=input is not None
        )
        stdin = Capture("stdin")
        self._recorder.record(record.exec_started(operation, request))
        captures = {Stream.STDOUT: Capture("stdout"), Stream.STDERR: Capture("stderr")}
        watch = LimitWatch(self._live)

        def see(stream: Stream, chunk: bytes) -> None:
            captures[stream].feed(chunk)
            watch.look()
            if on_output is not None:
                on_output(stream, self._let_out(chunk, "exec.output"))

        try:
            outcome = await self._live.client.exec(
                request, input=fed(input, stdin), keep=keep, keep_bytes=max_output_bytes, on_output=see
            )
        except BaseException as error:
            bodies = [c.body() for c in (stdin, *captures.values()) if c.total_bytes]
            self._recorder.record(record.failed(operation, Kind.EXEC_FAILED, error, bodies=bodies))
            self._end_if_dead(error)
            raise
        output = output_of(outcome, user=request.user, host_limits=watch.hit())
        self._record_exec_finished(operation, output, request, stdin=stdin, captures=captures)
        return replace(
            output,
            stdout=await self._redacted(output.stdout, "exec.output"),
            stderr=await self._redacted(output.stderr, "exec.output"),
        )

    @asynccontextmanager
    async def open_exec(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str | None = None,
        timeout_s: float | None = None,
        pty: PtySize | None = None,
    ) -> AsyncIterator[RunningCommand]:
        """Run a command and talk to it while it runs: streams, signals, a terminal. Arguments as `exec`, but no timeout by default.

        Leaving the block before the command has ended kills its whole tree.
        """
        operation, request = self._begin(
            argv, env=env, cwd=cwd, user=user, timeout_s=timeout_s or 0, stdin=True, pty=pty
        )
        self._recorder.record(record.exec_started(operation, request))
        running: RunningCommand | None = None
        watch = LimitWatch(self._live)
        try:
            async with self._live.client.open_exec(request) as channel:
                let_out = partial(self._let_out, operation="exec.output")
                running = RunningCommand(channel, operation, self._recorder, watch, let_out, user=request.user)
                yield running
        except BaseException as error:
            bodies = running.bodies() if running is not None else []
            self._recorder.record(record.failed(operation, Kind.EXEC_FAILED, error, bodies=bodies))
            self._end_if_dead(error)
            raise
        if running.output is None:
            unended = CellError("left before the command had ended; its tree was killed")
            bodies = running.bodies()
            self._recorder.record(record.failed(operation, Kind.EXEC_FAILED, unended, bodies=bodies))
        else:
            self._record_exec_finished(
                operation, running.output, request, stdin=running.stdin, captures=running.captures
            )

    async def write_file(
        self,
        path: str,
        contents: bytes | str,
        *,
        user: str | None = None,
        mode: int | None = None,
        owner: str = "",
        timeout_s: float | None = None,
        is_secret: bool = False,
    ) -> None:
        """Write a file in the cell: parents are made, an existing file is replaced at once or not at all. Text is written as UTF-8.

        `is_secret`: the contents are not kept on record, only their size and digest.
        Relative paths resolve against the work directory. Raises `PermissionError`, `IsADirectoryError`, another `OSError` of the
        guest's with `path` in it, `TimeoutError`, `CellError`.
        """
        contents = contents.encode() if isinstance(contents, str) else contents
        operation, user = self._operation(), self._user(user)
        body = body_of("content", contents, keep_bytes=0 if is_secret else KEEP_BODY_BYTES)
        self._recorder.record(record.write_started(operation, path, user=user, mode=mode, body=body))
        began = anyio.current_time()
        try:
            await self._live.client.write_file(
                path,
                contents,
                user=user,
                cwd=self.plan.workdir,
                mode=mode,
                owner=owner,
                timeout_s=timeout_s or self.plan.limits.exec_timeout_s,
            )
        except BaseException as error:
            self._recorder.record(record.failed(operation, Kind.FILE_WRITE_FAILED, error))
            for event in record.write_limits(operation, error):
                self._recorder.record(event)
            self._end_if_dead(error)
            raise
        took_s = anyio.current_time() - began
        self._recorder.record(record.finished(operation, Kind.FILE_WRITE_COMPLETED, duration_s=took_s))

    async def read_file(
        self, path: str, *, max_bytes: int, user: str | None = None, timeout_s: float | None = None
    ) -> bytes:
        """Read a regular file of the cell.

        Raises `FileNotFoundError`, `PermissionError`, `IsADirectoryError`, `FileTooLarge` (beyond `max_bytes`), another `OSError` of
        the guest's, `TimeoutError`, `CellError`.
        """
        operation, user = self._operation(), self._user(user)
        self._recorder.record(record.read_started(operation, path, user=user, max_bytes=max_bytes))
        began = anyio.current_time()
        try:
            contents = await self._live.client.read_file(
                path,
                user=user,
                cwd=self.plan.workdir,
                max_bytes=max_bytes,
                timeout_s=timeout_s or self.plan.limits.exec_timeout_s,
            )
        except BaseException as error:
            self._recorder.record(record.failed(operation, Kind.FILE_READ_FAILED, error))
            if isinstance(error, FileTooLarge):
                self._recorder.record(operation.event(Kind.LIMIT_HIT, {"limit": "read_file", "value": max_bytes}))
            self._end_if_dead(error)
            raise
        took_s, body = anyio.current_time() - began, body_of("content", contents)
        self._recorder.record(record.finished(operation, Kind.FILE_READ_COMPLETED, duration_s=took_s, body=body))
        return await self._redacted(contents, "file.read")

    async def run_probe_program(
        self,
        argv: Sequence[str],
        *,
        input: bytes,  # noqa: A002 - as in `exec`
        timeout_s: float,
        user: str | None = None,
        alone: bool = False,
    ) -> ExecOutput:
        """Run the guest agent's own probe program, as the workload would be run, and wait for it. It leaves no file in the cell.

        `alone`: all that runs in the cell is ended first, so that none of it can change what the program says; if that can't be made sure, it isn't started.
        Not recorded as a command: who probes records what is tried and what came of it. Raises `CellError` as `exec` does.
        """
        self._operation()
        request = ExecRequest(
            argv=list(argv),
            user=_by_number(self._user(user)),
            cwd="/",
            timeout_s=timeout_s,
            max_stdout_bytes=1 << 20,
            stdin=True,
            probe=True,
            alone=alone,
        )
        try:
            return output_of(await self._live.client.exec(request, input=input), user=request.user)
        except BaseException as error:
            self._end_if_dead(error)
            raise

    def note(self, kind: Kind, data: Mapping[str, JsonValue]) -> None:
        """Record something about the cell that is no operation of its own."""
        event = Event(kind=kind, cell_id=self.id, actor=self._actor, data=data)
        self._recorder.record(event)

    async def check_health(self) -> Health:
        """Run the check of `belljar.cell.health` as the workload's default user.

        Not recorded as a command: the caller records the check. A dead cell is a fact, not an
        error.
        """
        request = ExecRequest(
            argv=ARGV,
            env=self.plan.env,
            cwd=self.plan.workdir,
            user=self._user(None),
            timeout_s=TIMEOUT_S,
            max_stdout_bytes=MAX_OUTPUT_BYTES,
            max_stderr_bytes=MAX_OUTPUT_BYTES,
        )
        try:
            if self._dead is not None:
                raise self._dead
            try:
                return read_health(output_of(await self._live.client.exec(request)))
            except BaseException as error:
                self._end_if_dead(error)
                raise
        except CellError as error:
            return Health(died=error.what)

    @property
    def last_op(self) -> int:
        """The number of the operation that was begun last; 0 before the first."""
        return self._last_op

    @property
    def host_pid(self) -> int | None:
        """The pid on this host of the cell's outermost process, while it lives."""
        return self._live.host_pid

    async def watch(self, paths: Sequence[str]) -> FileWatch:
        """The tier's sensor for these files, for `belljar.cell.sensors`. Raises `HostError` or `CellError` when there can be none."""
        return await self._live.watch_files(paths)

    async def ping(self, *, timeout_s: float = 10) -> float:
        """Seconds to the guest agent and back. Raises `CellError` when it doesn't answer."""
        try:
            return await self._live.client.ping(timeout_s=timeout_s)
        except CellError as error:
            self._end_if_dead(error)
            raise

    async def wait_dead(self) -> str:
        """Until the cell has ended; why it did, as the host saw it."""
        return await self._live.wait_dead()

    def change_loop(self) -> None:
        """From here on it, and the others of its range, are worked in from the event loop that calls this. Raises `RuntimeError` while an operation runs."""
        for cell in self._together():
            cell._live.client.change_loop()

    def disconnect(self) -> None:
        """Have every operation of it, and of the others of its range, end, in whatever event loop it waits. From any thread."""
        for cell in self._together():
            cell._live.client.disconnect()

    def mark_failed(self, error: BelljarError) -> None:
        """Its range is dead, which is on record: every operation of it ends, and raises `error` from now on. From any thread; `destroy` is still to be called."""
        killed = killed_error(self._live.killed(), where=f"cell {self.id}")
        self._dead = self._dead or killed or error
        self._live.kill()
        self._live.client.disconnect()

    async def destroy(self, *, reason: str = "closed") -> Destruction:
        """End the cell now and say what was left of it. Leaving `open_cell` does this; calling it twice gives the first answer."""
        try:
            await self._end_background()
            if self.destruction is None and self._dead is None:
                self._record_death_limit()
        finally:
            with anyio.CancelScope(shield=True):
                destruction = self.destruction = await self._live.destroy(reason=reason)
        return destruction

    def _together(self) -> tuple[Cell, ...]:
        return (self, *self.others.values())

    def _operation(self) -> record.Operation:
        if self._dead is not None:
            raise self._dead
        self._last_op += 1
        return record.Operation(cell_id=self.id, op=self._last_op, actor=self._actor)

    def _user(self, user: str | None) -> str:
        return self.plan.user if user is None else user

    def _begin(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None,
        cwd: str,
        user: str | None,
        timeout_s: float | None,
        stdin: bool,
        pty: PtySize | None = None,
    ) -> tuple[record.Operation, ExecRequest]:
        check_argv(argv)
        limits = self.plan.limits
        request = ExecRequest(
            argv=list(argv),
            env={**self.plan.env, **(env or {})},
            cwd=os.path.normpath(os.path.join(self.plan.workdir, cwd)) if cwd else self.plan.workdir,  # noqa: PTH118 - a guest's path, never the host's
            user=self._user(user),
            timeout_s=limits.exec_timeout_s if timeout_s is None else timeout_s or None,
            max_stdout_bytes=limits.output_bytes,
            max_stderr_bytes=limits.output_bytes,
            pty=pty,
            stdin=stdin,
        )
        return self._operation(), request

    def _record_exec_finished(
        self,
        operation: record.Operation,
        output: ExecOutput,
        request: ExecRequest,
        *,
        stdin: Capture,
        captures: Mapping[Stream, Capture],
    ) -> None:
        stdout, stderr = captures[Stream.STDOUT].body(), captures[Stream.STDERR].body()
        for event in record.limits_hit(operation, output, timeout_s=request.timeout_s):
            self._recorder.record(event)
        seen_stdin = stdin.body() if stdin.total_bytes else None
        self._recorder.record(
            record.exec_finished(
                operation, output, timeout_s=request.timeout_s, stdout=stdout, stderr=stderr, stdin=seen_stdin
            )
        )

    def _record_death_limit(self) -> None:
        """A cell that died of a limit says so, once, whether an operation ran into it or nobody did."""
        limit = self._live.death_limit()
        if limit is not None:
            values = {"lifetime": self.plan.jail.lifetime_s, "memory": self.plan.jail.memory_max_bytes}
            data = {"limit": limit, "value": values.get(limit)}
            self._recorder.record(Event(kind=Kind.LIMIT_HIT, cell_id=self.id, data=data))

    def _end_if_dead(self, error: BaseException) -> None:
        """Raise a dead cell's error with the cause of death; it is recorded once and kept for every later operation. Others pass."""
        if not isinstance(error, CellError):
            return
        if self._dead is None:
            cause, console = str(self._live.killed() or self._live.cause_of_death()), self._live.console()
            if self._live.death_limit() == "memory":
                limit = self.plan.limits.memory_sum(self.plan.jail.memory_max_bytes)
                cause = f"out of memory: it reached its limit of {limit}"
            self._dead = killed_error(self._live.killed(), where=f"cell {self.id}") or CellError(
                f"the cell died: {cause or error.what}",
                where=f"cell {self.id}",
                hint="its record is complete up to here: `belljar ledger show last`",
            )
            self._record_death_limit()
            kind = Kind.PROTOCOL_VIOLATION if isinstance(error, ProtocolViolation) else Kind.CELL_FAILED
            data = {"error": type(error).__name__, "reason": cause or error.what}
            bodies = (body_of("console", console),) if console else ()
            self._recorder.record(Event(kind=kind, cell_id=self.id, data=data, bodies=bodies))
        raise self._dead from error


def _by_number(user: str) -> str:
    """Root needs no word of the cell's own account files, which hostile root may have rewritten: then somebody with fewer rights would be probed."""
    return "0:0" if user in {"", "0", "root"} else user
