"""A WebSocket that a stand-in has accepted: each message is on record, and sent back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import h11
import wsproto
from wsproto import events as ws
from wsproto.connection import ConnectionState
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from belljar.capture import body_of
from belljar.events import JsonValue, Kind
from belljar.network.gateway.context import ClientGoneError, RefusedRequestError
from belljar.network.gateway.site import Site, postpone
from belljar.network.ipc import Item
from belljar.signals.values import Channel

# Why a WebSocket is closed (RFC 6455 section 7.4.1).
_VIOLATES_POLICY, _TOO_BIG, _FAILED = 1008, 1009, 1011
_CONTROL: Final[Mapping[type[ws.Event], str]] = {
    ws.Ping: "ping",
    ws.Pong: "pong",
    ws.CloseConnection: "close",
}


class WebSocket:
    """A connection's WebSocket; nothing of it is sent before `run`."""

    def __init__(
        self,
        request: h11.Request,
        receive: Callable[[], Awaitable[bytes]],
        write: Callable[[bytes], Awaitable[None]],
    ) -> None:
        """`receive`, `write`: the connection's. Raises `RefusedRequestError`: no handshake."""
        self._receive, self._write = receive, write
        self._ws = wsproto.WSConnection(wsproto.ConnectionType.SERVER)
        # No extension is agreed to: compressed messages could be bombs.
        fields = [pair for pair in request.headers if pair[0] != b"sec-websocket-extensions"]
        try:
            self._ws.initiate_upgrade_connection(fields, request.target)
            list(self._ws.events())
        except (RemoteProtocolError, UnicodeError):
            raise RefusedRequestError("a WebSocket's handshake that is not one", 400) from None
        self._parts: list[Any] = []
        self._size = 0

    async def run(self, site: Site, common: Mapping[str, JsonValue]) -> None:
        """Accept it, and send each message back until either side ends it.

        `common`: fields of its events. Raises `TimeoutError` when it is idle, `ClientGoneError`,
        wsproto's `RemoteProtocolError`.
        """
        self._site, self._common = site, common
        idle_s = site.bounds.idle_timeout_s
        try:
            async with asyncio.timeout(idle_s) as idle:
                await self._write(self._ws.send(ws.AcceptConnection()))
                is_over = False
                while not is_over and (data := await self._receive()):
                    postpone(idle, idle_s)
                    self._ws.receive_data(data)
                    for event in self._ws.events():
                        is_over = is_over or await self._take(event)
        except (TimeoutError, RemoteProtocolError):
            # Bounded: a client that reads nothing would keep its exchange's place.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(site.bounds.farewell_s):
                    await self._reply(ws.CloseConnection(_FAILED))
            raise
        finally:
            if self._parts:
                self._site.post(lambda: self._item("sent", self._joined(), {"complete": False}))

    async def _take(self, event: ws.Event) -> bool:
        """Record what an event holds, and answer it; return whether it was the last."""
        if isinstance(event, ws.Message):
            self._parts.append(event.data)
            self._size += max(1, len(event.data))  # empty ones take memory, too
            if self._size > self._site.bounds.websocket_message_bytes:
                await self._reply(ws.CloseConnection(_TOO_BIG))
                return True
            if not event.message_finished:
                return False
            message = self._joined()
            self._parts, self._size = [], 0
            return await self._send_back(message)
        if (control := _CONTROL.get(type(event))) is None:
            return False
        if isinstance(event, ws.CloseConnection) and self._ws.state is ConnectionState.OPEN:
            # wsproto's word for a broken protocol, not the cell's, whose bytes are in the packets.
            await self._record("received", b"", {"close": int(event.code)})
            await self._reply(ws.CloseConnection(event.code))
            return True
        held = getattr(event, "reason" if control == "close" else "payload")
        if data := held.encode() if isinstance(held, str) else bytes(held or b""):
            # RFC 6455 section 5.5: up to 125 bytes
            await self._record("sent", data, {"control": control})
        if not isinstance(event, ws.Pong):
            await self._reply(event.response())  # type: ignore[attr-defined]
        return isinstance(event, ws.CloseConnection)

    async def _send_back(self, message: str | bytes) -> bool:
        await self._record("sent", message)
        parts = [("message", _bytes_of(message))]
        stand_in = str(self._common["stand_in"])
        if await self._site.blocks(stand_in, Channel.WEBSOCKET, parts, self._common):
            await self._record("received", b"", {"close": _VIOLATES_POLICY})
            await self._reply(ws.CloseConnection(_VIOLATES_POLICY))
            return True
        await self._record("received", message)
        kind: type[Any] = ws.TextMessage if isinstance(message, str) else ws.BytesMessage
        await self._write(self._ws.send(kind(message)))
        return False

    def _joined(self) -> str | bytes:
        is_text = isinstance(self._parts[0], str)
        return "".join(self._parts) if is_text else b"".join(map(bytes, self._parts))

    async def _reply(self, event: ws.Event) -> None:
        """Send, unless the connection is in no state for it or the client has left."""
        with contextlib.suppress(LocalProtocolError, ClientGoneError):
            await self._write(self._ws.send(event))

    async def _record(
        self, direction: str, message: str | bytes, more: Mapping[str, JsonValue] | None = None
    ) -> None:
        await self._site.record(lambda: self._item(direction, message, more or {}))

    def _item(self, direction: str, message: str | bytes, more: Mapping[str, JsonValue]) -> Item:
        content = _bytes_of(message)
        data: dict[str, JsonValue] = {
            **self._common,
            "direction": direction,
            "bytes": len(content),
            "text": isinstance(message, str),
            **more,
        }
        kept_bytes = self._site.bounds.kept_body_bytes
        bodies = (body_of("message", content, kept_bytes),) if content else ()
        return Item(Kind.NETWORK_WEBSOCKET, data, bodies)


def _bytes_of(message: str | bytes) -> bytes:
    return message.encode("utf-8", "surrogatepass") if isinstance(message, str) else message
