"""Gateways that were taken over, and ask their owner to dial."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Callable
from typing import Any, NoReturn

from belljar.network.gateway.config import GatewayConfig, Listeners

libc = ctypes.CDLL(None, use_errno=True)


def _say(
    events: socket.socket, number: int, kind: str, data: object, body: bytes | None = None
) -> None:
    bodies: list[dict[str, Any]] = []
    if body is not None:
        digest = hashlib.sha256(body).hexdigest()
        bodies = [
            {
                "name": "question",
                "kept_bytes": len(body),
                "total_bytes": len(body),
                "sha256": digest,
            }
        ]
    events.send(json.dumps({"id": number, "kind": kind, "data": data, "bodies": bodies}).encode())
    if body:
        events.send(body)


def _ask(events: socket.socket, body: bytes) -> None:
    """Says that it serves, and asks."""
    events.setblocking(True)
    _say(events, 1, "ready", {"certificate": ""})
    events.recv(1 << 16)
    _say(events, 2, "ask", {"what": "dial"}, body)


def ask_elsewhere(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    """For a host that the plan does not have."""
    _ask(
        events,
        json.dumps(
            {"host": "elsewhere.example", "port": 443, "stand_in": "upstream:elsewhere.example"}
        ).encode(),
    )
    while events.recv(1 << 16):
        pass
    os._exit(1)


def ask_nonsense(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    """For nothing that has a meaning."""
    _ask(events, b'{"host":["good.example"],"port":443,"stand_in":"upstream:good.example"}')
    while events.recv(1 << 16):
        pass
    os._exit(1)


def turn(_config: GatewayConfig, _listeners: Listeners, events: socket.socket) -> NoReturn:
    """Is handed a connection, and tries to make another of it."""
    _ask(
        events,
        json.dumps(
            {"host": "good.example", "port": 443, "stand_in": "upstream:good.example"}
        ).encode(),
    )
    _, fds, _, _ = socket.recv_fds(events, 1 << 16, 1)
    end = socket.socket(fileno=fds[0])
    elsewhere = ("127.0.0.1", 9)

    def shut_and_reopen() -> object:
        end.shutdown(socket.SHUT_RDWR)
        return end.sendto(b"x", socket.MSG_FASTOPEN, elsewhere)

    tries: dict[str, Callable[[], object]] = {
        "write": lambda: end.send(b"x") and None,
        "connect": lambda: end.connect(elsewhere),
        "disconnect": lambda: _connect_nowhere(end),
        "fast open": lambda: end.sendto(b"x", socket.MSG_FASTOPEN, elsewhere),
        "fast open after shutdown": shut_and_reopen,
        "listen": lambda: end.listen(1),
        "bind": lambda: end.bind(("127.0.0.1", 0)),
        "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "interfaces": lambda: fcntl.ioctl(end.fileno(), 0x8912, bytes(16)),
    }
    tried = {name: _tried(action) for name, action in tries.items()}
    _say(events, 3, "network.attempt", {"stand_in": "", "what": "everything", "tried": tried})
    for _ in ("its record", "the range's end"):
        events.recv(1 << 16)
    _say(events, 4, "ended", {"unreported": 0})
    os._exit(0)


def _connect_nowhere(end: socket.socket) -> None:
    """connect(AF_UNSPEC), which would part it from its peer (connect(2))."""
    if libc.connect(end.fileno(), bytes(16), 16) < 0:
        raise OSError(ctypes.get_errno(), "")


def _tried(action: Callable[[], object]) -> str:
    try:
        action()
    except OSError as exc:
        return errno.errorcode.get(exc.errno or 0, repr(exc))
    return "written"
