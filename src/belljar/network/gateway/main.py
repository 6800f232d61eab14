"""A gateway's process before it serves: receives sockets, confines itself.

Its event loop interrupts a stand-in that keeps it busy.
"""

from __future__ import annotations

import asyncio
import os
import random
import selectors
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from belljar.network import ipc
from belljar.network.confine import Confinement, confine
from belljar.network.gateway.config import GatewayConfig, Listeners
from belljar.network.gateway.guard import warm_up
from belljar.plan.network import gateway_files

_LOOK_EVERY_S: Final = 0.02
"""Of processor time: short, since a guest can have all its requests ready in one turn, and each
gets that much once the first was interrupted. Python hears of a signal between two of its own
steps, and within a search by a regular expression.
"""
_STAND_INS: Final = "belljar.network.stand_ins"


class Standstill(Exception):  # noqa: N818 - it is what happened
    """The loop has not turned for too long."""


class _TurnSelector(selectors.EpollSelector):
    """Knows when its loop last turned."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.last_s = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors`."""
        found = super().select(timeout)
        self.count += 1
        self.last_s = time.monotonic()
        return found


def watched_loop(limit_s: float) -> asyncio.AbstractEventLoop:
    """An event loop that interrupts a stand-in blocking it for `limit_s`."""
    turns = _TurnSelector()

    def look(_number: int, frame: FrameType | None) -> None:
        if (
            turns.count > 1
            and time.monotonic() - turns.last_s >= limit_s
            and is_stand_in_code(frame)
        ):
            raise Standstill(f"the loop has not turned for {limit_s} s")

    signal.signal(signal.SIGVTALRM, look)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LOOK_EVERY_S, _LOOK_EVERY_S)
    return asyncio.SelectorEventLoop(turns)


def is_stand_in_code(frame: FrameType | None) -> bool:
    """Whether a stand-in's code runs; ours is never interrupted."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name.startswith("belljar."):
            return name.startswith(_STAND_INS)
        frame = frame.f_back
    return False


Serve = Callable[[GatewayConfig, Listeners, socket.socket], NoReturn]


def run_gateway(fds: list[int], parent: int, serve: Serve) -> NoReturn:
    """`fds`: events' socket, supervisor's socket, document, standard error."""
    events, supervisor = socket.socket(fileno=fds[0]), socket.socket(fileno=fds[1])
    ipc.wait_for_go(events, fds[3])
    document = ipc.from_file(fds[2])
    config = GatewayConfig.from_json(document["config"])
    random.seed()
    # Its pair of sockets and its epoll are the last it makes: what a descriptor holds in the kernel
    # is within no limit of a process.
    asyncio.set_event_loop(watched_loop(config.bounds.standstill_s))
    # The supervisor makes its namespace first, and reports where the kernel's limit is reached.
    listeners = receive_listeners(supervisor)
    if listeners.dialled is None:
        supervisor.close()
    if config.guard is not None:
        warm_up(config.guard)
    uid = document["uid"]
    box = Confinement(
        uid=None if uid is None else int(uid),
        directories={str(name): Path(path) for name, path in document["directories"].items()},
        memory_bytes=int(document["memory_bytes"]),
        descriptors=gateway_files(
            config.bounds.connections,
            0 if listeners.cells is None else config.bounds.cell_connections,
        ),
    )
    confine(box, parent=parent)
    serve(config, listeners, events)
    print("the gateway has returned", file=sys.stderr, flush=True)
    os._exit(1)


def send_listeners(gateway: socket.socket, listeners: Mapping[str, socket.socket]) -> None:
    """Send listeners by name or port. Raises `OSError`, `ipc.Closed`."""
    names = list(listeners)
    for at in range(0, len(names), ipc.MAX_DESCRIPTORS):
        part = names[at : at + ipc.MAX_DESCRIPTORS]
        fds = [listeners[name].fileno() for name in part]
        ipc.send(gateway, {"listeners": part, "more": at + len(part) < len(names)}, fds)


def receive_listeners(supervisor: socket.socket) -> Listeners:
    """The gateway's side. Raises `ValueError`, `ipc.Closed`."""
    found: dict[str, socket.socket] = {}
    more = True
    while more:
        message, fds = ipc.receive(supervisor)
        found |= {
            name: socket.socket(fileno=fd)
            for name, fd in zip(message["listeners"], fds, strict=True)
        }
        more = bool(message["more"])
    for listener in found.values():
        listener.settimeout(0.0)
    tcp = {int(name): listener for name, listener in found.items() if name.isdecimal()}
    return Listeners(
        dns_udp=found["dns_udp"],
        dns_tcp=found["dns_tcp"],
        tcp=tcp,
        sink=found.get("sink"),
        cells=found.get("cells"),
        dialled=supervisor if "cells" in found else None,
    )
