"""Reads the socket without a background task: one waiting operation reads for all.

The first waiter *leads*: it reads, lets the wire check, and hands each event to its mailbox. The
others *follow*: each waits on its own event, set for an arrival or to lead. Invariant: while any
operation waits, one leads or has been woken to lead.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final, Protocol

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from belljar.channel.frames import Answer, Data, FrameType, GuestEvent, Progress, Result
from belljar.channel.wire import HostConnection
from belljar.errors import CellError, ProtocolViolation
from belljar.units import printable

# A guest that reads nothing for so long is dead: a busy host delays it by seconds.
SEND_DEADLINE_S: Final = 30.0
# Several frames in one call.
_READ_BYTES: Final = 256 << 10
_CLOSED: Final = "the cell is gone: its channel was closed from the other end"
_DEAD_HINT: Final = "Open a new cell; this one's console and ledger say what it did last."


class Mailbox(Protocol):
    waiters: set[anyio.Event]

    def deliver(self, event: GuestEvent) -> None:
        """Take one event. It must not block or raise."""
        ...


class Pump:
    def __init__(
        self, stream: SocketPipe, connection: Mailbox, *, send_deadline_s: float = SEND_DEADLINE_S
    ) -> None:
        self.wire = HostConnection()
        self.failure: CellError | None = None
        self._stream = stream
        self._connection = connection
        self._operations: dict[int, Mailbox] = {}
        self._followers: dict[anyio.Event, None] = {}
        self._lead: anyio.CancelScope | None = None
        self._send_lock = anyio.Lock(fast_acquire=True)
        self._send_deadline_s = send_deadline_s

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

    def register(self, op: int, mailbox: Mailbox) -> None:
        self._operations[op] = mailbox

    def forget(self, op: int) -> None:
        self._operations.pop(op, None)

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
                with anyio.move_on_after(self._send_deadline_s, shield=True):
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
                mailbox = self._operations.get(event.op)
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
        """Close the socket; waiting tasks get `ClosedResourceError`."""
        if self._socket.fileno() >= 0:
            # Else a task that waits for this descriptor would not notice that it is closed.
            anyio.notify_closing(self._socket)
            self._socket.close()
