"""WebSockets: frames accounted for (RFC 6455 section 5.2).

Each message is on record before it is passed on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from belljar.capture import body_of
from belljar.events import JsonValue, Kind
from belljar.network.gateway.context import App, Message, Receive, Scope, Send
from belljar.network.gateway.site import Account, Site, postpone
from belljar.network.ipc import Item
from belljar.signals.values import Channel

_CONTROL: Final = {0x8: "ws_close", 0x9: "ws_ping", 0xA: "ws_pong"}
_OF_MESSAGES: Final = frozenset({0x0, 0x1, 0x2})
_MASK_BYTES: Final = 4
# Bytes of an extended length, and the smallest length that needs it.
_LENGTHS: Final = {126: (2, 126), 127: (8, 1 << 16)}


class WebSocketFrames:
    """Reads frames beside the library, up to an unknown one."""

    def __init__(self, account: Account) -> None:
        self._account = account
        self._head = bytearray()
        self._mask = b""
        self._left = self._at = 0
        self._control = ""
        self._messages = bytearray()
        self._is_lost = False

    def feed(self, data: bytes) -> None:
        """More bytes of the connection."""
        view = memoryview(data)
        while view and not self._is_lost:
            if self._left:
                taken = bytes(view[: self._left])
                view = view[len(taken) :]
                plain = unmasked(taken, self._mask, self._at)
                self._left -= len(taken)
                self._at += len(taken)
                if self._control:
                    self._account.remain(self._control, plain)
                else:
                    self._messages += plain
            else:
                self._head.append(view[0])
                view = view[1:]
                self._begin()
        self._account.remain("ws_unknown", bytes(view))

    def _begin(self) -> None:
        head = self._head
        if len(head) < 2:
            return
        kind, short = head[0] & 0x0F, head[1] & 0x7F
        extended, smallest = _LENGTHS.get(short, (0, 0))
        is_control = kind in _CONTROL
        is_known = (is_control and head[0] & 0x80 and not extended) or kind in _OF_MESSAGES
        if head[0] & 0x70 or not head[1] & 0x80 or not is_known:
            self._lose()
            return
        if len(head) < 2 + extended + _MASK_BYTES:
            return
        length = int.from_bytes(head[2 : 2 + extended], "big") if extended else short
        if length < smallest or length >= 1 << 63:
            self._lose()
            return
        self._mask, self._left, self._at = bytes(head[-_MASK_BYTES:]), length, 0
        self._control = _CONTROL.get(kind, "")
        self._account.frame(len(head) - _MASK_BYTES)
        self._account.remain("ws_mask", self._mask)
        head.clear()

    def _lose(self) -> None:
        self._is_lost = True
        self._account.remain("ws_unknown", bytes(self._head))
        self._head.clear()

    def record(self, size: int) -> None:
        """The first `size` message bytes are recorded."""
        size = min(size, len(self._messages))
        del self._messages[:size]
        self._account.record(size)

    def leave(self) -> None:
        """Give what made no message to the remainder."""
        self._account.remain("ws_unknown", bytes(self._head))
        self._head.clear()
        self._account.remain("ws_message", bytes(self._messages))
        self._messages.clear()


def unmasked(data: bytes, mask: bytes, at: int) -> bytes:
    """A piece of a payload, from offset `at`."""
    turned = mask[at % _MASK_BYTES :] + mask[: at % _MASK_BYTES]
    key = (turned * (len(data) // _MASK_BYTES + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(len(data), "big")


class WebSocketRecord:
    """Both ways. `status`: the handshake's answer."""

    def __init__(
        self,
        site: Site,
        common: Mapping[str, JsonValue],
        receive: Receive,
        send: Send,
        count: Callable[[int], None],
    ) -> None:
        """`count`: called with recorded message bytes."""
        self._site, self._common_fields, self._count = site, common, count
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
        if direction == "sent":
            self._count(len(content))
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
