"""Commands in a cell."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from signal import Signals
from typing import Literal, TypeAlias

from belljar.capture import Capture
from belljar.cell import record
from belljar.cell.base import CellBase
from belljar.cell.health import ARGV, MAX_OUTPUT_BYTES, TIMEOUT_S, Health, read_health
from belljar.cell.output import ExecOutput, output_of
from belljar.cell.record import LimitWatch, Operation
from belljar.channel import ExecRequest, PtySize, RunningExec, Stream
from belljar.errors import CellError
from belljar.events import Body, Kind, Recorder
from belljar.isolation.sandbox import Sandbox

Input: TypeAlias = bytes | str | AsyncIterator[bytes] | None
Pieces: TypeAlias = bytes | AsyncIterator[bytes] | None


class SeenStreams:
    """What is recorded of a command: its streams, and the limits it hits."""

    def __init__(self, live: Sandbox) -> None:
        self.stdin = Capture("stdin")
        self.stdout, self.stderr = Capture("stdout"), Capture("stderr")
        self.limits = LimitWatch(live)

    def output(self, stream: Stream, chunk: bytes) -> None:
        """What the command has written."""
        (self.stdout if stream is Stream.STDOUT else self.stderr).feed(chunk)
        self.limits.look()

    def input(self, source: Pieces) -> Pieces:
        """The command's input, seen as it is sent."""
        if source is None:
            return None
        if isinstance(source, bytes):
            self.stdin.feed(source)
            return source
        return self._pieces(source)

    async def _pieces(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in source:
            self.stdin.feed(chunk)
            yield chunk

    def bodies(self) -> list[Body]:
        """What went by so far."""
        captures = (self.stdin, self.stdout, self.stderr)
        return [capture.body() for capture in captures if capture.total_bytes]


class RunningCommand:
    """A command of `Cell.open_exec`.

    Iterate it for `(stream, bytes)` until its streams end, then `wait` for its outcome.
    """

    def __init__(
        self,
        running: RunningExec,
        operation: Operation,
        recorder: Recorder,
        seen: SeenStreams,
        let_out: Callable[[bytes], bytes],
        *,
        user: str = "",
    ) -> None:
        self._running = running
        self._user = user
        self._seen = seen
        self._let_out = let_out
        self._operation = operation
        self._recorder = recorder
        self.output: ExecOutput | None = None

    def __aiter__(self) -> AsyncIterator[tuple[Stream, bytes]]:
        return self

    async def __anext__(self) -> tuple[Stream, bytes]:
        stream, chunk = await anext(self._running)
        self._seen.output(stream, chunk)
        return stream, self._let_out(chunk)

    async def send_stdin(self, chunk: bytes | str) -> None:
        """Send bytes or UTF-8 text to its standard input, once its window has room."""
        chunk = chunk.encode() if isinstance(chunk, str) else chunk
        self._seen.stdin.feed(chunk)
        await self._running.send_stdin(chunk)

    async def close_stdin(self) -> None:
        """End its standard input; its output goes on."""
        await self._running.close_stdin()

    @property
    def id(self) -> int:
        """The operation's number, which the record has too; unique in its cell."""
        return self._operation.op

    async def signal(self, number: int | str, *, whole_tree: bool = False) -> None:
        """Send a signal (15, `SIGTERM`, `"TERM"`) to its main process, or to all it started.

        Raises `ValueError` for what is no signal.
        """
        sent = signal_number(number)
        scope = "tree" if whole_tree else "main"
        event = self._operation.event(Kind.EXEC_SIGNAL, {"signal": sent.name, "scope": scope})
        self._recorder.record(event)
        await self._running.signal(sent, whole_tree=whole_tree)

    async def leave(self) -> None:
        """Let a service's program run on by itself; `wait` then says so."""
        await self._running.leave()

    async def resize(self, rows: int, cols: int) -> None:
        """Tell its terminal the new size."""
        await self._running.resize(rows, cols)

    async def wait(self) -> ExecOutput:
        """Its outcome, when it has ended. `stdout` and `stderr` are empty: they were iterated."""
        outcome = await self._running.wait()
        self.output = output_of(outcome, user=self._user, host_limits=self._seen.limits.hit())
        return self.output


def signal_number(number: int | str) -> Signals:
    """A signal by number, `Signals`, or name with or without `SIG`. Raises `ValueError`."""
    if isinstance(number, str):
        name = number.upper()
        name = name if name.startswith("SIG") else f"SIG{name}"
        if name not in Signals.__members__:
            raise ValueError(f"{number!r} is no signal; write a name such as TERM, or its number")
        return Signals[name]
    try:
        return Signals(number)
    except ValueError:
        raise ValueError(f"{number!r} is no signal; write 15, SIGTERM or 'TERM'") from None


def check_argv(argv: Sequence[str]) -> None:
    """Raises `TypeError` for what is no list of words."""
    if isinstance(argv, str | bytes):
        raise TypeError(
            'argv is a list of strings, one for each word; for a line of shell: ["sh", "-c", line]'
        )
    for word in argv:
        if not isinstance(word, str | bytes):
            raise TypeError(f"argv holds {type(word).__name__}: each word must be a string")


class ExecOperations(CellBase):
    """The part of a `Cell` that runs commands."""

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
            argv: the program, looked up in the guest's PATH, and its arguments; ≤ 4 MiB together.
            input: its standard input; text is sent as UTF-8.
            env: added to `Cell.env`; the values given here win.
            cwd: relative to the work directory of the policy or image, the default.
            user: name, uid or `uid:gid`; default the policy's or image's user.
            timeout_s: then the command's whole tree is killed and `timed_out` is set; default the
                policy's `exec_timeout`.
            max_output_bytes: kept of each stream's head or tail (`keep`), at most the policy's
                `output`. The rest is dropped and counted.
            on_output: called with each chunk, which the guard redacts by itself.

        Raises:
            CellError: the cell died or broke the protocol. A failed command is a result.
            TypeError: `argv` is a string, or holds something else than text.
        """
        if isinstance(input, str):
            input = input.encode()  # noqa: A001 - as above
        operation, request, seen = self._begin(
            argv, env=env, cwd=cwd, user=user, timeout_s=timeout_s, stdin=input is not None
        )

        def see(stream: Stream, chunk: bytes) -> None:
            seen.output(stream, chunk)
            if on_output is not None:
                on_output(stream, self._let_out(chunk, "exec.output"))

        with self._failure_recorded(operation, Kind.EXEC_FAILED, bodies=seen.bodies):
            outcome = await self._live.client.exec(
                request,
                input=seen.input(input),
                keep=keep,
                keep_bytes=max_output_bytes,
                on_output=see,
            )
        output = output_of(outcome, user=request.user, host_limits=seen.limits.hit())
        self._record_exec_finished(operation, output, request, seen)
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
        service: bool = False,
    ) -> AsyncIterator[RunningCommand]:
        """Run a command and talk to it while it runs: streams, signals, a terminal.

        Arguments as `exec`, but no timeout by default. `service`: as process 1 of a PID namespace
        of its own, without streams; its output goes to a file of the cell.

        Leaving the block before the command has ended kills its whole tree.
        """
        operation, request, seen = self._begin(
            argv,
            env=env,
            cwd=cwd,
            user=user,
            timeout_s=timeout_s or 0,
            stdin=not service,
            pty=pty,
            service=service,
        )
        with self._failure_recorded(operation, Kind.EXEC_FAILED, bodies=seen.bodies):
            async with self._live.client.open_exec(request) as channel:
                let_out = partial(self._let_out, operation="exec.output")
                running = RunningCommand(
                    channel, operation, self._recorder, seen, let_out, user=request.user
                )
                yield running
        if running.output is None:
            unended = CellError("left before the command had ended; its tree was killed")
            self._recorder.record(
                record.failed(operation, Kind.EXEC_FAILED, unended, bodies=seen.bodies())
            )
        else:
            self._record_exec_finished(operation, running.output, request, seen)

    async def run_probe_program(
        self,
        argv: Sequence[str],
        *,
        input: bytes,  # noqa: A002 - as in `exec`
        timeout_s: float,
        user: str | None = None,
        alone: bool = False,
    ) -> ExecOutput:
        """Run the guest agent's own probe program as the workload, and wait for it.

        It leaves no file in the cell. Not recorded as a command: the caller records the probes.
        Raises `CellError` as `exec` does.

        `alone`: all that runs in the cell is ended first, so that none of it can change what the
        program reports; if that can't be made sure, it isn't started.
        """
        self._operation()
        request = ExecRequest(
            argv=list(argv),
            # Root needs nothing of the cell's account files, which hostile root may have
            # rewritten: then a user with fewer rights would be probed.
            user="0:0" if (who := self._user(user)) in {"", "0", "root"} else who,
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
        service: bool = False,
    ) -> tuple[record.Operation, ExecRequest, SeenStreams]:
        check_argv(argv)
        limits, workdir = self.plan.limits, self.plan.workdir
        request = ExecRequest(
            argv=list(argv),
            env={**self.plan.env, **(env or {})},
            cwd=posixpath.normpath(posixpath.join(workdir, cwd)) if cwd else workdir,
            user=self._user(user),
            timeout_s=limits.exec_timeout_s if timeout_s is None else timeout_s or None,
            max_stdout_bytes=limits.output_bytes,
            max_stderr_bytes=limits.output_bytes,
            pty=pty,
            stdin=stdin,
            service=service,
        )
        operation = self._operation()
        self._recorder.record(record.exec_started(operation, request))
        return operation, request, SeenStreams(self._live)

    def _record_exec_finished(
        self,
        operation: record.Operation,
        output: ExecOutput,
        request: ExecRequest,
        seen: SeenStreams,
    ) -> None:
        for event in record.limits_hit(operation, output, timeout_s=request.timeout_s):
            self._recorder.record(event)
        self._recorder.record(
            record.exec_finished(
                operation,
                output,
                timeout_s=request.timeout_s,
                stdout=seen.stdout.body(),
                stderr=seen.stderr.body(),
                stdin=seen.stdin.body() if seen.stdin.total_bytes else None,
            )
        )
