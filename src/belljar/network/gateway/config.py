"""What a gateway is started with."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from belljar.network.decide import UPSTREAM
from belljar.network.gateway.bounds import Bounds
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import PortPlan, StandInPlan, UpstreamPlan
from belljar.policy.guarding import Action, Place
from belljar.signals.values import ScanSpec

HTTP_PORT: Final = 80
"""Of an upstream: at all others TLS is spoken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardConfig:
    """What a gateway's guard is made of. JSON both ways."""

    spec: ScanSpec
    actions: Mapping[Place, Action]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"spec": self.spec.to_json(), "actions": dict(self.actions)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GuardConfig:
        """The inverse of `to_json`. Raises `ValueError`, `KeyError` or `TypeError`."""
        actions = {Place(place): Action(action) for place, action in data["actions"].items()}
        return cls(spec=ScanSpec.from_json(data["spec"]), actions=actions)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayConfig:
    """A gateway's part of a range. JSON both ways.

    Args:
        layout: addresses and names.
        stand_ins: with `directory` as seen in the gateway's own root; cells as `as_neighbour` makes
            them.
        range_seed: hex, at least 32 digits; what stand-ins draw their randomness from. Keys are
            never made from it.
        scratch: a directory that the gateway may write to, 1 MiB in memory: a leaf's certificate is
            there for as long as OpenSSL takes to read it.
        bounds: see its type.
        guard: what holds back what cells send; None: nothing is.
        authorities: the certificates that upstreams are checked by, PEM; the gateway can open no
            file.
    """

    layout: RangeLayout
    stand_ins: tuple[StandInPlan, ...]
    range_seed: str
    scratch: Path = Path("/t")
    bounds: Bounds = field(default_factory=Bounds)
    authorities: str = ""
    guard: GuardConfig | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "layout": self.layout.to_json(),
            "stand_ins": [item.to_json() for item in self.stand_ins],
            "range_seed": self.range_seed,
            "scratch": str(self.scratch),
            "bounds": asdict(self.bounds),
            "authorities": self.authorities,
            "guard": None if self.guard is None else self.guard.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> GatewayConfig:
        """The inverse of `to_json`.

        Raises `ValueError`, `KeyError` or `TypeError` for data that isn't a config.
        """
        seed = str(data["range_seed"])
        if len(bytes.fromhex(seed)) < 16:
            raise ValueError("a range's seed has at least 16 bytes")
        return cls(
            layout=RangeLayout.from_json(data["layout"]),
            stand_ins=tuple(StandInPlan.from_json(item) for item in data["stand_ins"]),
            range_seed=seed,
            scratch=Path(data["scratch"]),
            bounds=Bounds.from_json(data["bounds"]),
            authorities=str(data["authorities"]),
            guard=None if data["guard"] is None else GuardConfig.from_json(data["guard"]),
        )


def as_neighbour(cell: StandInPlan) -> StandInPlan:
    """A cell as the gateway is told of it: in which networks it is, and nothing of what
    runs there.
    """
    return StandInPlan(
        id=cell.id, kind=cell.kind, names=(), ports=(), settings={"networks": sorted(cell.networks)}
    )


def as_stand_in(upstream: UpstreamPlan) -> StandInPlan:
    """A real upstream as the gateway sees it: what has a name, ports and an address in the range,
    of the kind `upstream`.
    """
    ports = (
        PortPlan(number=port, protocol="http" if port == HTTP_PORT else "tls")
        for port in upstream.ports
    )
    settings = {"methods": list(upstream.methods), "budget_bytes": upstream.budget_bytes}
    return StandInPlan(
        id=upstream.id, kind=UPSTREAM, names=(upstream.host,), ports=tuple(ports), settings=settings
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The sockets that the gateway works on: bound to 0.0.0.0 in the range's namespace, TCP ones
    listening. `tcp` by port number.
    """

    dns_udp: socket.socket
    dns_tcp: socket.socket
    tcp: Mapping[int, socket.socket]
    sink: socket.socket | None = None
