"""A WebSocket's frames as a cell sends them, and what of their bytes is no message's. Sans-io.

RFC 6455 section 5.2.
"""

from __future__ import annotations

from typing import Final

from belljar.network.gateway.account import Account

_CONTROL: Final = {0x8: "ws_close", 0x9: "ws_ping", 0xA: "ws_pong"}
_OF_MESSAGES: Final = frozenset({0x0, 0x1, 0x2})
_MASK_BYTES: Final = 4
_MAX_CONTROL_BYTES: Final = 125
_LENGTHS: Final = {126: (2, 126), 127: (8, 1 << 16)}
"""Bytes of an extended length, and the least that needs it."""


class WebSocketFrames:
    """Reads frames beside the library.

    What it does not know, and all that follows, is the remainder's.
    """

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
                taken = view[: self._left]
                self._payload(bytes(taken))
                view = view[len(taken) :]
            else:
                self._head.append(view[0])
                view = view[1:]
                self._begin()
        self._account.remain("ws_unknown", bytes(view))

    def _begin(self) -> None:
        """A frame's header, when it is whole."""
        head = self._head
        if len(head) < 2:
            return
        kind, short = head[0] & 0x0F, head[1] & 0x7F
        extended, least = _LENGTHS.get(short, (0, 0))
        is_control = kind in _CONTROL
        is_known = (is_control and head[0] & 0x80 and not extended) or kind in _OF_MESSAGES
        if head[0] & 0x70 or not head[1] & 0x80 or not is_known:
            self._lose()
            return
        if len(head) < 2 + extended + _MASK_BYTES:
            return
        length = int.from_bytes(head[2 : 2 + extended], "big") if extended else short
        if length < least or length >= 1 << 63:
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

    def _payload(self, data: bytes) -> None:
        plain = unmasked(data, self._mask, self._at)
        self._left -= len(data)
        self._at += len(data)
        if self._control:
            self._account.remain(self._control, plain)
        else:
            self._messages += plain

    def record(self, size: int) -> None:
        """So many bytes of messages, from the first on, are recorded now."""
        size = min(size, len(self._messages))
        del self._messages[:size]
        self._account.record(size)

    def leave(self) -> None:
        """Nothing more comes: what no message was made of remains."""
        self._account.remain("ws_unknown", bytes(self._head))
        self._head.clear()
        self._account.remain("ws_message", bytes(self._messages))
        self._messages.clear()


def unmasked(data: bytes, mask: bytes, at: int) -> bytes:
    """A piece of a payload that begins `at` bytes in."""
    turned = mask[at % _MASK_BYTES :] + mask[: at % _MASK_BYTES]
    key = (turned * (len(data) // _MASK_BYTES + 1))[: len(data)]
    return (int.from_bytes(data, "big") ^ int.from_bytes(key, "big")).to_bytes(len(data), "big")
