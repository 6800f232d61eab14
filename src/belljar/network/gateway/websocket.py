"""One WebSocket between a cell and a stand-in: each message is on record before it is passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from belljar.events import JsonValue, Kind
from belljar.network.gateway.context import App, Message, Receive, Scope, Send, kept_body
from belljar.network.gateway.reporter import Item
from belljar.network.gateway.site import Site
from belljar.signals.values import Channel


class WebSocketRecord:
    """Both ways of a WebSocket. `status` is what its handshake was answered with."""

    def __init__(
        self,
        site: Site,
        tie: Mapping[str, JsonValue],
        receive: Receive,
        send: Send,
        count: Callable[[int], None],
    ) -> None:
        """`count`: is told how many bytes of the cell's messages are recorded."""
        self._site, self._tie, self._count = site, tie, count
        self._upstream, self._downstream = receive, send
        self._idle: asyncio.Timeout | None = None
        self.status: int | None = None

    async def run(self, app: App, scope: Scope, before_open: Callable[[], Awaitable[None]]) -> None:
        """Lets `app` talk, until it returns or neither side has said anything for `idle_timeout_s`
        (`TimeoutError`).
        """
        self._before_open = before_open
        async with asyncio.timeout(self._site.bounds.idle_timeout_s) as self._idle:
            await app(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        message = await self._upstream()
        self._stirred()
        if message["type"] == "websocket.receive":
            await self._record("sent", message)
            content = _content(message)
            looked = self._site.guard.look(
                str(self._tie["stand_in"]), Channel.WEBSOCKET, [("message", content)], self._tie
            )
            if looked.items:
                await self._site.reporter.record(*looked.items)
            if looked.blocked:
                # RFC 6455 section 7.4.1: 1008 is a policy violation.
                await self._send({"type": "websocket.close", "code": 1008})
                return {"type": "websocket.disconnect", "code": 1008}
        return message

    async def _send(self, message: Message) -> None:
        self._stirred()
        if self.status is None:
            await self._before_open()
            self.status = _status(message)
        elif message["type"] in ("websocket.send", "websocket.close"):
            await self._record("received", message)
        await self._downstream(message)

    def broke_off(self, begun: str | bytes) -> None:
        """Puts on record what there is of the cell's message that will not be whole any more."""
        is_text = isinstance(begun, str)
        message: Message = {"type": "websocket.receive", "text" if is_text else "bytes": begun}
        self._site.tell(lambda: self._item("sent", message, {"complete": False}))

    def _stirred(self) -> None:
        if self._idle is not None and not self._idle.expired():
            self._idle.reschedule(
                asyncio.get_running_loop().time() + self._site.bounds.idle_timeout_s
            )

    async def _record(self, direction: str, message: Message) -> None:
        await self._site.reporter.record(self._item(direction, message, {}))

    def _item(self, direction: str, message: Message, more: Mapping[str, JsonValue]) -> Item:
        text, content = message.get("text"), _content(message)
        if direction == "sent":
            self._count(len(content))
        data: dict[str, JsonValue] = {
            **self._tie,
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
            (kept_body("message", content, self._site.bounds.kept_body_bytes),) if content else ()
        )
        return Item(Kind.NETWORK_WEBSOCKET, data, bodies)


def _content(message: Message) -> bytes:
    text = message.get("text")
    return (
        text.encode("utf-8", "surrogatepass")
        if text is not None
        else bytes(message.get("bytes") or b"")
    )


def _status(message: Message) -> int:
    if message["type"] == "websocket.accept":
        return 101
    return int(message.get("status", 403))
