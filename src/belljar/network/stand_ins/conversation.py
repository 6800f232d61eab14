"""The loop of the decoys' stream services. Each step is on record before its reply is sent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, Protocol, TypeVar

from belljar.capture import body_of
from belljar.dataclass import dataclass
from belljar.events import JsonValue
from belljar.network.gateway.context import MAX_KEPT_BODY_BYTES, StandInContext, StreamApp
from belljar.network.stand_ins.web import word

M = TypeVar("M")
READ_BYTES: Final = 32 << 10
MAX_UNREAD_BYTES: Final = 1 << 20  # Of a reader's buffer, which holds less
# From then on the replies so far are sent before the next command is looked at
MAX_REPLY_BYTES: Final = 64 << 10
MAX_TURN_S: Final = 0.05  # Then the steps so far are recorded, and other connections served
# Names of commands that one event says; the others are counted, and all stand in its body
MAX_NAMES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Presented:
    """What a client presented to be let in.

    `credential`: the secret with what came beside it, or the secret that a proof proves; empty
    where none is.
    """

    user: str
    credential: bytes
    ok: bool
    mechanism: str


@dataclass(frozen=True, slots=True)
class Step:
    """One request, `raw`, and its reply."""

    name: str
    raw: bytes
    reply: bytes = b""
    presented: Presented | None = None
    close: bool = False


class ServiceSession(Protocol):
    """One connection's state: pure and bounded."""

    @property
    def greeting(self) -> bytes:
        """Sent before the client sends anything."""
        ...

    def feed(self, data: bytes) -> Iterable[Step]:
        """The steps that these bytes complete. Never raises for what they are."""
        ...

    @property
    def rest(self) -> bytes:
        """Bytes of an incomplete step."""
        ...


class MessageReader(Generic[M]):
    """Bytes → messages, none after a problem.

    `is_anonymous`: nobody has logged in; tighter bounds hold.
    """

    def __init__(self) -> None:
        self.is_anonymous = True
        self._buffer = bytearray()
        self._is_broken = False

    @property
    def rest(self) -> bytes:
        """Bytes of an incomplete message."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> Iterator[M]:
        """The messages that are complete now."""
        if self._is_broken:
            return
        self._buffer += data
        while (message := self._next()) is not None:
            yield message
            if self._is_broken:
                return

    def _next(self) -> M | None:
        raise NotImplementedError

    def _stop(self) -> bytes:
        """Read no more; what had come of the last message."""
        raw = self.rest
        self._is_broken = True
        self._buffer.clear()
        return raw


def stream_app(
    context: StandInContext, service: str, start: Callable[[], ServiceSession]
) -> StreamApp:
    """A stream stand-in of a session each connection. `service` begins the events' `operation`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cell: str) -> None:
        session, waiting = start(), list[Step]()

        def noted(steps: Iterable[Step]) -> Iterator[Step]:
            for step in steps:
                waiting.append(step)
                yield step

        interrupted = before = data = b""
        try:
            writer.write(session.greeting)
            await writer.drain()
            while data := await reader.read(READ_BYTES):
                before = session.rest
                for steps in _groups(noted(session.feed(data))):
                    await _record(context, service, steps, cell)
                    del waiting[: len(steps)]
                    writer.write(b"".join(step.reply for step in steps))
                    await writer.drain()
                    if steps[-1].close:
                        return
        except ConnectionError:
            return
        except Exception:
            # The step in which it happened is on no list: all that came last is recorded, some of
            # it twice.
            interrupted = before + data
            raise
        finally:
            for steps in _groups(waiting):
                await _record(context, service, steps, cell)
            if rest := (interrupted or session.rest) + await unread(reader):
                await _record(context, service, [Step("unfinished", rest)], cell)

    return serve


async def unread(reader: asyncio.StreamReader) -> bytes:
    """What a cut connection has left unread."""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(0):
            return await reader.read(MAX_UNREAD_BYTES)
    return b""


def _groups(steps: Iterable[Step]) -> Iterator[list[Step]]:
    """A login alone; others together, up to the bounds."""
    group: list[Step] = []
    size_bytes, began_s = 0, time.monotonic()
    for step in steps:
        is_long = size_bytes > MAX_REPLY_BYTES or time.monotonic() - began_s > MAX_TURN_S
        if group and (step.presented is not None or is_long):
            yield group
            group, size_bytes, began_s = [], 0, time.monotonic()
        group.append(step)
        size_bytes += len(step.reply)
        if step.presented is not None or step.close:
            yield group
            group, size_bytes, began_s = [], 0, time.monotonic()
    if group:
        yield group


async def _record(context: StandInContext, service: str, steps: list[Step], cell: str) -> None:
    data: dict[str, JsonValue] = {"cell": cell}
    if presented := steps[0].presented:
        data |= {
            "what": "login",
            "operation": f"{service}.{presented.mechanism}",
            "user": word(presented.user),
            "ok": presented.ok,
        }
        body = body_of("credential", presented.credential, MAX_KEPT_BODY_BYTES)
    else:
        data |= {
            "what": "command",
            "operation": f"{service}.command",
            "names": [word(step.name, 64) for step in steps[:MAX_NAMES]],
            "count": len(steps),
        }
        raw = b"".join(step.raw for step in steps)
        body = body_of("command", raw, MAX_KEPT_BODY_BYTES)
    await context.record("network.attempt", data, [body])
