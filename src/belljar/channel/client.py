"""The host's client of a guest agent: commands and files over one stream.

At most 64 operations run, or as many as the guest takes; more queue. After the cell's death or a
`ProtocolViolation` each raises `CellError`. It belongs to the event loop that used it first.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Final

import anyio

from belljar.capture import Keep
from belljar.channel import frames, operations
from belljar.channel.frames import Answer, FrameType, GuestEvent, OpKind, Touched
from belljar.channel.operations import Contents, OnOutput, Operation, OwnReads, Pump, SocketPipe
from belljar.channel.outcomes import ExecOutput, ExecRequest, FileTooLargeError, captures, exec_body
from belljar.dataclass import replace
from belljar.errors import CellError, first_of
from belljar.units import format_duration, printable

# Operations at once: each has buffers here and a process there.
_MAX_OPS: Final = 64
# The host's wait beyond the guest's timeout.
_GRACE_S: Final = 10.0


class BusyError(CellError):
    """The cell can't be saved while a command runs."""

    def __init__(self) -> None:
        hint = "wait for the command, or end it; what it left in the background may run on"
        super().__init__("the cell is busy: a command runs in it", where="channel", hint=hint)


class GuestClient:
    """Owns the connected stream socket, which `aclose` closes."""

    def __init__(self, sock: socket.socket) -> None:
        # The mailbox of the connection's own frames, with the last answer of each kind
        self.waiters: set[anyio.Event] = set()
        self._answers: dict[FrameType, Answer] = {}
        self._pings_sent = self._pongs_seen = 0
        self._on_touched: Callable[[Touched], None] | None = None
        self._pump = Pump(SocketPipe(sock), self)
        self.own_reads = OwnReads()
        self._slots: anyio.Semaphore | None = None
        self._held: anyio.Event | None = None
        self._socket = sock

    def deliver(self, event: GuestEvent) -> None:
        if isinstance(event, Touched):
            if self._on_touched is not None:
                self._on_touched(event)
        elif isinstance(event, Answer):
            self._answers[event.kind] = event
            self._pongs_seen += event.kind is FrameType.PONG

    async def aclose(self) -> None:
        """Close the stream. Running and queued operations raise `CellError`."""
        await self._pump.close()

    def disconnect(self) -> None:
        """End all operations. Any thread may call it."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @property
    def failure(self) -> CellError | None:
        return self._pump.failure

    # ---- the connection

    async def wait_ready(self, *, timeout_s: float) -> None:
        await self._ask(FrameType.READY, None, timeout_s, "did not become ready")

    async def hello(self, *, timeout_s: float = 10.0) -> None:
        """Shake hands. It comes first, and once per connection."""
        send = partial(self._pump.wire.send_hello, os.urandom(frames.NONCE_BYTES))
        welcome = await self._ask(FrameType.WELCOME, send, timeout_s, "did not answer HELLO")
        self._slots = anyio.Semaphore(min(_MAX_OPS, welcome.max_ops), fast_acquire=True)

    async def configure(self, payload: bytes, *, timeout_s: float = 60.0) -> None:
        send = partial(self._pump.wire.ask, FrameType.CONFIG, payload)
        done = await self._ask(FrameType.CONFIGURED, send, timeout_s, "did not answer CONFIG")
        if done.errno:
            why = f"{os.strerror(done.errno)}: {printable(done.detail, max_chars=300)}"
            what = f"the guest could not build the workload's container: {why}"
            hint = "ask for fewer `cpus` or more `memory`"  # ENOMEM is the usual one
            raise CellError(what, where="channel, CONFIG", hint=hint)

    async def renew(self, payload: bytes) -> Answer:
        """Make a restored guest a new machine; the caller judges."""
        send = partial(self._pump.wire.ask, FrameType.RENEW, payload)
        return await self._ask(FrameType.RENEWED, send, 10.0, "did not answer RENEW")

    def check_idle(self) -> None:
        """Raise `BusyError` while a command runs."""
        if self._held is not None or self._pump.wire.live_ops:
            raise BusyError

    @asynccontextmanager
    async def frozen(self) -> AsyncIterator[None]:
        """Freeze the workload during the block; other calls wait."""

        async def freeze(*, on: bool) -> None:
            def send() -> bytes:
                payload = bytes((on,)) + time.time_ns().to_bytes(8, "little")
                return self._pump.wire.ask(FrameType.FREEZE, payload)

            # Shielded: a workload that nobody waits for would stay frozen
            with anyio.CancelScope(shield=True):
                done = await self._ask(FrameType.FROZEN, send, 10.0, "did not answer FREEZE")
            if done.errno:
                what = f"the guest agent can't stop what runs there: {os.strerror(done.errno)}"
                raise BusyError if done.errno == errno.EBUSY else CellError(what, where="FREEZE")

        self.check_idle()
        held = self._held = anyio.Event()
        try:
            await freeze(on=True)
            try:
                yield
            finally:
                await freeze(on=False)
        finally:
            self._held = None
            held.set()

    async def _released(self) -> None:
        while self._held is not None:
            await self._held.wait()

    async def ping(self, *, timeout_s: float = 10.0) -> float:
        """Return the round trip in seconds; it survives a timeout."""
        await self._released()
        began, mine = anyio.current_time(), list[int]()

        def make() -> bytes:
            self._pings_sent += 1
            mine.append(self._pings_sent)
            return self._pump.wire.send_ping(self._pings_sent)

        await self._pump.send(make)
        await self._within(lambda: self._pongs_seen >= mine[0], timeout_s, "did not answer a PING")
        return anyio.current_time() - began

    async def watch_files(
        self,
        paths: Sequence[str],
        on_touched: Callable[[Touched], None] | None = None,
        *,
        max_touches: int = 0,
    ) -> Answer:
        """Have the guest agent report opens and reads of these files, instead of earlier ones.

        `on_touched` must not raise: the task that reads the channel calls it.
        """

        def make() -> bytes:
            if paths:
                self._on_touched = on_touched
            return self._pump.wire.send_watch(paths, max_touches)

        await self._released()
        return await self._ask(FrameType.WATCHED, make, 10.0, "did not answer WATCH")

    async def _ask(
        self, kind: FrameType, send: Callable[[], bytes] | None, timeout_s: float, what: str
    ) -> Answer:
        if send is not None:
            self._answers.pop(kind, None)
            await self._pump.send(send)
        await self._within(lambda: kind in self._answers, timeout_s, what)
        return self._answers[kind]

    async def _within(self, ready: Callable[[], bool], timeout_s: float, what: str) -> None:
        with anyio.move_on_after(timeout_s):
            await self._pump.wait_until(self, ready)
            return
        what = f"the guest agent {what} within {format_duration(timeout_s)}"
        raise CellError(what, where="channel", hint="Open a new cell; look at this one's console.")

    # ---- commands

    async def exec(
        self,
        request: ExecRequest,
        *,
        input: Contents | None = None,  # noqa: A002 - as in subprocess
        keep: Keep = "head",
        keep_bytes: int | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecOutput:
        """Run a command to its end. A command that fails, or can't be started, is a result.

        `on_output` is called in this task with every chunk; what it raises ends the command. If
        this raises or is cancelled, the guest has killed the command's whole tree. Raise
        `ValueError`, `OSError(E2BIG)`, `CellError`.
        """
        most = max(request.max_stdout_bytes, request.max_stderr_bytes)  # more does not come
        request = replace(request, stdin=request.stdin or input is not None)
        async with self.open_exec(request) as operation:
            operation.kept = captures(most if keep_bytes is None else keep_bytes, keep)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(operations.feed, operation, b"" if input is None else input)
                    output = await operation.wait(on_output)
                    # The command has ended, and reads nothing more.
                    tasks.cancel_scope.cancel()
            except BaseExceptionGroup as group:  # its one error, best one that is no cancellation
                raise (
                    first_of(group, Exception) or first_of(group, BaseException) or group
                ) from None
            return output

    def open_exec(self, request: ExecRequest) -> AbstractAsyncContextManager[Operation]:
        """Run a command; the block's end kills it."""
        return self.operation(
            OpKind.EXEC,
            exec_body(request),
            None if request.timeout_s is None else request.timeout_s + _GRACE_S,
            stdout=request.max_stdout_bytes,
            # a terminal has no standard error of its own
            stderr=request.max_stderr_bytes if request.pty is None else None,
            stdin_open=request.stdin,
            user=request.user,
        )

    # ---- files

    async def write_file(
        self,
        path: str,
        contents: Contents,
        *,
        user: str = "",
        cwd: str = "",
        mode: int | None = None,
        owner: str = "",
        is_directory: bool = False,
        timeout_s: float | None = None,
    ) -> None:
        """Write a file: parents are made, and the target changes only when all is written.

        Without `mode` an existing file keeps its own, and a new one has 0644 under the umask.
        Raise `OSError` with the path, `TimeoutError`, `ValueError`, `CellError`.
        """
        if mode is not None and not 0 <= mode <= 0o7777:
            raise ValueError(f"mode {mode:#o} is not a file mode; 0 to 0o7777")
        number = (frames.KEEP_MODE if mode is None else mode).to_bytes(4, "little")
        body = frames.place(user, cwd, path, 4 if is_directory else 0) + number
        body += frames.counted(frames.text_bytes(owner, "owner"))
        async with self.operation(OpKind.WRITE, body, timeout_s, stdin_open=True) as operation:
            await operations.feed_file(operation, contents, path, timeout_s)

    async def read_file(
        self,
        path: str,
        *,
        user: str = "",
        cwd: str = "",
        max_bytes: int,
        timeout_s: float | None = None,
    ) -> bytes:
        """Read a regular file. Raise as `write_file`, and `FileTooLargeError`."""
        body = frames.place(user, cwd, path) + frames.pack(struct.Struct("<Q"), max_bytes)
        operating = self.operation(OpKind.READ, body, timeout_s, stdout=max_bytes + 1)
        async with self.own_reads.of(path, cwd), operating as operation:
            operation.kept = captures(max_bytes + 1)
            await operation.wait()
            operations.judge(operation, path, timeout_s, max_bytes)
        contents = operation.output().stdout
        if len(contents) > max_bytes:  # a guest that says that it is whole
            raise FileTooLargeError(path, max_bytes=max_bytes, size_bytes=len(contents))
        return contents

    @asynccontextmanager
    async def operation(
        self,
        kind: OpKind,
        body: bytes,
        timeout_s: float | None,
        *,
        stdout: int | None = None,
        stderr: int | None = None,
        stdin_open: bool = False,
        user: str = "",
    ) -> AsyncIterator[Operation]:
        """Start an operation once a slot is free; its timeout begins then."""
        self._pump.check()
        if self._slots is None:
            raise RuntimeError("hello() comes first")
        async with self._slots:
            operation = Operation(self._pump, user=user)

            def begin() -> bytes:
                operation.op, message = self._pump.wire.start(
                    kind, body, stdout=stdout, stderr=stderr, stdin_open=stdin_open
                )
                self._pump.operations[operation.op] = operation
                return message

            try:
                await self._released()
                await self._pump.send(begin)
                if timeout_s is not None:
                    operation.deadline = anyio.current_time() + timeout_s
                yield operation
            finally:
                await operation.finish()
