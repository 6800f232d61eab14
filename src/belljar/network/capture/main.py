"""The process that reads a packet record back: shut in as a gateway is, with the record's files
open and a socket to its owner, and nothing else. A fork of the fork server.

It says its events as a gateway does (`events_wire`), without waiting for an answer, and `ready`
when all is read.
"""

from __future__ import annotations

import os
import resource
import socket
from typing import Final, NoReturn

from belljar.events import Event
from belljar.network import ipc
from belljar.network.capture.traffic_analysis import seen_exchanges
from belljar.network.confine import Confinement, confine
from belljar.network.gateway.reporter import READY, Item
from belljar.network.gateway.reporter import datagrams as datagrams_of
from belljar.network.owner.budget import Budget
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import NetworkPlan

_DESCRIPTORS: Final = 16
_GRACE_S: Final = 5


def run_reader(fds: list[int], parent: int) -> NoReturn:
    """`fds`: the owner's socket, the document, standard error, the record's files."""
    owner = socket.socket(fileno=fds[0])
    for standard in (1, 2):  # the fork server's are shared with all its children
        os.dup2(fds[2], standard)
    os.close(fds[2])
    if ipc.receive(owner) != ({"go": True}, []):
        raise ValueError("the owner has not said go")
    document = ipc.from_file(fds[1])
    processor_s, uid = int(document["processor_s"]), document["uid"]
    resource.setrlimit(resource.RLIMIT_CPU, (processor_s, processor_s + _GRACE_S))
    memory_bytes = int(document["memory_bytes"])
    confine(
        Confinement(uid=uid, directories={}, memory_bytes=memory_bytes, descriptors=_DESCRIPTORS),
        parent=parent,
    )
    events = seen_exchanges(
        [os.fdopen(fd, "rb") for fd in fds[3:]],
        RangeLayout.from_json(document["layout"]),
        NetworkPlan.from_json(document["network"]),
        range_id=str(document["range"]),
        budget=Budget(**document["budget"]),
    )
    number = 0
    for number, event in enumerate(events, 1):
        _say(owner, number, event)
    for piece in datagrams_of(number + 1, Item(READY, {})):
        owner.send(piece)
    os._exit(0)


def _say(owner: socket.socket, number: int, event: Event) -> None:
    for piece in datagrams_of(number, Item(event.kind, event.data, event.bodies)):
        owner.send(piece)
