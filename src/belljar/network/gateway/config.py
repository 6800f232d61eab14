"""The documents that start a gateway, and its bounds."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from belljar.network.decide import UPSTREAM
from belljar.network.stand_ins.web import MAX_BODY_BYTES
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import PortPlan, StandInPlan, UpstreamPlan
from belljar.policy.guarding import Action, Place
from belljar.signals.values import ScanSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    # Open at one time: a further one is reset, and counted (`limit.hit`).
    connections: int = 10_000
    # Likewise, of one cell: their unfinished heads are at most 64 MiB.
    connections_per_cell: int = 1_000
    # Likewise, between two cells; a half of one that the other has not joined yet counts too.
    cell_connections: int = 1_000
    tls_connections: int = 2_000  # Likewise, of those with TLS (about 60 KiB each).
    # From a connection's begin to its TLS handshake's end: closed, refused by name.
    handshake_timeout_s: float = 10.0
    handshake_bytes: int = 32 << 10  # Received before the end of a TLS handshake: likewise.
    # From the first byte of a request's head to its last (slow-loris): closed, refused by name.
    head_timeout_s: float = 10.0
    idle_timeout_s: float = 60.0  # A connection without a request, a stream without a byte: closed.
    connection_timeout_s: float = 3600.0  # A connection's whole life: closed.
    head_bytes: int = 64 << 10  # A request's head: 431.
    headers: int = 128  # Fields of a request's head: 431.
    body_bytes: int = MAX_BODY_BYTES  # A request's body: 413, and the connection is closed.
    request_timeout_s: float = 300.0  # From a request's head to the end of its answer: closed.
    exchanges: int = 256  # Requests being answered at one time: 503.
    # Of the bodies of all open requests: 503, and the connection is closed.
    bodies_bytes: int = 128 << 20
    stream_bytes: int = 256 << 20  # Of a raw stream, both ways together: closed.
    # From asking for a connection to the end of the answer: 504, or the answer is cut off.
    upstream_exchange_s: float = 120.0
    upstream_exchanges: int = 8  # Connections to one upstream: further requests wait.
    # Requests to the owner without an answer, even if what asked is over: a further one fails.
    questions: int = 64
    # Kept of each body in a record: the rest is counted, and in the digest.
    kept_body_bytes: int = 64 << 10
    kept_stream_bytes: int = 4 << 10  # Kept of each direction of a raw stream or the sink.
    # Likewise between two cells, where no stand-in records what was meant.
    kept_between_bytes: int = 256 << 10
    sink_wait_s: float = 2.0  # How long the sink waits for first bytes.
    unrecorded_bytes: int = 16 << 20  # Events on their way to the owner: further ones wait.
    # Queries that wait for the record: a further datagram waits in the kernel.
    dns_pending: int = 1_000
    # How often the owner hears that the loop turns: a stand-in that blocks it ends the range.
    alive_every_s: float = 5.0
    leaf_certificates: int = 128  # Kept made: the one longest unused is forgotten.


HTTP_PORT: Final = 80  # Of an upstream: all others use TLS.
FILES_ROOT: Final = "/s"  # Of stand-ins' directories, in the gateway's root.


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    spec: ScanSpec
    actions: Mapping[Place, Action]


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    layout: RangeLayout
    stand_ins: tuple[StandInPlan, ...]  # With `directory` as in the gateway's root.
    scratch: Path = Path("/t")  # In memory, for keys and secrets while they are read.
    bounds: Bounds = field(default_factory=Bounds)
    authorities: str = ""  # PEM
    guard: GuardConfig | None = None


def as_stand_in(upstream: UpstreamPlan) -> StandInPlan:
    return StandInPlan(
        id=upstream.id,
        kind=UPSTREAM,
        names=(upstream.host,),
        ports=tuple(
            PortPlan(number=port, protocol="http" if port == HTTP_PORT else "tls")
            for port in upstream.ports
        ),
        settings={"methods": list(upstream.methods)},
    )


# Bound to 0.0.0.0 in the range's namespace, by port or name: `dns_udp`, `sink`, and `cells`, which
# takes connections to cells; `dialled` brings their other halves from the supervisor.
Listeners: TypeAlias = Mapping[str, socket.socket]
