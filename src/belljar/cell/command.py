"""One command in a cell: its record, and the handle of one that runs."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import asdict
from functools import partial
from signal import SIGKILL, Signals
from typing import Final, TypeAlias

import anyio
from anyio.lowlevel import current_token

from belljar.capture import Capture
from belljar.cell import record
from belljar.cell.base import spawn_task
from belljar.cell.record import LimitWatch, RecordedOperation
from belljar.channel import ExecOutput, ExecRequest, OutputTexts, Stream
from belljar.channel import Operation as ChannelOperation
from belljar.channel.frames import OUTPUT_WINDOW_BYTES
from belljar.dataclass import dataclass, replace
from belljar.errors import CellError
from belljar.events import Body, JsonValue, Kind, Recorder
from belljar.isolation.sandbox import Sandbox
from belljar.units import format_duration

Pieces: TypeAlias = bytes | AsyncIterator[bytes] | None
_END_TIMEOUT_S: Final = 5.0  # of a killed command, when its cell ends
_MAX_UNTAKEN_BYTES: Final = 2 * OUTPUT_WINDOW_BYTES  # what can have arrived of both streams


TIME_STEP_MS: Final = 50  # pieces that come closer are one
MAX_TIMES: Final = 500  # of one stream; the last has all that came after


class StreamTimes:
    """When how many bytes of each stream had passed, for a replay."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._of: dict[str, list[list[int]]] = {}

    def note(self, name: str, total_bytes: int) -> None:
        """Note that so many bytes have passed now."""
        found = self._of.setdefault(name, [])
        now_ms = round((time.monotonic() - self._began_s) * 1000)
        if found and (now_ms - found[-1][0] < TIME_STEP_MS or len(found) >= MAX_TIMES):
            found[-1][1] = total_bytes
        else:
            found.append([now_ms, total_bytes])

    def data(self) -> dict[str, JsonValue]:
        """As fields of the command's last event."""
        return {f"{name}_times": found for name, found in self._of.items()}


