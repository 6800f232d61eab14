"""`belljar model serve`: one model cell for clients of this host, by loopback or a unix socket.

A client needs the token. Only `/v1/…` reaches the server; one request a connection.
"""

from __future__ import annotations

import hmac
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import h11
from anyio.abc import ByteStream

from belljar.errors import CellError
from belljar.model.http import MAX_HEAD_BYTES, Question, ServerError, is_api

if TYPE_CHECKING:
    from belljar.model.serve import ModelCell

# A long conversation with pictures in it; more would be held in memory for each client.
MAX_BODY_BYTES: Final = 64 << 20
# Each holds a request of `MAX_BODY_BYTES` in memory at worst.
MAX_CLIENTS: Final = 64
# A client that sends nothing gives its place to others.
_CLIENT_TIMEOUT_S: Final = 60.0
# After Ctrl-C: answers under way may end, and a client that reads slowly keeps nobody.
_LAST_ANSWERS_S: Final = 5.0


class RequestRefusedError(Exception):
    """The request is answered here: a status, and why."""


async def answer_client(client: ByteStream, served: ModelCell, token: str) -> None:
    """One request of one client, to its end."""
    http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def send(*events: h11.Event) -> None:
        with anyio.fail_after(_CLIENT_TIMEOUT_S):  # a client that takes nothing gives its place up
            await client.send(b"".join(http.send(each) or b"" for each in events))

    def head(status: int, content_type: bytes) -> h11.Response:
        headers = [(b"Content-Type", content_type), (b"Connection", b"close")]
        return h11.Response(status_code=status, headers=headers)

    # What is suppressed is the client's own business
    with suppress(anyio.BrokenResourceError, anyio.EndOfStream, h11.ProtocolError, OSError):
        async with client:
            try:
                with anyio.fail_after(_CLIENT_TIMEOUT_S):
                    question = await _read_question(client, http, token)
                async with served.ask(question) as answer:
                    part = await answer.next_part()  # an error before it has a status of its own
                    await send(head(answer.status, answer.content_type))
                    while part is not None:
                        await send(h11.Data(data=part))
                        part = await answer.next_part()
                await send(h11.EndOfMessage())  # its end is on record
            except (RequestRefusedError, CellError, ServerError, OSError) as error:
                if http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                    status, why = 502, getattr(error, "what", type(error).__name__)
                    if isinstance(error, RequestRefusedError):
                        status, why = error.args
                    body = json.dumps({"error": {"message": why, "type": "belljar"}}).encode()
                    answered = head(status, b"application/json")
                    await send(answered, h11.Data(data=body), h11.EndOfMessage())


async def _read_question(client: ByteStream, http: h11.Connection, token: str) -> Question:
    """The whole request. Raises `RequestRefusedError`; `EndOfStream` for what is none."""
    method, path, body = "", "", bytearray()
    while not isinstance(event := http.next_event(), h11.EndOfMessage):
        if event is h11.NEED_DATA:
            http.receive_data(await client.receive(MAX_HEAD_BYTES))
        elif isinstance(event, h11.Request):
            given = dict(event.headers).get(b"authorization", b"")
            if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                raise RequestRefusedError(401, "give the token as `Authorization: Bearer TOKEN`")
            method, path = event.method.decode(), event.target.decode(errors="replace")
            if not is_api(method, path):
                raise RequestRefusedError(404, "only GET and POST of /v1/… reach the model")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise RequestRefusedError(413, "the request is too large")
        else:
            raise anyio.EndOfStream
    return Question(method=method, path=path, body=bytes(body))


async def serve_clients(listener: Any, served: ModelCell, token: str) -> None:  # noqa: ANN401
    """Serve until cancelled. Raises `CellError` when the server or its cell has ended.

    `listener`: of anyio. More than `MAX_CLIENTS` at a time are not answered.
    """
    clients = anyio.CapacityLimiter(MAX_CLIENTS)

    async def answer(client: ByteStream) -> None:
        if clients.available_tokens < 1:
            await client.aclose()
            return
        async with clients:
            await answer_client(client, served, token)

    async with anyio.create_task_group() as answering:
        async with anyio.create_task_group() as listening:
            listening.start_soon(listener.serve, answer, answering)
            problem = await served.wait_ended()
            listening.cancel_scope.cancel()
        # Who has asked is told why
        answering.cancel_scope.deadline = anyio.current_time() + _LAST_ANSWERS_S
    raise problem
