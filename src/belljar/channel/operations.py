"""The socket's pump, and one live operation as its task sees it.

Without a background task the first waiting operation *leads*: it reads the socket for all, lets
the wire check, and hands each event to its mailbox. The others *follow*: each waits on its own
event, set for an arrival or to lead. While any waits, one leads or has been woken to lead.
"""

from __future__ import annotations

import math
import posixpath
import signal
import socket
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Final, Protocol, TypeAlias

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from belljar.channel import frames, outcomes
from belljar.channel.frames import Answer, Data, FrameType, GuestEvent, Progress, Result, Stream
from belljar.channel.outcomes import ExecOutput, FileTooLargeError, OutputTexts
from belljar.channel.wire import HostConnection
from belljar.errors import CellError, ProtocolViolation
from belljar.units import format_duration, printable

# A guest that reads nothing for so long is dead: a busy host delays it by seconds.
SEND_DEADLINE_S: Final = 30.0
# Several frames in one call.
_READ_BYTES: Final = 256 << 10
_CLOSED: Final = "the cell is gone: its channel was closed from the other end"
_DEAD_HINT: Final = "Open a new cell; this one's console and ledger say what it did last."
# A CREDIT for each small piece would double the frames; a quarter keeps the guest writing.
_CREDIT_BATCH_BYTES: Final = frames.OUTPUT_WINDOW_BYTES // 4
# The caller may have been the slow one, and the guest's RESULT wait to be read.
_LATE_S: Final = 1.0
# For a killed operation to end.
_KILL_S: Final = 10.0
Contents: TypeAlias = bytes | AsyncIterable[bytes]
OnOutput: TypeAlias = Callable[[Stream, bytes], object]


class Mailbox(Protocol):
    waiters: set[anyio.Event]

    def deliver(self, event: GuestEvent) -> None:
        """Take one event. It must not block or raise."""
        ...


class Pump:
    def __init__(self, stream: SocketPipe, connection: Mailbox) -> None:
        self.wire = HostConnection()
        self.failure: CellError | None = None
        self._stream = stream
        self._connection = connection
        self.operations: dict[int, Mailbox] = {}
        self._followers: dict[anyio.Event, None] = {}
        self._lead: anyio.CancelScope | None = None
        self._send_lock = anyio.Lock(fast_acquire=True)

    def check(self) -> None:
        """Raise the connection's end, if any, as a new `CellError`."""
        if self.failure is not None:
            # A new one for each caller: an exception that is raised again collects tracebacks.
            raise type(self.failure)(
                self.failure.what, where=self.failure.where, hint=self.failure.hint
            ) from self.failure

    def fail(self, error: CellError) -> None:
        """End the connection for all operations. The first reason stays."""
        if self.failure is None:
            self.failure = error
        for event in self._followers:
            event.set()
        if self._lead is not None:
            self._lead.cancel()

    def _gone(self, what: str) -> None:
        self.fail(CellError(what, where="channel", hint=_DEAD_HINT))

    async def close(self) -> None:
        self._gone("the channel to the guest agent was closed")
        await self._stream.aclose()

    async def send(self, make: Callable[[], bytes]) -> None:
        """Send what `make` returns; it is called at its turn, so state and bytes keep one order.

        From then on cancellation waits, at most the send deadline: half a frame would end the
        conversation. Raise `CellError`, also if the guest did not read by the deadline.
        """
        async with self._send_lock:
            self.check()
            message = make()
            sent = not message
            try:
                with anyio.move_on_after(SEND_DEADLINE_S, shield=True):
                    if message:
                        await self._stream.send(message)
                        sent = True
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                self._gone(_CLOSED)
            finally:
                if not sent and self.failure is None:
                    self._gone("the guest agent did not read what was sent to it")
        self.check()

    async def wait_until(self, mailbox: Mailbox, ready: Callable[[], bool]) -> None:
        """Return when `ready()`, asked whenever something arrived. Raise `CellError`."""
        while not ready():
            self.check()
            if self._lead is not None:
                await self._follow(mailbox)
                continue
            try:
                with anyio.CancelScope() as self._lead:
                    while not ready() and self.failure is None:
                        await self._read_once()
            finally:
                self._lead = None
                self._pass_lead()

    async def _follow(self, mailbox: Mailbox) -> None:
        news = anyio.Event()
        self._followers[news] = None
        mailbox.waiters.add(news)
        try:
            await news.wait()
        finally:
            del self._followers[news]
            mailbox.waiters.discard(news)
            # Woken to lead and cancelled, or woken for its own event: if none leads now, the next
            # one must.
            self._pass_lead()

    def _pass_lead(self) -> None:
        # One waiter is enough: it reads for all, and passes the lead on at its end.
        if self._lead is None:
            for event in self._followers:
                event.set()
                return

    async def _read_once(self) -> None:
        try:
            received = await self._stream.receive(_READ_BYTES)
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._gone(_CLOSED)
            return
        try:
            events = self.wire.feed(received)
        except ProtocolViolation as violation:
            self.fail(violation)
            return
        for event in events:
            if isinstance(event, Answer) and event.kind is FrameType.FATAL:
                self._gone(f"the guest agent gave up: {printable(event.detail, max_chars=300)}")
                continue
            mailbox: Mailbox | None = self._connection
            if isinstance(event, Data | Result | Progress):
                mailbox = self.operations.get(event.op)
            if mailbox is not None:
                mailbox.deliver(event)
                for waiter in mailbox.waiters:
                    waiter.set()