class CommandRecord:
    """What is recorded of one command: its start, its streams, the limits it hits, and its end."""

    def __init__(
        self,
        operation: RecordedOperation,
        request: ExecRequest,
        recorder: Recorder,
        live: Sandbox,
        *,
        keystrokes: bool = False,
    ) -> None:
        self._has_keystrokes = keystrokes and request.pty is not None
        self.operation = operation
        self.request = request
        self._recorder = recorder
        self._stdin = Capture("stdin")
        self._stdout, self._stderr = Capture("stdout"), Capture("stderr")
        recorder.record(record.exec_started(operation, request))
        self._limits = LimitWatch(live)
        self._times = StreamTimes()

    def output(self, stream: Stream, chunk: bytes) -> None:
        """Take what the command has written."""
        capture = self._stdout if stream is Stream.STDOUT else self._stderr
        capture.feed(chunk)
        self._times.note(capture.name, capture.total_bytes)
        self._limits.look()

    def input(self, source: Pieces) -> Pieces:
        """The command's input, seen as it is sent."""
        if source is None or isinstance(source, bytes):
            self._sent(source or b"")
            return source
        return self._pieces(source)

    async def _pieces(self, source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in source:
            self._sent(chunk)
            yield chunk

    def _sent(self, chunk: bytes) -> None:
        self._stdin.feed(chunk)
        if self._has_keystrokes and chunk:
            self._times.note("stdin", self._stdin.total_bytes)

    def signalled(self, signal: Signals, *, whole_tree: bool) -> None:
        """Record a signal that is about to be sent."""
        data = {"signal": signal.name, "scope": "tree" if whole_tree else "main"}
        self._recorder.record(self.operation.event(Kind.EXEC_SIGNAL, data))

    def bodies(self) -> list[Body]:
        """What went by so far."""
        captures = (self._stdin, self._stdout, self._stderr)
        return [capture.body() for capture in captures if capture.total_bytes]

    def end(self, output: ExecOutput | None) -> None:
        """Record the end; None: it was left before that, and its tree was killed."""
        if output is None:
            error = CellError("left before the command had ended; its tree was killed")
            event = record.failed(self.operation, Kind.EXEC_FAILED, error, bodies=self.bodies())
            self._recorder.record(event)
            return
        timeout_s = self.request.timeout_s
        for event in record.limits_hit(self.operation, output, timeout_s=timeout_s):
            self._recorder.record(event)
        finished = record.exec_finished(
            self.operation,
            output,
            timeout_s=timeout_s,
            stdout=self._stdout.body(),
            stderr=self._stderr.body(),
            stdin=self._stdin.body() if self._stdin.total_bytes else None,
            times=self._times.data(),
        )
        self._recorder.record(finished)

    def with_limits(self, output: ExecOutput) -> ExecOutput:
        """The same outcome with the limits that the host saw fire."""
        fired = self._limits.hit()
        is_memory = output.out_of_memory or "memory" in fired
        return replace(output, host_limits=fired, out_of_memory=is_memory) if fired else output


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputSoFar(OutputTexts):
    """What a command has written until now: its beginning, and how much of it was not kept.

    What the policy's `output` made the cell drop is counted once the command has ended.
    """

    stdout: bytes
    stderr: bytes
    stdout_dropped_bytes: int
    stderr_dropped_bytes: int


class RunningCommand:
    """A command of `Cell.open_exec` or `Cell.start`. It ends with its cell at the latest.

    Of `open_exec`: iterate it for `(stream, bytes)` until its streams end, then `wait`. Of `start`:
    its output is taken all the time, and `output` has what was kept.

    Attributes:
        id: the operation's number, which the record has too; unique in its cell.
        argv: what runs.
        outcome: how it ended, without what was kept; None while it runs.
    """

    def __init__(
        self, channel: ChannelOperation, seen: CommandRecord, let_out: Callable[[bytes], bytes]
    ) -> None:
        self.id = seen.operation.op
        self.argv = tuple(seen.request.argv)
        self._channel = channel
        self._seen = seen
        self._let_out = let_out
        self._is_taken = self._is_iterated = False
        self._untaken: deque[tuple[Stream, bytes]] = deque()
        self._untaken_bytes = 0
        self._stdout, self._stderr = _captures(0)
        self.outcome: ExecOutput | None = None
        self._error: BaseException | None = None
        self._done = anyio.Event()
        self._scope = anyio.CancelScope()
        self._loop = current_token()

    def __repr__(self) -> str:
        state = "running" if self.running else "ended"
        return f"<RunningCommand {self.id} {self.argv!r} {state}>"

    def __aiter__(self) -> AsyncIterator[tuple[Stream, bytes]]:
        return self

    async def __anext__(self) -> tuple[Stream, bytes]:
        self._is_iterated = True
        while not self._untaken:
            if not await self._take() and not self._untaken:
                raise StopAsyncIteration
        stream, chunk = self._untaken.popleft()
        self._untaken_bytes -= len(chunk)
        return stream, self._let_out(chunk)

    async def _take(self) -> bool:
        """Take and record what comes next, for the iteration; False at the end."""
        if (found := await self._channel.next_chunk()) is None:
            return False
        self._seen.output(*found)
        self._untaken.append(found)
        self._untaken_bytes += len(found[1])
        return True

    @property
    def running(self) -> bool:
        """False once its end is known: by `wait`, or of `start` at once."""
        return not self._done.is_set()

    @property
    def returncode(self) -> int | None:
        """As `ExecOutput.returncode`; None while it runs."""
        return None if self.outcome is None else self.outcome.returncode

    def output(self) -> OutputSoFar:
        """What it has written so far, if it is one of `start`."""
        ended = self.outcome
        unsent = (ended.stdout_dropped_bytes, ended.stderr_dropped_bytes) if ended else (0, 0)
        return OutputSoFar(
            stdout=self._stdout.kept,
            stderr=self._stderr.kept,
            stdout_dropped_bytes=self._stdout.dropped_bytes + unsent[0],
            stderr_dropped_bytes=self._stderr.dropped_bytes + unsent[1],
        )

    async def send_stdin(self, chunk: bytes | bytearray | memoryview | str) -> None:
        """Send bytes or UTF-8 text to its standard input, once its window has room."""
        # A copy: what is recorded is what is sent, whatever becomes of a buffer meanwhile
        chunk = chunk.encode() if isinstance(chunk, str) else bytes(memoryview(chunk))
        self._seen.input(chunk)
        await self._channel.send_stdin(chunk)

    async def close_stdin(self) -> None:
        """End its standard input; its output goes on."""
        await self._channel.close_stdin()

    async def signal(self, number: int | str, *, whole_tree: bool = False) -> None:
        """Send a signal (15, `SIGTERM`, `"TERM"`) to its main process, or to all it started.

        Nothing happens when it has ended. Raises `ValueError` for what is no signal.
        """
        sent = signal_number(number)
        if self.running:
            self._seen.signalled(sent, whole_tree=whole_tree)
            await self._channel.signal(sent, whole_tree=whole_tree)

    async def resize(self, rows: int, cols: int) -> None:
        """Tell its terminal the new size."""
        await self._channel.resize(rows, cols)

    async def leave(self) -> None:
        """Let a service's program run on by itself, and wait until that is said, or its end."""
        if self.running:
            await self._channel.leave()
        await self._ended()

    async def kill(self) -> None:
        """Kill it and all it started, and wait for its end; what it wrote can still be iterated."""
        await self.signal(SIGKILL, whole_tree=True)
        await self._ended(keeps=True)

    async def wait(self, *, timeout_s: float | None = None) -> ExecOutput:
        """Its outcome, when it has ended, as `Cell.exec` gives it; what was iterated is not in it.

        What nobody iterates is dropped and counted, on record nevertheless. With `timeout_s`
        nothing is dropped: a command whose output is not iterated ends only if it is below 1 MiB.

        Raises `TimeoutError` when it runs on, which it may; `CellError` when its cell died.
        """
        with anyio.move_on_after(timeout_s):
            if timeout_s is not None and not self._is_taken and self.running:
                await self._channel.wait_ended()
            await self._ended(keeps=timeout_s is not None or self._is_iterated)
        if self.running:
            message = f"command {self.id} has not ended within {format_duration(timeout_s or 0)}"
            raise TimeoutError(message)
        if self.outcome is None:
            if isinstance(self._error, Exception):
                raise self._error
            raise CellError("the command was cut off by the end of its cell")
        return replace(self.outcome, **asdict(self.output()))

    async def _ended(self, *, keeps: bool = False) -> None:
        """Wait for its end; its output is recorded, and kept for the iteration or dropped."""
        if self._is_taken or not self.running:
            await self._done.wait()
            return
        while await self._take():
            if not keeps or self._untaken_bytes > _MAX_UNTAKEN_BYTES:
                stream, chunk = self._untaken.pop()
                self._untaken_bytes -= len(chunk)
                self._channel.discarded[stream] += len(chunk)
        self._finish()
        self._done.set()

    def _finish(self) -> None:
        self.outcome = self._seen.with_limits(self._channel.output())

    def take_output(self, opened: AsyncExitStack, keep_bytes: int) -> None:
        """Have its output taken in a task of its own, which closes `opened` at its end."""
        self._is_taken = True
        self._stdout, self._stderr = _captures(keep_bytes)
        spawn_task(partial(self._take_output, opened))

    async def _take_output(self, opened: AsyncExitStack) -> None:
        try:
            with self._scope:
                async with opened:
                    await self.close_stdin()
                    async for stream, chunk in self:
                        (self._stdout if stream is Stream.STDOUT else self._stderr).feed(chunk)
                    self._finish()
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error, self.outcome = error, None  # it ended with a machine that was reverted
        finally:
            self._done.set()

    def left(self) -> None:
        """The block of `open_exec` was left: so it has ended, unless `take_output` goes on."""
        if not self._is_taken:
            self._done.set()

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


def _captures(keep_bytes: int) -> tuple[Capture, Capture]:
    made = (Capture(max_kept_bytes=keep_bytes, hashed=False) for _ in range(2))
    return next(made), next(made)


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
