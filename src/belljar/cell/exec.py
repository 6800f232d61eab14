"""Commands in a cell, and the handle of a running one."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from signal import SIGKILL, Signals
from typing import Final, Literal, TypeAlias, TypeVar

import anyio
import anyio.to_thread
from anyio.lowlevel import current_token

from belljar.cell.base import CellBase, CommandRecord, spawn_task
from belljar.cell.health import ARGV, MAX_OUTPUT_BYTES, TIMEOUT_S, HealthFinding, read_health
from belljar.channel import ExecOutput, ExecRequest, OutputTexts, PtySize, Stream
from belljar.channel import Operation as ChannelOperation
from belljar.channel.outcomes import agent_request, captures
from belljar.dataclass import replace
from belljar.errors import CellError
from belljar.events import Kind
from belljar.units import format_duration

Input: TypeAlias = bytes | str | AsyncIterator[bytes] | None
_Texts = TypeVar("_Texts", bound=OutputTexts)
_END_TIMEOUT_S: Final = 5.0  # of a killed command, when its cell ends


class RunningCommand:
    """A command of `Cell.open_exec` or `Cell.start`. It ends with its cell at the latest.

    Iterate that of `open_exec` for `(stream, bytes)`, then `wait`. `id` is the operation's
    number in the record, `outcome` what `wait` returns.
    """

    def __init__(
        self, channel: ChannelOperation, seen: CommandRecord, let_out: Callable[[bytes], bytes]
    ) -> None:
        self.id, self.argv = seen.operation.op, tuple(seen.request.argv)
        self.outcome: ExecOutput | None = None
        self._channel, self._seen, self._let_out = channel, seen, let_out
        self._taking: anyio.CancelScope | None = None  # a task's that takes its output
        self._error: Exception = CellError("the command was cut off by the end of its cell")
        self._done = anyio.Event()
        self._loop = current_token()

    def __repr__(self) -> str:
        state = "running" if self.running else "ended"
        return f"<RunningCommand {self.id} {self.argv!r} {state}>"

    def __aiter__(self) -> AsyncIterator[tuple[Stream, bytes]]:
        return self

    async def __anext__(self) -> tuple[Stream, bytes]:
        # After its block its end is on record: what had come and was not taken is given to nobody
        if not self.running or (found := await self._channel.next_chunk()) is None:
            raise StopAsyncIteration
        self._seen.output(*found)
        return found[0], self._let_out(found[1])

    @property
    def running(self) -> bool:
        """Return False once its end is known."""
        return not self._done.is_set()

    @property
    def returncode(self) -> int | None:
        """Return `ExecOutput.returncode`, or None while it runs."""
        return None if self.outcome is None else self.outcome.returncode

    def output(self) -> OutputTexts:
        """Return what was kept of its output so far."""
        return self.outcome or _let_out_whole(self._channel.output(), self._let_out)

    async def send_stdin(self, chunk: bytes | bytearray | memoryview | str) -> None:
        """Send bytes or UTF-8 text, once its window has room."""
        # A copy: what is recorded is what is sent, whatever becomes of a buffer meanwhile
        chunk = chunk.encode() if isinstance(chunk, str) else bytes(memoryview(chunk))
        # On record first: the guest may have got it even if sending breaks off.
        self._seen.input(chunk)
        await self._channel.send_stdin(chunk)

    async def close_stdin(self) -> None:
        """End its standard input; its output goes on."""
        await self._channel.close_stdin()

    async def signal(self, number: int, *, whole_tree: bool = False) -> None:
        """Signal its main process or whole tree. Raise `ValueError`."""
        sent = Signals(number)
        if self.running:
            self._seen.signalled(sent, whole_tree=whole_tree)
            await self._channel.signal(sent, whole_tree=whole_tree)

    async def resize(self, rows: int, cols: int) -> None:
        """Tell its terminal the new size."""
        await self._channel.resize(rows, cols)
        self._seen.resized(rows, cols)

    async def leave(self) -> None:
        """Let a service's program run on, or wait for its end."""
        if self.running:
            await self._channel.leave()
        await self._ended()

    async def kill(self) -> None:
        """Kill its whole tree and wait for its end."""
        await self.signal(SIGKILL, whole_tree=True)
        await self._ended()

    async def wait(self, *, timeout_s: float | None = None) -> ExecOutput:
        """Return its outcome, when it has ended; uniterated output is on record alone.

        Raise `TimeoutError` when it runs on, which it may; `CellError` when its cell died.
        """
        with anyio.move_on_after(timeout_s):
            await self._ended()
        if self.running:
            limit = format_duration(timeout_s or 0)
            raise TimeoutError(f"command {self.id} has not ended within {limit}")
        if self.outcome is None:
            raise self._error
        return self.outcome

    async def _ended(self) -> None:
        """Wait for its end; remaining output is recorded and dropped."""
        if self._taking is not None or not self.running:
            await self._done.wait()
            return
        await self._finish()
        self._done.set()

    async def _finish(self) -> None:
        output = await self._channel.wait(self._seen.output)
        self.outcome = self._seen.with_limits(output)

    def take_output(self, opened: AsyncExitStack, keep_bytes: int) -> None:
        """Take its output in a task, which finally closes `opened`."""
        self._channel.kept = captures(keep_bytes)
        scope = self._taking = anyio.CancelScope()

        async def take() -> None:
            try:
                with scope:
                    async with opened:
                        await self.close_stdin()
                        async for stream, chunk in self:
                            self._channel.kept[stream].feed(chunk)
                        await self._finish()
                        if self.outcome is not None:
                            self.outcome = _let_out_whole(self.outcome, self._let_out)
            except BaseException as error:  # noqa: BLE001 - raised by `wait`
                self.outcome = None  # it ended with a reverted machine
                self._error = error if isinstance(error, Exception) else self._error
            finally:
                self._done.set()

        spawn_task(take)

    def left(self) -> None:
        """Handle the end of its `open_exec` block."""
        if self._taking is None:
            self._done.set()

    async def end(self) -> None:
        """Kill it, or cut it off."""
        # Another event loop's command ends by itself when its channel is closed.
        if self._taking is None or not self.running or self._loop != current_token():
            return
        try:
            with anyio.move_on_after(_END_TIMEOUT_S):
                await self.kill()
        except CellError:
            pass  # a dead cell's commands have ended
        self._taking.cancel()
        await self._done.wait()


