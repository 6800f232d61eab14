"""One live operation as its task sees it: its mailbox, its streams and its end.

It ends with RESULT, at the host's deadline (its tree is killed; without RESULT the connection
ends), when the caller leaves or is cancelled (the same kill, shielded and bounded), or with the
connection. So none outlives its block.
"""

from __future__ import annotations

import math
import posixpath
import signal
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio

from belljar.channel import frames, outcomes
from belljar.channel.frames import FrameType, Outcome, Progress, Result, Stream
from belljar.channel.outcomes import ExecOutput, FileTooLargeError, OutputTexts
from belljar.errors import CellError
from belljar.units import format_duration

if TYPE_CHECKING:
    from belljar.channel.pump import Pump

# A CREDIT for each small piece would double the frames; a quarter keeps the guest writing.
_CREDIT_BATCH_BYTES: Final = frames.OUTPUT_WINDOW_BYTES // 4
# The caller may have been the slow one, and the guest's RESULT wait to be read.
_LATE_S: Final = 1.0
# For a killed operation to end.
_KILL_S: Final = 10.0


OnOutput: TypeAlias = Callable[[Stream, bytes], object]


class Operation:
    """A live operation's mailbox and its verbs.

    Untaken output is one buffer per stream: so the window bounds the memory.
    """

    def __init__(self, pump: Pump, *, user: str = "") -> None:
        self.waiters: set[anyio.Event] = set()
        self.result: Result | None = None
        self.size_bytes = 0
        self.overdue = False
        self.kept = outcomes.captures(0)
        self._dropped_bytes = {Stream.STDOUT: 0, Stream.STDERR: 0}
        self._pump = pump
        self._user = user
        self.op = 0
        self._arrived = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
        self._streams_ended: set[Stream] = set()
        self._credit_owed = 0
        self._discards = False
        self._was_late = False
        self.deadline = math.inf
        """The host's deadline for it, on the event loop's clock."""

    def deliver(self, event: frames.GuestEvent) -> None:
        if isinstance(event, frames.Data):
            if self._discards:
                self._dropped_bytes[event.stream] += len(event.content)
                self._credit_owed += len(event.content)
            else:
                self._arrived[event.stream] += event.content
        elif isinstance(event, Result):
            self.result = event
            self._pump.forget(self.op)
        elif isinstance(event, Progress) and event.kind is FrameType.STARTED:
            self.size_bytes = event.value
        elif isinstance(event, Progress) and event.kind is FrameType.EOF:
            self._streams_ended.add(Stream(event.value))

    async def send_stdin(self, content: bytes) -> None:
        """Send it all. Raise `BrokenPipeError` after the command's end."""
        if not await self.offer_stdin(content):
            raise BrokenPipeError("the command has ended and reads no more")

    async def offer_stdin(self, content: bytes) -> bool:
        """Send all within the guest's credit; return False if it ended before."""
        left = memoryview(content)

        def one_frame() -> bytes:
            nonlocal left
            size = min(len(left), self._pump.wire.stdin_credit(self.op), frames.MAX_DATA_BYTES)
            message = self._pump.wire.send_data(self.op, left[:size]) if size else b""
            left = left[size:]
            return message

        while left and self.result is None:
            await self._wait(
                lambda: self.result is not None or self._pump.wire.stdin_credit(self.op) > 0
            )
            await self._pump.send(one_frame)
        return not left

    async def close_stdin(self) -> None:
        """End standard input; a second call does nothing."""
        await self._pump.send(lambda: self._pump.wire.send_eof(self.op))

    async def signal(self, signo: int, *, whole_tree: bool = False) -> None:
        scope = frames.SignalScope.WHOLE_TREE if whole_tree else frames.SignalScope.MAIN_PROCESS
        await self._pump.send(lambda: self._pump.wire.send_signal(self.op, signo, scope))

    async def leave(self) -> None:
        """End a service's operation; its program runs on."""
        # The frame needs a signal's number; with this scope no process gets it.
        signo, scope = signal.SIGCONT, frames.SignalScope.LEAVE
        await self._pump.send(lambda: self._pump.wire.send_signal(self.op, signo, scope))

    async def resize(self, rows: int, cols: int) -> None:
        await self._pump.send(lambda: self._pump.wire.send_resize(self.op, rows, cols))

    def __aiter__(self) -> AsyncIterator[tuple[Stream, bytes]]:
        return self

    async def __anext__(self) -> tuple[Stream, bytes]:
        if (chunk := await self.next_chunk()) is None:
            raise StopAsyncIteration
        return chunk

    async def receive_stdout(self) -> bytes | None:
        """Return the next stdout bytes; None after its end. The command may run on."""
        while (chunk := await self.next_chunk(until=Stream.STDOUT)) is not None:
            if chunk[0] is Stream.STDOUT:
                return chunk[1]
            self.kept[chunk[0]].feed(chunk[1])
        return None

    async def wait(self, see: OnOutput | None = None) -> ExecOutput:
        """Return the command's outcome, with its uniterated output."""
        async for stream, chunk in self:
            if see is not None:
                see(stream, chunk)
            self.kept[stream].feed(chunk)
        return outcomes.output_of(
            self.ended(), self.output(), is_overdue=self.overdue, user=self._user
        )

    def output(self) -> OutputTexts:
        stdout, stderr = (self.kept[stream] for stream in (Stream.STDOUT, Stream.STDERR))
        return OutputTexts(
            stdout=stdout.kept,
            stderr=stderr.kept,
            stdout_dropped_bytes=stdout.dropped_bytes + self._dropped_bytes[Stream.STDOUT],
            stderr_dropped_bytes=stderr.dropped_bytes + self._dropped_bytes[Stream.STDERR],
        )

    async def next_chunk(self, *, until: Stream | None = None) -> tuple[Stream, bytes] | None:
        """Return all arrived bytes of one stream, or None after the last; grant credit.

        With `until` it returns None also when that stream has ended and the command goes on.
        """
        await self._return_credit()
        await self._wait(
            lambda: (
                self.result is not None
                or any(self._arrived.values())
                or until in self._streams_ended
            )
        )
        for stream, arrived in self._arrived.items():
            if arrived:
                self._arrived[stream] = bytearray()
                self._credit_owed += 0 if self._discards else len(arrived)
                return stream, bytes(arrived)
        return None

    def ended(self) -> Result:
        """Return the guest's RESULT. Raise `RuntimeError` before it has come."""
        if self.result is None:
            raise RuntimeError("the operation has not ended: take its output, or wait for it")
        return self.result

    async def _return_credit(self) -> None:
        def credit() -> bytes:
            owed, self._credit_owed = self._credit_owed, 0
            return self._pump.wire.send_credit(self.op, owed)

        if self.result is None and self._credit_owed >= _CREDIT_BATCH_BYTES:
            await self._pump.send(credit)

    async def _wait(self, ready: Callable[[], bool]) -> None:
        """Wait within the host's deadline; at the deadline end the operation by force.

        `ready` must hold once there is a RESULT.
        """
        if self.result is not None:
            return
        if anyio.current_time() >= self.deadline and not self._was_late:
            # The caller may have been the slow one, and RESULT be waiting to be read: one more
            # chance, once.
            self._was_late, self.deadline = True, anyio.current_time() + _LATE_S
        if anyio.current_time() < self.deadline:
            with anyio.move_on_at(self.deadline):
                await self._pump.wait_until(self, ready)
                return
        self.overdue = True
        with anyio.move_on_after(_KILL_S):
            await self._kill()
        if self.result is None:
            self._give_up()
            self._pump.check()

    def _give_up(self) -> None:
        what = f"the guest agent did not end an operation within {_KILL_S:g} s of being "
        what += "told to kill it"
        hint = "The guest is wedged; open a new cell."
        self._pump.fail(CellError(what, where=f"channel, operation {self.op}", hint=hint))

    async def finish(self) -> None:
        """Kill the operation's tree and wait for RESULT, unless it has ended.

        It is bounded, shielded from cancellation, and never raises `CellError`: a dead
        connection raises in its next user.
        """
        try:
            if self.op and self.result is None:
                with suppress(CellError), anyio.move_on_after(_KILL_S, shield=True):
                    await self._kill()
        finally:
            if self.op and self.result is None:
                self._give_up()
            self._pump.forget(self.op)

    async def _kill(self) -> None:
        """Kill the tree and wait for RESULT.

        What had arrived can still be taken. What comes now is dropped and counted, and its
        credit returned: a guest without credit could not finish.
        """
        if not self._discards:
            self._discards = True
            self._credit_owed += sum(len(arrived) for arrived in self._arrived.values())
        await self.signal(signal.SIGKILL, whole_tree=True)
        while self.result is None:
            await self._return_credit()
            await self._pump.wait_until(
                self, lambda: self.result is not None or self._credit_owed >= _CREDIT_BATCH_BYTES
            )


