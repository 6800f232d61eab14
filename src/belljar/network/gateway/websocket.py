"""WebSockets: each message is on record before it is passed on."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import h11
import wsproto
from wsproto import events as ws
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from belljar.capture import body_of
from belljar.events import JsonValue, Kind
from belljar.network.gateway.config import Bounds
from belljar.network.gateway.context import (
    App,
    ClientGoneError,
    Message,
    Receive,
    RefusedRequestError,
    Scope,
    Send,
)
from belljar.network.gateway.site import Site, postpone
from belljar.network.ipc import Item
from belljar.signals.values import Channel

if TYPE_CHECKING:
    from belljar.network.gateway.http1 import RequestParser


class Connection(Protocol):
    """What a WebSocket needs of its connection."""

    parser: RequestParser

    async def receive(self) -> bytes:
        """Return what comes next, or b"" at the end."""
        ...

    async def write(self, *pieces: bytes) -> None:
        """Return when the kernel has the pieces. Raises `ClientGoneError`."""
        ...

    async def wait_until_left(self) -> None:
        """Return when the client has left."""
        ...


# Where `scope["state"]` has the `WebSocketRecord`, once there is one.
WEBSOCKET: Final = "websocket"
Fields: TypeAlias = list[tuple[bytes, bytes]]


class WebSocketRecord:
    """Both ways. `status`: the handshake's answer."""

    def __init__(
        self,
        site: Site,
        common: Mapping[str, JsonValue],
        receive: Receive,
        send: Send,
    ) -> None:
        self._site, self._common_fields = site, common
        self._upstream, self._downstream = receive, send
        self._idle: asyncio.Timeout | None = None
        self.status: int | None = None

    async def run(self, app: App, scope: Scope, before_open: Callable[[], Awaitable[None]]) -> None:
        """Run `app` until idle (`TimeoutError`)."""
        self._before_open = before_open
        async with asyncio.timeout(self._site.bounds.idle_timeout_s) as self._idle:
            await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        message = await self._upstream()
        postpone(self._idle, self._site.bounds.idle_timeout_s)
        if message["type"] == "websocket.receive":
            await self._record("sent", message)
            content = _content(message)
            if await self._site.blocks(
                str(self._common_fields["stand_in"]),
                Channel.WEBSOCKET,
                [("message", content)],
                self._common_fields,
            ):
                # RFC 6455 section 7.4.1: 1008 is a policy violation.
                await self._send({"type": "websocket.close", "code": 1008})
                return {"type": "websocket.disconnect", "code": 1008}
        return message

    async def _send(self, message: Message) -> None:
        postpone(self._idle, self._site.bounds.idle_timeout_s)
        if self.status is None:
            await self._before_open()
            is_accepted = message["type"] == "websocket.accept"
            self.status = 101 if is_accepted else int(message.get("status", 403))
        elif message["type"] in ("websocket.send", "websocket.close"):
            await self._record("received", message)
        await self._downstream(message)

    def record_unfinished(self, begun: str | bytes) -> None:
        """Record a message that stays incomplete."""
        is_text = isinstance(begun, str)
        message: Message = {"type": "websocket.receive", "text" if is_text else "bytes": begun}
        self._site.post(lambda: self._item("sent", message, {"complete": False}))

    async def record_control(self, control: str, data: bytes) -> None:
        """Record what a control frame holds (RFC 6455 section 5.5: up to 125 bytes)."""
        message: Message = {"type": "websocket.receive", "bytes": data}
        await self._site.record(lambda: self._item("sent", message, {"control": control}))

    async def _record(self, direction: str, message: Message) -> None:
        await self._site.record(lambda: self._item(direction, message, {}))

    def _item(self, direction: str, message: Message, more: Mapping[str, JsonValue]) -> Item:
        text, content = message.get("text"), _content(message)
        data: dict[str, JsonValue] = {
            **self._common_fields,
            "direction": direction,
            "bytes": len(content),
            "text": text is not None,
            **(
                {"close": int(message.get("code", 1000))}
                if message["type"] == "websocket.close"
                else {}
            ),
            **more,
        }
        bodies = (
            (body_of("message", content, self._site.bounds.kept_body_bytes),) if content else ()
        )
        return Item(Kind.NETWORK_WEBSOCKET, data, bodies)


def _content(message: Message) -> bytes:
    text = message.get("text")
    return (
        text.encode("utf-8", "surrogatepass")
        if text is not None
        else bytes(message.get("bytes") or b"")
    )