def _let_out_whole(texts: _Texts, let_out: Callable[[bytes], bytes]) -> _Texts:
    return replace(texts, stdout=let_out(texts.stdout), stderr=let_out(texts.stderr))


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
        """Run a command in the cell and wait for it. A failed command is a result.

        The program is looked up in the guest's PATH. `env` is added to `Cell.env`, `cwd` is
        relative to the work directory, `user` is a name, a uid or `uid:gid`. After `timeout_s`
        (default: the policy's `exec_timeout`) its whole tree is killed. `max_output_bytes` are
        kept of each stream's head or tail (`keep`); the rest is counted.
        """
        if isinstance(input, str):
            input = input.encode()  # noqa: A001 - as above
        seen = self._begin(argv, env, cwd, user, timeout_s, stdin=input is not None)
        let_out = partial(self._let_out, operation="exec.output")

        def see(stream: Stream, chunk: bytes) -> None:
            seen.output(stream, chunk)
            if on_output is not None:
                on_output(stream, let_out(chunk))

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
        if not self._redacts:
            return output
        return await anyio.to_thread.run_sync(_let_out_whole, output, let_out)

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

        Arguments are as `exec` has them, without a default timeout; for `service` see
        `ExecRequest`. Leaving the block before the command has ended kills its whole tree.
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
        """Start a command without standard input, until its cell's end at most."""
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
        """Run the guest agent's probe program."""
        self._operation()
        options = {"timeout_s": timeout_s, "max_stdout_bytes": 1 << 20, "alone": alone}
        request = agent_request(list(argv), self._agent_user(user), **options)
        return await self._exec_unrecorded(request, input)

    def _agent_user(self, user: str | None = None) -> str:
        """Return the workload's user, by number if that is root."""
        # Hostile root may have rewritten the account files: one with fewer rights would be probed
        return "0:0" if (who := self._user(user)) in {"", "0", "root"} else who

    async def _exec_unrecorded(self, request: ExecRequest, stdin: bytes | None) -> ExecOutput:
        try:
            return await self._live.client.exec(request, input=stdin)
        except BaseException as error:
            self._end_if_dead(error)
            raise

    async def check_health(self) -> HealthFinding:
        """Run the health check; a dead cell is a finding."""
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
            if self.failure is not None:
                raise self.failure
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
        """Record a command before sending it. Raise `TypeError`."""
        # A string is a sequence of strings, too: each letter would become a word.
        if isinstance(argv, str | bytes) or not all(isinstance(word, str | bytes) for word in argv):
            line = '["sh", "-c", line]'
            raise TypeError(f"argv is a list of strings, a word each; a line of shell: {line}")
        limits, workdir = self.plan.limits, self.plan.workdir
        request = ExecRequest(
            argv=list(argv),
            env={**self.plan.env, **(env or {})},
            cwd=posixpath.normpath(posixpath.join(workdir, cwd)) if cwd else workdir,
            user=self._user(user),
            # 0 means none: `open_exec` has no timeout by default.
            timeout_s=limits.exec_timeout_s if timeout_s is None else timeout_s or None,
            max_stdout_bytes=limits.output_bytes,
            max_stderr_bytes=limits.output_bytes,
            pty=pty,
            stdin=stdin,
            service=service,
        )
        return CommandRecord(self._operation(), request, self._recorder, self._live)