Contents: TypeAlias = bytes | AsyncIterable[bytes]


async def feed(operation: Operation, contents: Contents) -> None:
    if isinstance(contents, bytes):
        await operation.offer_stdin(contents)
    else:
        try:
            async for piece in contents:
                if not await operation.offer_stdin(piece):
                    break
        finally:
            if isinstance(contents, AsyncGenerator):  # nothing else would close it
                await contents.aclose()
    await operation.close_stdin()


async def feed_file(
    operation: Operation, contents: Contents, path: str, timeout_s: float | None
) -> None:
    """Send a file's contents and wait for the end. Raise as `judge`."""
    with anyio.move_on_at(operation.deadline):
        await feed(operation, contents)
    await operation.wait()
    judge(operation, path, timeout_s)


def judge(
    operation: Operation, path: str, timeout_s: float | None, max_bytes: int | None = None
) -> None:
    """Raise a failed file operation's error."""
    result = operation.ended()
    if result.outcome is Outcome.EXITED:
        return
    is_limit = result.outcome is Outcome.IO_FAILED and result.code == FileTooLargeError.CODE
    if is_limit and max_bytes is not None:
        size_bytes = max(operation.size_bytes, max_bytes + 1)  # a tree's real size is unknown
        raise FileTooLargeError(path, max_bytes=max_bytes, size_bytes=size_bytes)
    if operation.overdue:
        raise TimeoutError(
            f"the guest took longer than {format_duration(timeout_s or 0)} for {path!r}"
        )
    raise outcomes.file_error(result, path)


class OwnReads:
    """The host's reads of one guest.

    Each context manager of `covers` is entered around a read, with the path and whether
    what is below it is read, too.
    """

    def __init__(self) -> None:
        self.covers: list[Callable[[str, bool], AbstractAsyncContextManager[None]]] = []

    @asynccontextmanager
    async def of(self, path: str, cwd: str, *, is_tree: bool = False) -> AsyncIterator[None]:
        whole = posixpath.normpath(posixpath.join("/", cwd, path))
        async with AsyncExitStack() as stack:
            for cover in list(self.covers):
                await stack.enter_async_context(cover(whole, is_tree))
            yield