class WebSocketExchange:
    """The application's side of one WebSocket."""

    may_go_on = False

    def __init__(
        self, connection: Connection, request: h11.Request, scope: Scope, bounds: Bounds
    ) -> None:
        """Raises `RefusedRequestError` for a handshake that is none."""
        self._connection, self._scope = connection, scope
        self._max_bytes = bounds.websocket_message_bytes
        self._ws = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
        # No extension is agreed to: compressed messages could be bombs.
        fields = [pair for pair in request.headers if pair[0] != b"sec-websocket-extensions"]
        try:
            self._ws.initiate_upgrade_connection(fields, request.target)
            (asked,) = self._ws.events()
        except (RemoteProtocolError, UnicodeError):
            raise RefusedRequestError("a WebSocket's handshake that is not one", 400) from None
        scope["subprotocols"] = list(getattr(asked, "subprotocols", ()))
        self._events: deque[ws.Event] = deque()
        self._parts: list[Any] = []
        self._size = 0
        self._has_connected = self._is_over = False
        self._rejection: tuple[int, Fields] | None = None

    @property
    def _is_open(self) -> bool:
        return self._ws.state is wsproto.connection.ConnectionState.OPEN

    async def receive(self) -> Message:
        """Return the client's next message, or that it has left."""
        if not self._has_connected:
            self._has_connected = True
            return {"type": "websocket.connect"}
        if self._ws.connection is None:  # not accepted
            await self._connection.wait_until_left()
            self._is_over = True
        code = 1006
        while self._events or not self._is_over:
            if not self._events:
                await self._read()
                continue
            event = self._events.popleft()
            if isinstance(event, ws.Message):
                self._parts.append(event.data)
                self._size += max(1, len(event.data))  # empty ones take memory, too
                if self._size > self._max_bytes:
                    code = 1009
                    await self._reply(ws.CloseConnection(code))
                    break
                if event.message_finished:
                    return self._message()
            elif isinstance(event, ws.Ping):
                await self._record_control("ping", bytes(event.payload))
                await self._reply(event.response())
            elif isinstance(event, ws.Pong):
                await self._record_control("pong", bytes(event.payload))
            elif isinstance(event, ws.CloseConnection):
                code = int(event.code)
                await self._record_control("close", (event.reason or "").encode())
                await self._reply(event.response())
                break
        self._is_over = True
        self._events.clear()
        self._record_unfinished()
        return {"type": "websocket.disconnect", "code": code}

    async def _read(self) -> None:
        held = self._connection.parser.held
        data = bytes(held) or await self._connection.receive()
        held.clear()
        self._is_over = not data
        if data:
            self._ws.receive_data(data)
            self._events.extend(self._ws.events())

    def _message(self) -> Message:
        parts, self._parts, self._size = self._parts, [], 0
        is_text = isinstance(parts[0], str)
        content = "".join(parts) if is_text else b"".join(map(bytes, parts))
        return {"type": "websocket.receive", "text" if is_text else "bytes": content}

    async def _reply(self, event: ws.Event) -> None:
        """Send, unless the connection is in no state for it or the client has left."""
        with contextlib.suppress(LocalProtocolError, ClientGoneError):
            await self._connection.write(self._ws.send(event))

    async def send(self, message: Message) -> None:
        """Send a message of the application's. Raises `ClientGoneError`, `LocalProtocolError`."""
        kind = message["type"]
        fields: Fields = list(message.get("headers", ()))
        events: list[ws.Event] = []
        if kind == "websocket.accept":
            chosen = message.get("subprotocol")
            events.append(ws.AcceptConnection(subprotocol=chosen, extra_headers=fields))
        elif kind == "websocket.http.response.start":
            self._rejection = int(message["status"]), [*fields, (b"connection", b"close")]
        elif kind == "websocket.http.response.body":
            if self._rejection is not None:
                status, fields = self._rejection
                events.append(ws.RejectConnection(status, fields, has_body=True))
                self._rejection = None
            is_last = not message.get("more_body", False)
            events.append(ws.RejectData(bytes(message.get("body", b"")), body_finished=is_last))
        elif kind == "websocket.close" and self._ws.connection is None:
            events.append(ws.RejectConnection(403, [(b"connection", b"close")]))
        elif kind == "websocket.close":
            events.append(ws.CloseConnection(int(message.get("code", 1000)), message.get("reason")))
        elif message.get("text") is not None:
            events.append(ws.TextMessage(message["text"]))
        else:
            events.append(ws.BytesMessage(bytes(message["bytes"])))
        if self._is_over and not self._is_open:
            raise ClientGoneError("the connection ended")
        await self._connection.write(*[self._ws.send(event) for event in events])

    async def _record_control(self, control: str, data: bytes) -> None:
        record = self._scope["state"].get(WEBSOCKET)
        if data and record is not None:
            await record.record_control(control, data)

    def _record_unfinished(self) -> None:
        """Record the part of a message that came before the end."""
        record = self._scope["state"].get(WEBSOCKET)
        if self._parts and record is not None:
            message = self._message()
            record.record_unfinished(message.get("text") or message.get("bytes"))

    async def end(self) -> None:
        """Close it when the application has returned."""
        self._record_unfinished()
        if self._ws.connection is None:
            await self._reply(ws.RejectConnection(500, [(b"connection", b"close")]))
        else:
            await self._reply(ws.CloseConnection(1011))
