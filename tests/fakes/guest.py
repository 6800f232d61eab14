"""A guest agent in Python for the client's tests: the channel's protocol over one end of a socket
pair, honestly, until a script says otherwise.

It is written from `design/channel.md` alone and shares no code with the host's wire, so that a
misreading on either side shows. Run `serve` in the test's task group. A script is an async function
`(guest, op)` that plays one exec; the default echoes.
"""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import anyio

HEADER = struct.Struct("<IBBHI")
READY, HELLO, WELCOME, CONFIG, CONFIGURED, RENEW, RENEWED, PING, PONG, FATAL = range(1, 11)
WATCH, WATCHED, TOUCHED, FREEZE, FROZEN = range(11, 16)
PART, START, DATA, EOF, CREDIT, SIGNAL, RESIZE, STARTED, RESULT = range(0x10, 0x19)
EXITED, SIGNALED, NOT_STARTED, IO_FAILED = range(4)
WINDOW = 256 << 10


def frame(kind: int, op: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(payload), kind, 0, 0, op) + payload


def text(value: bytes | str) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<I", len(raw)) + raw


def result_payload(
    outcome: int = EXITED,
    code: int = 0,
    *,
    flags: int = 0,
    stage: int = 0,
    dropped: tuple[int, int] = (0, 0),
    duration_ns: int = 1_000_000,
    detail: str = "",
) -> bytes:
    return struct.pack("<BBHiQQQ", outcome, flags, stage, code, *dropped, duration_ns) + text(
        detail
    )


@dataclass
class GuestOp:
    id: int
    kind: int
    body: bytes
    stdin: bytearray = field(default_factory=bytearray)
    stdin_ended: bool = False
    credit: int = 1 << 20
    killed: bool = False
    signals: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)  # read by test_shell's program
    news: anyio.Event = field(default_factory=anyio.Event)

    def argv(self) -> list[bytes]:
        at = 4 + 8 * 3 + 4
        for _ in range(2):
            at += 4 + int.from_bytes(self.body[at : at + 4], "little")
        count, at, words = int.from_bytes(self.body[at : at + 4], "little"), at + 4, []
        for _ in range(count):
            length = int.from_bytes(self.body[at : at + 4], "little")
            words.append(self.body[at + 4 : at + 4 + length])
            at += 4 + length
        return words

    def path(self) -> str:
        at = 4
        for _ in range(2):
            at += 4 + int.from_bytes(self.body[at : at + 4], "little")
        length = int.from_bytes(self.body[at : at + 4], "little")
        return self.body[at + 4 : at + 4 + length].decode()

    def wake(self) -> None:
        self.news.set()
        self.news = anyio.Event()


Script = Callable[["FakeGuest", GuestOp], Awaitable[None]]


