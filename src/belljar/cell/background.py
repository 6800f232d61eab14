"""`Cell.start`: commands in the background, whose output is always taken."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from signal import SIGKILL
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.lowlevel import current_token

from belljar.capture import Capture
from belljar.cell.exec import ExecOperations
from belljar.cell.output import ExecOutput, OutputTexts
from belljar.channel import Stream
from belljar.dataclass import dataclass, replace
from belljar.errors import CellError
from belljar.units import format_duration

if TYPE_CHECKING:
    from belljar.cell.exec import RunningCommand

_END_TIMEOUT_S: Final = 5.0
_STREAMS: Final = (Stream.STDOUT, Stream.STDERR)
_tasks: set[asyncio.Task[None]] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSoFar(OutputTexts):
    """What a command has written until now: its beginning, and how much of it was not kept.

    What the policy's `output` made the cell drop is counted once the command has ended.
    """

    stdout: bytes
    stderr: bytes
    stdout_dropped_bytes: int
    stderr_dropped_bytes: int


class BackgroundCommand:
    """A command of `Cell.start`. It ends with its cell at the latest.

    Attributes:
        id: the operation's number, which the record has too; unique in its cell.
        argv: what runs.
    """

    def __init__(self, argv: Sequence[str], keep_bytes: int) -> None:
        self.id = 0
        self.argv = tuple(argv)
        self._kept = {
            stream: Capture(max_kept_bytes=keep_bytes, hashed=False) for stream in _STREAMS
        }
        self._running: RunningCommand | None = None
        self._outcome: ExecOutput | None = None
        self._error: BaseException | None = None
        self._sent = anyio.Event()
        self._done = anyio.Event()
        self._scope = anyio.CancelScope()
        self._loop = current_token()

    def __repr__(self) -> str:
        state = "running" if self.running else "ended"
        return f"<BackgroundCommand {self.id} {self.argv!r} {state}>"

    @property
    def running(self) -> bool:
        """False once its end is known."""
        return not self._done.is_set()

    @property
    def returncode(self) -> int | None:
        """As `ExecOutput.returncode`; None while it runs."""
        return None if self._outcome is None else self._outcome.returncode

    def output(self) -> OutputSoFar:
        """What it has written so far."""
        stdout, stderr = (self._kept[stream] for stream in _STREAMS)
        ended = self._outcome
        unsent = (ended.stdout_dropped_bytes, ended.stderr_dropped_bytes) if ended else (0, 0)
        return OutputSoFar(
            stdout=stdout.kept,
            stderr=stderr.kept,
            stdout_dropped_bytes=stdout.dropped_bytes + unsent[0],
            stderr_dropped_bytes=stderr.dropped_bytes + unsent[1],
        )

    async def wait(self, *, timeout_s: float | None = None) -> ExecOutput:
        """Its result, as `Cell.exec` gives it. Raises `TimeoutError` when it runs on, which it may;
        `CellError` when its cell died.
        """
        with anyio.move_on_after(timeout_s):
            await self._done.wait()
        if not self._done.is_set():
            message = f"command {self.id} has not ended within {format_duration(timeout_s or 0)}"
            raise TimeoutError(message)
        if self._outcome is None:
            if isinstance(self._error, Exception):
                raise self._error
            raise CellError("the command was cut off by the end of its cell")
        seen = self.output()
        return replace(
            self._outcome,
            stdout=seen.stdout,
            stderr=seen.stderr,
            stdout_dropped_bytes=seen.stdout_dropped_bytes,
            stderr_dropped_bytes=seen.stderr_dropped_bytes,
        )

    async def signal(self, number: int | str, *, whole_tree: bool = False) -> None:
        """Send a signal (15, `SIGTERM`, `"TERM"`) to its main process, or to all it started.

        Nothing happens when it has ended.
        """
        if self._running is not None and self.running:
            await self._running.signal(number, whole_tree=whole_tree)

    async def leave(self) -> None:
        """Let a service's program run on by itself, and wait until that is said, or its end."""
        if self._running is not None and self.running:
            await self._running.leave()
        await self._done.wait()

    async def kill(self) -> None:
        """Kill it and all it started, and wait for its end."""
        await self.signal(SIGKILL, whole_tree=True)
        await self._done.wait()

    async def run(self, opened: AbstractAsyncContextManager[RunningCommand]) -> None:
        """Take its output until it has ended. Keeps errors for `wait`."""
        try:
            with self._scope:
                async with opened as self._running:
                    self.id = self._running.id
                    await self._running.close_stdin()
                    self._sent.set()
                    async for stream, chunk in self._running:
                        self._kept[stream].feed(chunk)
                    outcome = await self._running.wait()
                self._outcome = outcome
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error = error
        finally:
            self._sent.set()
            self._done.set()

    async def started(self) -> None:
        """Until its request was sent. Raises what kept it from being sent."""
        await self._sent.wait()
        if self._error is not None and self._running is None:
            raise self._error

    async def end(self) -> None:
        """With its cell: kill it, and cut it off when the guest doesn't end it.

        Another event loop's command ends by itself when its channel is closed.
        """
        if not self.running or self._loop != current_token():
            return
        try:
            with anyio.move_on_after(_END_TIMEOUT_S):
                await self.kill()
        except CellError:
            pass  # a dead cell's commands have ended
        self._scope.cancel()
        await self._done.wait()


class BackgroundOperations(ExecOperations):
    """The part of a `Cell` that runs commands in the background."""

    _background: tuple[BackgroundCommand, ...] = ()

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
    ) -> BackgroundCommand:
        """Start a command in the background; it runs until it ends, is killed, or the cell ends.

        Arguments as `exec`, but no timeout by default and no standard input. What it writes is
        taken all the time: `output` has what was kept. A command that can't be started has ended,
        which `wait` tells. At most 64 operations run in a cell at once, these included.
        `service`: as `open_exec` has it.

        Raises `CellError`.
        """
        most = self.plan.limits.output_bytes
        keep_bytes = most if max_output_bytes is None else min(most, max_output_bytes)
        command = BackgroundCommand(argv, keep_bytes)
        opened = self.open_exec(
            argv, env=env, cwd=cwd, user=user, timeout_s=timeout_s, service=service
        )
        self._background = (*(one for one in self._background if one.running), command)
        spawn_task(lambda: command.run(opened))
        await command.started()
        return command

    async def _end_background(self) -> None:
        for command in self._background:
            await command.end()


def spawn_task(task: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A task outside of any block: no task group may span a cell's opening and end.

    The cell ends it; it raises nothing.
    """
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        trio = importlib.import_module("trio")
        trio.lowlevel.spawn_system_task(task, context=contextvars.copy_context())
        return
    made = loop.create_task(task())
    _tasks.add(made)
    made.add_done_callback(_tasks.discard)
