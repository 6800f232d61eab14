"""A gateway's process before it serves: receives sockets, confines itself.

A stand-in that keeps its event loop busy stops the heartbeat: the owner then ends the range.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

from belljar.dataclass import from_json
from belljar.network import ipc
from belljar.network.confine import Confinement, confine
from belljar.network.gateway.config import GatewayConfig, Listeners
from belljar.network.gateway.guard import warm_up
from belljar.plan.network import gateway_files

Serve = Callable[[GatewayConfig, Listeners, socket.socket], NoReturn]


def run_gateway(fds: list[int], parent: int, serve: Serve) -> NoReturn:
    """`fds`: events' socket, supervisor's socket, document, standard error."""
    events, supervisor = socket.socket(fileno=fds[0]), socket.socket(fileno=fds[1])
    ipc.wait_for_go(events, fds[3])
    document = ipc.from_file(fds[2])
    config = from_json(GatewayConfig, document["config"])
    random.seed()
    # Its pair of sockets and its epoll are the last it makes: what a descriptor holds in the kernel
    # is within no limit of a process.
    asyncio.set_event_loop(asyncio.SelectorEventLoop())
    # The supervisor makes its namespace first, and reports where the kernel's limit is reached.
    listeners = receive_listeners(supervisor)
    if listeners.dialled is None:
        supervisor.close()
    if config.guard is not None:
        warm_up(config.guard)
    cell_connections = 0 if listeners.cells is None else config.bounds.cell_connections
    box = Confinement(
        uid=document["uid"],
        directories={name: Path(path) for name, path in document["directories"].items()},
        memory_bytes=document["memory_bytes"],
        descriptors=gateway_files(config.bounds.connections, cell_connections),
    )
    confine(box, parent=parent)
    serve(config, listeners, events)
    print("the gateway has returned", file=sys.stderr, flush=True)
    os._exit(1)


def send_listeners(gateway: socket.socket, listeners: Mapping[str, socket.socket]) -> None:
    """Send listeners by name or port. Raises `OSError`, `ipc.ClosedError`."""
    names = list(listeners)
    for at in range(0, len(names), ipc.MAX_DESCRIPTORS):
        part = names[at : at + ipc.MAX_DESCRIPTORS]
        fds = [listeners[name].fileno() for name in part]
        ipc.send(gateway, {"listeners": part, "more": at + len(part) < len(names)}, fds)


def receive_listeners(supervisor: socket.socket) -> Listeners:
    """The gateway's side. Raises `ValueError`, `ipc.ClosedError`."""
    found: dict[str, socket.socket] = {}
    more = True
    while more:
        message, fds = ipc.receive(supervisor)
        found |= zip(message["listeners"], (socket.socket(fileno=fd) for fd in fds), strict=True)
        more = message["more"]
    for listener in found.values():
        listener.settimeout(0.0)
    return Listeners(
        dns_udp=found["dns_udp"],
        tcp={int(name): found[name] for name in found if name.isdecimal()},
        sink=found.get("sink"),
        cells=found.get("cells"),
        dialled=supervisor if "cells" in found else None,
    )
