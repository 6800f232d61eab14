"""`belljar model serve`: one model cell for clients of this host, by loopback or a unix socket.

A client needs the token. Only `/v1/…` reaches the server; one request a connection.
"""

from __future__ import annotations

import hmac
import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import h11
from anyio.abc import ByteStream

from belljar.errors import CellError
from belljar.model.http import MAX_HEAD_BYTES, Question, ServerError

if TYPE_CHECKING:
    from belljar.model.serve import ModelCell

MAX_BODY_BYTES: Final = 64 << 20
MAX_CLIENTS: Final = 64
_READ_TIMEOUT_S: Final = 60.0
# A server may resolve dots and double slashes, and has more than a client needs beside `/v1/`
_PATH: Final = re.compile(rb"/v1(/[A-Za-z0-9_-]+)+")
_ALLOWED: Final = frozenset({b"GET", b"POST"})


class RefusedError(Exception):
    """What the client sent is answered here, with this status."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


def checked_request(request: h11.Request, token: str) -> None:
    """Raises `RefusedError`. Pure."""
    given = dict(request.headers).get(b"authorization", b"")
    if not hmac.compare_digest(given, f"Bearer {token}".encode()):
        raise RefusedError(401, "give the token as `Authorization: Bearer TOKEN`")
    if request.method not in _ALLOWED or _PATH.fullmatch(request.target) is None:
        raise RefusedError(404, "only GET and POST of /v1/ reach the model")


async def answer_client(client: ByteStream, served: ModelCell, token: str) -> None:
    """One request of one client, to its end. Raises `CellError` once the cell answers no more."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
    async with client:
        try:
            with anyio.fail_after(_READ_TIMEOUT_S):
                question = await _read_question(client, connection, token)
            await _forward(client, connection, served, question)
        except RefusedError as refused:
            with suppress(OSError, anyio.BrokenResourceError, h11.LocalProtocolError):
                await _refuse(client, connection, refused)
        except (
            h11.RemoteProtocolError,
            TimeoutError,
            anyio.BrokenResourceError,
            anyio.EndOfStream,
        ):
            pass  # the client's own business


async def _read_question(client: ByteStream, connection: h11.Connection, token: str) -> Question:
    request: h11.Request | None = None
    body = bytearray()
    while True:
        event: Any = connection.next_event()
        if event is h11.NEED_DATA:
            if connection.they_are_waiting_for_100_continue:
                headers = h11.InformationalResponse(status_code=100, headers=[])
                await client.send(connection.send(headers) or b"")
            connection.receive_data(await client.receive())
        elif isinstance(event, h11.Request):
            request = event
            checked_request(event, token)
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise RefusedError(413, "the request is too large")
        elif isinstance(event, h11.EndOfMessage) and request is not None:
            kept = [(name, value) for name, value in request.headers if name == b"content-type"]
            return Question(
                method=request.method.decode("ascii"),
                path=request.target.decode("ascii"),
                headers=kept,
                body=bytes(body),
            )
        else:
            raise anyio.EndOfStream


async def _forward(
    client: ByteStream, connection: h11.Connection, served: ModelCell, question: Question
) -> None:
    has_begun = False
    try:
        async with served.ask(question) as asked:
            part = await asked.next_part()  # an error before the first part can still be told
            headers = [*asked.headers, (b"connection", b"close")]
            head = h11.Response(status_code=asked.status, headers=headers)
            await client.send(connection.send(head) or b"")
            has_begun = True
            while part is not None:
                await client.send(connection.send(h11.Data(data=part)) or b"")
                part = await asked.next_part()
            await client.send(connection.send(h11.EndOfMessage()) or b"")
    except (CellError, ServerError, TimeoutError, OSError) as error:
        if not has_begun:
            why = getattr(error, "what", type(error).__name__)
            with suppress(OSError, anyio.BrokenResourceError):
                await _refuse(client, connection, RefusedError(502, why))
        if isinstance(error, CellError):  # it answers no more
            raise


async def _refuse(client: ByteStream, connection: h11.Connection, refused: RefusedError) -> None:
    body = json.dumps({"error": {"message": refused.why, "type": "belljar"}}).encode()
    headers = [
        ("content-type", "application/json"),
        ("content-length", str(len(body))),
        ("connection", "close"),
    ]
    sent = (
        h11.Response(status_code=refused.status, headers=headers),
        h11.Data(data=body),
        h11.EndOfMessage(),
    )
    await client.send(b"".join(connection.send(each) or b"" for each in sent))


async def serve_clients(listener: Any, served: ModelCell, token: str) -> None:  # noqa: ANN401
    """Until cancelled. Raises `CellError` once the cell answers no more.

    `listener`: of anyio. More than `MAX_CLIENTS` at a time are not answered.
    """
    clients = anyio.CapacityLimiter(MAX_CLIENTS)
    failed: list[CellError] = []
    ended = anyio.Event()

    async def answer(client: ByteStream) -> None:
        try:
            clients.acquire_nowait()
        except anyio.WouldBlock:
            await client.aclose()
            return
        try:
            await answer_client(client, served, token)
        except CellError as error:
            failed.append(error)
            ended.set()
        finally:
            clients.release()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        await ended.wait()
        tasks.cancel_scope.cancel()
    raise failed[0]