class FakeGuest:
    """The guest's end, with its `files`, and how programs behave by argv[0] (`scripts`)."""

    def __init__(self, scripts: dict[bytes, Script] | None = None, *, max_ops: int = 64) -> None:
        self.host_socket, mine = socket.socketpair()
        mine.setblocking(False)
        self._socket = mine
        self._scripts = {b"cat": cat, **(scripts or {})}
        self._max_ops = max_ops
        self._send_lock = anyio.Lock()
        self._parts: dict[int, bytes] = {}
        self.files: dict[str, bytes] = {}
        self.ops: dict[int, GuestOp] = {}
        self.started_order: list[int] = []
        self.watch_errno, self.watch_errors = 0, dict[int, int]()
        self.freezes: list[int] = []
        self.freeze_errno = 0
        self.answers: dict[int, bytes] = {}
        """What an operation of this kind (a walk, a removal, a usage) says on its first stream."""
        self.errors: dict[int, int] = {}
        """The errno that an operation of this kind ends with."""
        self.put = b""

    def close(self) -> None:
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()

    async def send(self, data: bytes) -> None:
        async with self._send_lock:
            left = memoryview(data)
            while left:
                try:
                    left = left[self._socket.send(left) :]
                except BlockingIOError:
                    await anyio.wait_writable(self._socket)

    async def serve(self) -> None:
        """Answer until the host hangs up or this end dies."""
        buffered = b""
        try:
            async with anyio.create_task_group() as tasks:
                while received := await self._receive():
                    buffered += received
                    while len(buffered) >= 12 and len(buffered) >= 12 + (
                        length := HEADER.unpack_from(buffered)[0]
                    ):
                        _, kind, _, _, op = HEADER.unpack_from(buffered)
                        payload, buffered = buffered[12 : 12 + length], buffered[12 + length :]
                        await self._handle(kind, op, payload, tasks)
                tasks.cancel_scope.cancel()
        except* (OSError, anyio.ClosedResourceError):
            pass

    async def _receive(self) -> bytes:
        while True:
            try:
                return self._socket.recv(1 << 20)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)

    async def _handle(self, kind: int, op: int, payload: bytes, tasks: anyio.abc.TaskGroup) -> None:
        if kind == HELLO:
            await self.send(frame(WELCOME, 0, payload + struct.pack("<II", self._max_ops, WINDOW)))
        elif kind == CONFIG:
            await self.send(frame(CONFIGURED, 0, struct.pack("<I", 0) + text("")))
        elif kind == RENEW:
            await self.send(frame(RENEWED, 0, struct.pack("<I", 31) + text("")))
        elif kind == PING:
            await self.send(frame(PONG, 0, payload))
        elif kind == FREEZE:
            self.freezes.append(payload[0])
            await self.send(frame(FROZEN, 0, struct.pack("<I", self.freeze_errno)))
        elif kind == WATCH:
            await self.send(frame(WATCHED, 0, self._watched(payload)))
        elif kind == PART:
            self._parts[op] = self._parts.get(op, b"") + payload
        elif kind == START:
            self.ops[op] = GuestOp(
                id=op, kind=payload[0], body=self._parts.pop(op, b"") + payload[1:]
            )
            self.ops[op].stdin_ended = payload[0] == 1 and not self.ops[op].body[0] & 1
            self.started_order.append(op)
            tasks.start_soon(self._play, self.ops[op])
        elif op in self.ops:
            self._tell(self.ops[op], kind, payload)

    def _watched(self, payload: bytes) -> bytes:
        count = 0 if self.watch_errno else int(struct.unpack_from("<I", payload, 4)[0])
        errors = [self.watch_errors.get(index, 0) for index in range(count)]
        return struct.pack(f"<{2 + count}I", self.watch_errno, count, *errors)

    def _tell(self, op: GuestOp, kind: int, payload: bytes) -> None:
        if kind == DATA:
            op.stdin += payload[1:]
        elif kind == EOF:
            op.stdin_ended = True
        elif kind == CREDIT:
            op.credit += int.from_bytes(payload, "little")
        elif kind == SIGNAL:
            op.signals.append((payload[0], payload[1]))
            op.killed = op.killed or payload[0] == 9
        elif kind == RESIZE:
            op.sizes.append(struct.unpack("<HH", payload))
        op.wake()

    async def _play(self, op: GuestOp) -> None:
        if op.kind == 2:
            await self._read(op)
        elif op.kind == 3:
            await self._write(op)
        elif op.kind != 1:
            await self._answer(op)
        else:
            program = op.argv()[0]
            if program in self._scripts:
                await self._scripts[program](self, op)
            else:
                await self.finish(op, NOT_STARTED, errno.ENOENT, stage=3, detail="no such program")

    async def _read(self, op: GuestOp) -> None:
        content, limit = self.files.get(op.path()), int.from_bytes(op.body[-8:], "little")
        if content is None:
            return await self.finish(op, IO_FAILED, errno.ENOENT, stage=5)
        await self.started(op, len(content))
        if len(content) > limit:
            return await self.finish(op, IO_FAILED, errno.EFBIG, stage=6)
        await self.output(op, 1, content)
        return await self.finish(op)

    async def _write(self, op: GuestOp) -> None:
        await self.started(op)
        content = b""
        while chunk := await self.stdin(op):
            content += chunk
        if op.killed:
            return await self.finish(op, SIGNALED, 9, flags=2)
        if op.kind in self.errors:
            return await self.finish(op, IO_FAILED, self.errors[op.kind], stage=6)
        self.files[op.path()] = content
        return await self.finish(op)

    async def _answer(self, op: GuestOp) -> None:
        await self.started(op)
        while op.kind == 6 and (chunk := await self.stdin(op)):
            self.put += chunk
        await self.output(op, 1, self.answers.get(op.kind, b""))
        if op.kind in self.errors:
            return await self.finish(op, IO_FAILED, self.errors[op.kind], stage=6)
        return await self.finish(op)

    # ---- for scripts

    async def started(self, op: GuestOp, info: int = 0) -> None:
        await self.send(frame(STARTED, op.id, struct.pack("<Q", info)))

    async def output(self, op: GuestOp, stream: int, content: bytes) -> None:
        at = 0
        while at < len(content) and not op.killed:
            room = min(op.credit, 65_535)
            if room == 0:
                await op.news.wait()
                continue
            piece = content[at : at + room]
            op.credit -= len(piece)
            at += len(piece)
            await self.send(frame(DATA, op.id, bytes((stream,)) + piece))

    async def stdin(self, op: GuestOp) -> bytes:
        """The next bytes of stdin, their credit given back; empty at the end or when killed."""
        while not op.stdin and not op.stdin_ended and not op.killed:
            await op.news.wait()
        taken = bytes(op.stdin)
        op.stdin.clear()
        if taken and not op.killed:
            await self.send(frame(CREDIT, op.id, struct.pack("<I", len(taken))))
        return b"" if op.killed else taken

    async def until_killed(self, op: GuestOp) -> None:
        """Run on until a KILL comes, then end as killed."""
        while not op.killed:
            await op.news.wait()
        await self.finish(op, SIGNALED, 9, flags=2)

    async def finish(
        self, op: GuestOp, outcome: int = EXITED, code: int = 0, **rest: object
    ) -> None:
        self.ops.pop(op.id, None)
        await self.send(frame(RESULT, op.id, result_payload(outcome, code, **rest)))  # type: ignore[arg-type]


async def cat(guest: FakeGuest, op: GuestOp) -> None:
    await guest.started(op)
    while chunk := await guest.stdin(op):
        await guest.output(op, 1, chunk)
    if op.killed:
        await guest.finish(op, SIGNALED, 9, flags=2)
    else:
        await guest.finish(op)
