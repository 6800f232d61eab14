"""WebSockets: each message is on record before it is passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from belljar.capture import body_of
from belljar.events import JsonValue, Kind
from belljar.network.gateway.context import App, Message, Receive, Scope, Send
from belljar.network.gateway.site import Site, postpone
from belljar.network.ipc import Item
from belljar.signals.values import Channel


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
