"""The gateway's end of the event socket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn

from belljar.capture import body_of
from belljar.network import ipc
from belljar.network.gateway.config import Bounds
from belljar.network.ipc import ALIVE, ASK, DIAL, ENDED, MAX_DATAGRAM_BYTES, Item, encode_event
from belljar.network.stand_ins.web import MAX_ASKED_BYTES, word

# Together with a URL below `ipc.MAX_DATA_BYTES`, beyond which there is no event.
MAX_RECORDED_HEADERS: Final = 64
MAX_RECORDED_HEADER_CHARS: Final = 512
MAX_RECORDED_HEADERS_BYTES: Final = 16 << 10
MAX_RECORDED_URL_CHARS: Final = 2048


def printable_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[list[list[str]], int]:
    """Return bounded header fields, and how many were dropped."""
    kept: list[list[str]] = []
    left, dropped = MAX_RECORDED_HEADERS_BYTES, 0
    for pair in headers:
        name, value = (word(part, MAX_RECORDED_HEADER_CHARS) for part in pair)
        left -= len(json.dumps([name, value]))
        if left < 0 or len(kept) == MAX_RECORDED_HEADERS:
            dropped += 1
        else:
            kept.append([name, value])
    return kept, dropped


# The gateway's exit status without its owner: nothing unrecorded may be answered.
OWNER_GONE: Final = 70


class TooManyRequestsError(ValueError):
    """The owner has too many unanswered requests."""


def die_without_memory() -> NoReturn:
    # Not `print`, which would need memory.
    os.write(2, b"the gateway has no memory left for an event\n")
    os._exit(1)


class Reporter:
    def __init__(
        self,
        sock: socket.socket,
        bounds: Bounds,
        on_lost: Callable[[], NoReturn] = lambda: os._exit(OWNER_GONE),
    ) -> None:
        sock.setblocking(False)  # noqa: FBT003 - the library's signature
        self._sock, self._bounds, self._on_lost = sock, bounds, on_lost
        self.end_requested = asyncio.Event()
        self.end_within_s = 0.0
        self.posted = 0
        self._next = 1
        self._queue: deque[tuple[bool, bytes]] = deque()
        self._all_sent = asyncio.Event()
        self._is_over = False
        self._waiting: dict[int, tuple[asyncio.Future[Any], int]] = {}
        self._unanswered: set[int] = set()
        self._unrecorded = 0
        self._turn, self._freed, self._at_turn = asyncio.Lock(), asyncio.Event(), 0
        self._heartbeat: asyncio.Future[Any] | None = None
        self._answer: tuple[int, bool, int, bytearray] | None = None

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._readable)
        self._beat()

    def _beat(self) -> None:
        asyncio.get_running_loop().call_later(self._bounds.alive_every_s, self._beat)
        if self._heartbeat is None or self._heartbeat.done():
            self._heartbeat = self.post(Item(ALIVE, {}))

    async def record(self, *items: Item) -> None:
        """Record all, even if cancelled. Raises `ValueError`."""
        try:
            await self.wait_for_room()
        except asyncio.CancelledError:
            for item in items:
                self.post(item)
            raise
        for future in [self.post(item) for item in items]:
            await future

    def post(self, item: Item) -> asyncio.Future[Any]:
        """Return a future, done at the record."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self._is_over:
            return future
        number = self._next
        sent = encode_event(number, item)
        self._next += 1
        size = sum(map(len, sent))
        self._waiting[number] = (future, size)
        self._unrecorded += size
        # `settle` waits until no event comes; its own flushes are none.
        self.posted += item.kind != ALIVE
        is_idle = not self._queue
        self._queue.extend((at == 0, piece) for at, piece in enumerate(sent))
        self._all_sent.clear()
        if is_idle:
            self._writable()
        return future

    async def flush(self) -> None:
        """Return when all that was posted is on record."""
        await self.post(Item(ALIVE, {}))

    async def end(self, unreported: int, until: float) -> None:
        """Report the end; what is unsent by `until` counts."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._all_sent.wait()
        unreported += self._at_turn + sum(begins for begins, _ in self._queue)
        # The rest of a message that is half sent: without it the owner could read nothing that
        # follows.
        self._queue = deque(itertools.takewhile(lambda queued: not queued[0], self._queue))
        self.post(Item(ENDED, {"unreported": unreported}))
        self._is_over = True
        await self._all_sent.wait()

    async def ask(self, kind: str, body: bytes) -> Any:  # noqa: ANN401 - bytes; a socket, to `dial`
        """Ask the owner. Raises `ValueError`, `TooManyRequestsError`."""
        if len(body) > MAX_ASKED_BYTES:
            raise ValueError(f"a question has at most {MAX_ASKED_BYTES} bytes")
        await self.wait_for_room()
        # An abandoned one is the owner's work all the same.
        if len(self._unanswered) >= self._bounds.questions:
            raise TooManyRequestsError(f"{self._bounds.questions} questions are unanswered")
        self._unanswered.add(self._next)
        question = body_of("question", body, MAX_ASKED_BYTES)
        return await self.post(Item(ASK, {"what": kind}, (question,)))

    async def dial(self, host: str, port: int, stand_in: str) -> socket.socket:
        """Return the caller's socket to an upstream. Raises `ValueError`."""
        body = json.dumps({"host": host, "port": port, "stand_in": stand_in}).encode()
        answer = await self.ask(DIAL, body)
        if not isinstance(answer, socket.socket):
            raise ValueError("the owner has handed over no socket")
        return answer

    async def wait_for_room(self) -> None:
        self._at_turn += 1
        try:
            async with self._turn:
                while self._unrecorded >= self._bounds.unrecorded_bytes:
                    self._freed.clear()
                    await self._freed.wait()
        finally:
            self._at_turn -= 1

    def _writable(self) -> None:
        while self._queue:
            try:
                self._sock.send(self._queue[0][1])
            except BlockingIOError:
                break
            except OSError:
                self._on_lost()
            self._queue.popleft()
        loop = asyncio.get_running_loop()
        if self._queue:
            loop.add_writer(self._sock.fileno(), self._writable)
        else:
            loop.remove_writer(self._sock.fileno())
            self._all_sent.set()

    def _readable(self) -> None:
        # Bounded, so that connections have their turn.
        for _ in range(256):
            try:
                datagram, fds, _ = ipc.take_datagram(self._sock, MAX_DATAGRAM_BYTES)
                if not datagram:
                    self._on_lost()
                self._handle(datagram, fds)
            except BlockingIOError:
                break
            except (OSError, ValueError, KeyError, TypeError):
                self._on_lost()

    def _handle(self, datagram: bytes, fds: list[int]) -> None:
        if self._answer is not None:
            self._answer[-1].extend(datagram)
        else:
            message: dict[str, Any] = json.loads(datagram)
            if "ack" in message:
                self._done(message["ack"], b"")
                return
            if "end" in message:
                self.end_within_s = float(message["end"])
                self.end_requested.set()
                return
            number = int(message["answer"])
            if fds:
                end = socket.socket(fileno=fds[0])
                end.setblocking(False)  # noqa: FBT003 - the library's signature
                if self._waiting[number][0].done():  # it was abandoned
                    end.close()
                self._done(number, end)
                return
            # Its bytes follow, in datagrams of their own
            self._answer = (number, bool(message["ok"]), int(message["bytes"]), bytearray())
        number, is_ok, total, got = self._answer
        if len(got) >= total:
            self._answer = None
            self._done(number, bytes(got), is_ok=is_ok)

    def _done(self, number: int, answer: bytes | socket.socket, *, is_ok: bool = True) -> None:
        future, size = self._waiting.pop(number)
        self._unanswered.discard(number)
        self._unrecorded -= size
        self._freed.set()
        if future.done():
            return
        if is_ok or not isinstance(answer, bytes):
            future.set_result(answer)
        else:
            future.set_exception(ValueError(answer.decode(errors="replace")))
