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
    connections: int = 10_000  # Open at one time: a further one is reset, and counted.
    connections_per_cell: int = 1_000  # Likewise: their heads are at most 64 MiB.
    cell_connections: int = 1_000  # Between two cells, with halves that wait for the other.
    tls_connections: int = 2_000  # Likewise, of those with TLS (about 60 KiB each).
    handshake_timeout_s: float = 10.0  # From a connection's begin: closed, refused by name.
    handshake_bytes: int = 32 << 10  # Received before the end of a TLS handshake: likewise.
    head_timeout_s: float = 10.0  # Of a request's head (slow-loris): closed, refused by name.
    idle_timeout_s: float = 60.0  # A connection without a request, a stream without a byte: closed.
    connection_timeout_s: float = 3600.0  # A connection's whole life: closed.
    head_bytes: int = 64 << 10  # A request's head: 431.
    headers: int = 128  # Fields of a request's head: 431.
    body_bytes: int = MAX_BODY_BYTES  # A request's body: 413, and the connection is closed.
    request_timeout_s: float = 300.0  # From a request's head to the end of its answer: closed.
    exchanges: int = 256  # Requests being answered at one time: 503.
    bodies_bytes: int = 128 << 20  # Of all open requests: 503, and the connection is closed.
    stream_bytes: int = 256 << 20  # Of a raw stream, both ways together: closed.
    upstream_exchange_s: float = 120.0  # From asking for a connection: 504, or it is cut off.
    upstream_exchanges: int = 8  # Connections to one upstream: further requests wait.
    questions: int = 64  # Requests to the owner without an answer: a further one fails.
    kept_body_bytes: int = 64 << 10  # Of each body in a record: the rest is in the digest.
    kept_stream_bytes: int = 4 << 10  # Kept of each direction of a raw stream or the sink.
    kept_between_bytes: int = 256 << 10  # Between two cells, where no stand-in records.
    sink_wait_s: float = 2.0  # How long the sink waits for first bytes.
    unrecorded_bytes: int = 16 << 20  # Events on their way to the owner: further ones wait.
    dns_pending: int = 1_000  # Queries that wait for the record: others wait in the kernel.
    alive_every_s: float = 5.0  # A heartbeat: a stand-in that blocks it ends the range.
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


# By port or name: `dns_udp`, `sink`, `cells`; `dialled` brings the other halves to cells.
Listeners: TypeAlias = Mapping[str, socket.socket]
