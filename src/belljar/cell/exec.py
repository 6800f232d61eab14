"""Commands in a cell."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Literal, TypeAlias, cast

import anyio.to_thread

from belljar.cell.base import CellBase
from belljar.cell.command import CommandRecord, RunningCommand
from belljar.cell.health import ARGV, MAX_OUTPUT_BYTES, TIMEOUT_S, HealthFinding, read_health
from belljar.channel import ExecOutput, ExecRequest, PtySize, Stream
from belljar.errors import CellError
from belljar.events import Kind

Input: TypeAlias = bytes | str | AsyncIterator[bytes] | Iterable[bytes] | None


async def _read_in_thread(source: Iterable[bytes]) -> AsyncIterator[bytes]:
    pieces, end = iter(source), object()
    while (piece := await anyio.to_thread.run_sync(next, pieces, end)) is not end:
        yield cast("bytes", piece)


class ExecOperations(CellBase):
    """The part of a `Cell` that runs commands."""

    _background: tuple[RunningCommand, ...] = ()

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
            input: its standard input; text is sent as UTF-8. An iterable is read in a thread.
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
        elif isinstance(input, Iterable) and not isinstance(input, bytes):
            input = _read_in_thread(input)  # noqa: A001
        seen = self._begin(argv, env, cwd, user, timeout_s, stdin=input is not None)

        def see(stream: Stream, chunk: bytes) -> None:
            seen.output(stream, chunk)
            if on_output is not None:
                on_output(stream, self._let_out(chunk, "exec.output"))

        with self._failure_recorded(seen.operation, Kind.EXEC_FAILED, bodies=seen.bodies):
            output = await self._live.client.exec(
                seen.request,
                input=seen.input(input),
                keep=keep,
                keep_bytes=max_output_bytes,
                on_output=see,
            )
        output = seen.with_limits(output)
        seen.end(output)
        if self._redactor is None:
            return output
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
        limit_s, stdin = timeout_s or 0, not service
        seen = self._begin(argv, env, cwd, user, limit_s, stdin=stdin, pty=pty, service=service)
        with self._failure_recorded(seen.operation, Kind.EXEC_FAILED, bodies=seen.bodies):
            async with self._live.client.open_exec(seen.request) as channel:
                let_out = partial(self._let_out, operation="exec.output")
                running = RunningCommand(channel, seen, let_out)
                try:
                    yield running
                finally:
                    running.left()
        seen.end(running.outcome)

    async def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str = "",
        user: str | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
        service: bool = False,
    ) -> RunningCommand:
        """Start a command in the background; it runs until it ends, is killed, or the cell ends.

        Arguments as `exec`, but no timeout by default and no standard input. What it writes is
        taken all the time: `output` has what was kept. A command that can't be started has ended,
        which `wait` tells. At most 64 operations run in a cell at once, these included.
        `service`: as `open_exec` has it.

        Raises `CellError`.
        """
        most = self.plan.limits.output_bytes
        keep_bytes = most if max_output_bytes is None else min(most, max_output_bytes)
        opened = AsyncExitStack()
        command = await opened.enter_async_context(
            self.open_exec(argv, env=env, cwd=cwd, user=user, timeout_s=timeout_s, service=service)
        )
        self._background = (*(one for one in self._background if one.running), command)
        command.take_output(opened, keep_bytes)
        return command

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
        return await self._exec_unrecorded(request, input)

    async def _exec_unrecorded(self, request: ExecRequest, stdin: bytes | None) -> ExecOutput:
        try:
            return await self._live.client.exec(request, input=stdin)
        except BaseException as error:
            self._end_if_dead(error)
            raise

    async def check_health(self) -> HealthFinding:
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
            return read_health(await self._exec_unrecorded(request, None))
        except CellError as error:
            return HealthFinding(died=error.what)

    def _begin(
        self,
        argv: Sequence[str],
        env: Mapping[str, str] | None,
        cwd: str,
        user: str | None,
        timeout_s: float | None,
        *,
        stdin: bool,
        pty: PtySize | None = None,
        service: bool = False,
    ) -> CommandRecord:
        """Record a command that is about to be sent. Raises `TypeError` for what is no argv."""
        if isinstance(argv, str | bytes):
            raise TypeError(
                "argv is a list of strings, one for each word; for a line of shell: "
                '["sh", "-c", line]'
            )
        for word in argv:
            if not isinstance(word, str | bytes):
                raise TypeError(f"argv holds {type(word).__name__}: each word must be a string")
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
        return CommandRecord(
            self._operation(),
            request,
            self._recorder,
            self._live,
            keystrokes=self.plan.policy.keystrokes,
        )