class SocketPipe:
    """It owns the socket from now on: `aclose` closes it."""

    def __init__(self, sock: socket.socket) -> None:
        sock.settimeout(0)
        self._socket = sock

    async def receive(self, max_bytes: int = _READ_BYTES, /) -> bytes:
        """Receive bytes. Raise `anyio.EndOfStream` at the end."""
        # A stream that always has bytes must not keep the event loop from other tasks.
        await checkpoint()
        while True:
            try:
                received = self._socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except ConnectionError as error:
                raise anyio.EndOfStream from error
            else:
                if not received:
                    raise anyio.EndOfStream
                return received

    async def send(self, item: bytes, /) -> None:
        """Send all bytes. A cancelled send makes the connection useless."""
        await checkpoint_if_cancelled()
        left = memoryview(item)
        while left:
            try:
                left = left[self._socket.send(left) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)

    async def aclose(self) -> None:
        if self._socket.fileno() >= 0:
            # Else a task that waits for this descriptor would not notice that it is closed.
            anyio.notify_closing(self._socket)
            self._socket.close()


class Operation:
    """A live operation's mailbox and its verbs."""

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

    def deliver(self, event: GuestEvent) -> None:
        if isinstance(event, Data):
            if self._discards:
                self._dropped_bytes[event.stream] += len(event.content)
                self._credit_owed += len(event.content)
            else:
                self._arrived[event.stream] += event.content
        elif isinstance(event, Result):
            self.result = event
            self._pump.operations.pop(self.op, None)
        elif isinstance(event, Progress) and event.kind is FrameType.STARTED:
            self.size_bytes = event.value
        elif isinstance(event, Progress) and event.kind is FrameType.EOF:
            self._streams_ended.add(Stream(event.value))

    async def send_stdin(self, content: bytes) -> None:
        """Send it all. Raise `BrokenPipeError` after the command's end."""
        if not await self.offer_stdin(content):
            raise BrokenPipeError("the command has ended and reads no more")

    async def offer_stdin(self, content: bytes) -> bool:
        """Send within the guest's credit; return False if it ended."""
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
        """Return the next stdout bytes; None after its end."""
        while (chunk := await self.next_chunk(until=Stream.STDOUT)) is not None:
            if chunk[0] is Stream.STDOUT:
                return chunk[1]
            self.kept[chunk[0]].feed(chunk[1])
        return None

    async def wait(self, see: OnOutput | None = None) -> ExecOutput:
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
        """Return what one stream has; None after the end, or `until`'s."""
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
        """Wait until `ready`, which RESULT makes true, or the host's deadline."""
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
        """Kill the tree unless it has ended; bounded, without a `CellError`."""
        try:
            if self.op and self.result is None:
                with suppress(CellError), anyio.move_on_after(_KILL_S, shield=True):
                    await self._kill()
        finally:
            if self.op and self.result is None:
                self._give_up()
            self._pump.operations.pop(self.op, None)

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
    with anyio.move_on_at(operation.deadline):
        await feed(operation, contents)
    await operation.wait()
    judge(operation, path, timeout_s)


def judge(
    operation: Operation, path: str, timeout_s: float | None, max_bytes: int | None = None
) -> None:
    result = operation.ended()
    if result.outcome is frames.Outcome.EXITED:
        return
    is_limit = result.outcome is frames.Outcome.IO_FAILED and result.code == FileTooLargeError.CODE
    if is_limit and max_bytes is not None:
        size_bytes = max(operation.size_bytes, max_bytes + 1)  # a tree's real size is unknown
        raise FileTooLargeError(path, max_bytes=max_bytes, size_bytes=size_bytes)
    if operation.overdue:
        raise TimeoutError(
            f"the guest took longer than {format_duration(timeout_s or 0)} for {path!r}"
        )
    raise outcomes.file_error(result, path)


class OwnReads:
    """The host's reads of one guest; each enters `covers`."""

    def __init__(self) -> None:
        self.covers: list[Callable[[str, bool], AbstractAsyncContextManager[None]]] = []

    @asynccontextmanager
    async def of(self, path: str, cwd: str, *, is_tree: bool = False) -> AsyncIterator[None]:
        whole = posixpath.normpath(posixpath.join("/", cwd, path))
        async with AsyncExitStack() as stack:
            for cover in list(self.covers):
                await stack.enter_async_context(cover(whole, is_tree))
            yield
