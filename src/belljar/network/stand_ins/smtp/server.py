"""The mail server on a stream: reads lines with bounds, records, then answers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from belljar.events import Body, JsonValue
from belljar.network.gateway.context import StandInContext, StreamApp
from belljar.network.stand_ins.conversation import unread
from belljar.network.stand_ins.faults import Fault, Faults
from belljar.network.stand_ins.records import bounded, word
from belljar.network.stand_ins.smtp.session import MAX_LINE_BYTES, Login, Mail, Outcome, Session


def make(context: StandInContext) -> StreamApp:
    """A stream stand-in.

    Its memory: of each connection one line, the envelope and 64 KiB of the message; nothing between
    connections.

    A message's content beyond 50 MiB is refused at its end (beyond 100 MiB the connection is
    closed); it is on record all the same.
    """
    host = next((name for name in context.names if "*" not in name), "mail.localdomain")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cell: str) -> None:
        await _Connection(context, Session(host), reader, writer, cell).run()

    return serve


def check(
    settings: Mapping[str, JsonValue],  # noqa: ARG001 - the kind has no setting of its own
    directory: Path | None,
) -> Faults:
    """What is wrong with the author's files: there should be none, as this kind reads none."""
    if directory is None:
        return ()
    return (
        Fault(file=str(directory), message="a mail server serves no files; leave `directory` out"),
    )


class _Connection:
    def __init__(
        self,
        context: StandInContext,
        session: Session,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        cell: str,
    ) -> None:
        self._context = context
        self._session = session
        self._reader = reader
        self._writer = writer
        self._cell = cell

    async def run(self) -> None:
        """Until the client leaves, or is sent away.

        A message that breaks off in its content is recorded as such.
        """
        try:
            await self._say(self._session.greeting)
            while True:
                outcome = await self._next()
                if outcome is None:
                    return
                if outcome.done is not None:
                    await self._record(outcome.done)
                if outcome.reply:
                    await self._say(outcome.reply)
                if outcome.close:
                    return
        except ConnectionError:
            return
        finally:
            if self._session.in_data and self._session.mail is not None:
                self._session.mail.content.feed(await unread(self._reader))
                await self._record(self._session.mail)

    async def _next(self) -> Outcome | None:
        """What the next line led to; `None` at the end of the stream."""
        line, whole = await _read_line(self._reader)
        if not line:
            return None
        if not self._session.in_data:
            if not whole or len(line) > MAX_LINE_BYTES:
                while not whole and line:
                    line, whole = await _read_line(self._reader)
                return self._session.too_long()
            if not line.endswith(b"\n"):
                return None
        return self._session.line(line)

    async def _say(self, reply: bytes) -> None:
        self._writer.write(reply)
        await self._writer.drain()

    async def _record(self, done: Mail | Login) -> None:
        common: dict[str, JsonValue] = {"cell": self._cell, "client": word(self._session.client)}
        if isinstance(done, Login):
            data: dict[str, JsonValue] = {
                "what": "login",
                "mechanism": done.mechanism,
                "user": word(done.user),
                "secret_sha256": done.secret_sha256,
            }
            await self._context.record("network.attempt", {**common, **data}, [])
            return
        message: Body = done.content.body()
        data = {
            "what": "mail",
            "user": word(self._session.user),
            "sender": word(done.sender, 512),
            "recipients": bounded((word(address, 512) for address in done.recipients), 16 << 10),
            "recipient_count": len(done.recipients),
            "size_bytes": done.content.total_bytes,
            "sha256": message.sha256,
            "complete": done.complete,
        }
        await self._context.record("network.attempt", {**common, **data}, [message])


async def _read_line(reader: asyncio.StreamReader) -> tuple[bytes, bool]:
    """A line with its end, or a piece of one that is longer than the reader's bound, and whether
    the line ends here; nothing at the end of the stream.
    """
    try:
        return await reader.readuntil(b"\n"), True
    except asyncio.IncompleteReadError as error:
        return error.partial, True
    except asyncio.LimitOverrunError as error:
        return await reader.readexactly(max(1, error.consumed)), False
