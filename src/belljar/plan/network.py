"""What a range's network is to be: stand-ins, real upstreams, bounds.

Frozen data without an address in it; addresses are `plan.addresses`'.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from belljar.dataclass import dataclass
from belljar.errors import PolicyError
from belljar.plan.jail import GroupLimits
from belljar.policy import Network
from belljar.policy.guarding import SERVICE_PORTS, DecoySpec
from belljar.policy.hosts import ALL_PORTS
from belljar.policy.network import OWN_CELL, OwnCell
from belljar.policy.stand_ins import StandIn

DNS_PORT: Final = 53
TARGET_KINDS: Final = frozenset({"cell", "python"})
"""Kinds that a target cell answers, and not the gateway."""
TLS_PORTS: Final = frozenset({443, 8443})
"""Where a decoy service that speaks HTTP does so over TLS."""
DIAL_BYTES: Final = 512
"""What a dial takes of an upstream's budget: the packets that begin and end a TCP connection,
counted generously.
"""
Default: TypeAlias = Literal["deny", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPlan:
    """A TCP port of a stand-in. Protocols: `http`, `tls` (HTTP over it), `tcp`, `smtp`, `smtps`."""

    number: int
    protocol: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInPlan:
    """One stand-in.

    `names` are host names in lower case, A-labels only; one that begins with `*.` stands for
    exactly one more label, and an exact name wins over it. `settings` are the kind's own fields,
    checked in shape; a file that they name is relative to `directory`, the host path of the
    stand-in's own files, which the gateway sees read-only, whole, and nothing beside it. A field
    that names a directory (`packages`, `repositories`, `files`) *is* `directory` and is not among
    the settings.
    """

    id: str
    kind: str
    names: tuple[str, ...]
    ports: tuple[PortPlan, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None
    all_ports: bool = False
    """A target cell's: every TCP port of it can be reached."""

    @property
    def is_target(self) -> bool:
        """Whether a target cell answers it: the router forwards, the gateway is not asked."""
        return self.kind in TARGET_KINDS

    @property
    def networks(self) -> frozenset[str]:
        """A cell's: the networks it is in; empty: every one."""
        return frozenset(self.settings.get("networks") or ())

    @property
    def awaits(self) -> tuple[str, ...] | None:
        """A target cell's: those before it that must be healthy when it starts; None: all."""
        awaited = self.settings.get("awaits")
        return None if awaited is None else tuple(awaited)

    def is_apart_from(self, other: StandInPlan) -> bool:
        """Whether two cells must not reach each other: both name networks, and none that both are
        in.
        """
        return bool(self.networks and other.networks) and self.networks.isdisjoint(other.networks)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        directory = None if self.directory is None else str(self.directory)
        return {**asdict(self), "directory": directory}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StandInPlan:
        """The inverse of `to_json`.

        Raises `ValueError`, `KeyError` or `TypeError` for data that isn't one.
        """
        directory = data["directory"]
        return cls(
            id=str(data["id"]),
            kind=str(data["kind"]),
            names=tuple(str(name) for name in data["names"]),
            ports=tuple(
                PortPlan(number=int(port["number"]), protocol=str(port["protocol"]))
                for port in data["ports"]
            ),
            settings=dict(data["settings"]),
            directory=None if directory is None else Path(directory),
            all_ports=bool(data["all_ports"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamPlan:
    """A real service that the gateway may dial: exactly this host, these ports, these methods.

    Both directions together at most `budget_bytes` a range, `run_budget_bytes` a run.
    """

    host: str
    ports: tuple[int, ...]
    methods: tuple[str, ...]
    budget_bytes: int
    reason: str
    run_budget_bytes: int

    @property
    def id(self) -> str:
        """Of a layout's `NameAddress.stand_in`; a stand-in's own id has no colon."""
        return f"upstream:{self.host}"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> UpstreamPlan:
        """From the JSON values of `NetworkPlan.to_json`. Raises as `StandInPlan.from_json`."""
        return cls(
            host=str(data["host"]),
            ports=tuple(int(port) for port in data["ports"]),
            methods=tuple(str(method) for method in data["methods"]),
            budget_bytes=int(data["budget_bytes"]),
            run_budget_bytes=int(data["run_budget_bytes"]),
            reason=str(data["reason"]),
        )


GATEWAY_OTHER_FILES: Final = 256
"""Descriptors of a gateway beside its connections': listeners, the event loop's own, files of
stand-ins.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkBounds:
    """All that a guest could make grow, the most of it, and what happens then."""

    packet_record_bytes: int = 64 << 20
    """Of the packet record: more is dropped, which voids the sample unless events hold it whole."""
    recorded_bytes: int = 1 << 30
    """Of events and kept bodies: events are cut down, and after a quarter more the range ends."""
    recorded_body_bytes: int = 64 << 10
    """Kept of each request's and each response's body: the rest is counted."""
    recorded_stream_bytes: int = 4 << 10
    """Kept of each direction of a raw stream (TCP, SMTP, the sink): the rest is counted."""
    connections: int = 10_000
    """Open at one time at the gateway, if the limit of open files allows: more are closed."""
    connections_per_cell: int = 5_000
    """Likewise, of one cell."""
    new_connections_per_s: int = 500
    """Of one cell, by the rules: a further one is refused (`rate`)."""
    new_connections_burst: int = 1_000
    queries_per_s: int = 500
    """Datagrams of one cell to the resolver: a further one is refused (`rate`)."""
    queries_burst: int = 1_000
    refusals_per_s: int = 1_000
    """Of one cell, answered and logged: a further one is dropped, and counted all the same."""
    refusals_burst: int = 2_000
    header_bytes: int = 64 << 10
    """Of one request's head: 431."""
    body_bytes: int = 64 << 20
    """Of one request: 413."""
    header_timeout_s: float = 10.0
    """From a connection's (or answer's) begin to a request's whole head, with TLS: closed."""
    idle_timeout_s: float = 60.0
    """Nothing received and nothing sent: closed."""
    gateway_memory_bytes: int = 256 << 20
    """Of the gateway: it dies, and the range with it."""
    supervisor_memory_bytes: int = 256 << 20
    """Of the range supervisor, likewise."""
    group_memory_bytes: int = 768 << 20
    """Of the range's processes, by control group: one is killed, and the range ends."""
    group_cpu_percent: int = 150
    """Likewise, 100 is one core: they wait. More than a gateway's one thread can use, so that its
    supervisor is never kept waiting."""
    group_processes: int = 32
    """Likewise of processes and threads."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NetworkBounds:
        """The inverse of `dataclasses.asdict`. Raises `ValueError` for a name it doesn't know."""
        unknown = set(data) - {item.name for item in fields(cls)}
        if unknown:
            raise ValueError(f"there is no such bound: {min(unknown)}")
        return cls(**data)


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """A range's network.

    `default` is what a name gets that no stand-in has: NXDOMAIN, or the catch-all's address
    (`simulate`). `sink`: TCP to a port that nobody has is recorded and closed instead of refused.
    `controllers`: those of the host's control groups that hold the range's processes.
    """

    stand_ins: tuple[StandInPlan, ...] = ()
    default: Default = "deny"
    sink: bool = False
    upstreams: tuple[UpstreamPlan, ...] = ()
    bounds: NetworkBounds = field(default_factory=NetworkBounds)
    controllers: tuple[str, ...] = ()

    @property
    def group_limits(self) -> GroupLimits:
        """Of the range's own processes."""
        return GroupLimits(
            memory_max_bytes=self.bounds.group_memory_bytes,
            cpu_quota_percent=self.bounds.group_cpu_percent,
            processes=self.bounds.group_processes,
        )

    @property
    def targets(self) -> tuple[StandInPlan, ...]:
        """The stand-ins that have a cell of their own; the range's own cell is not among them."""
        return tuple(item for item in self.stand_ins if item.is_target and item.id != OWN_CELL)

    @property
    def reached_cells(self) -> tuple[StandInPlan, ...]:
        """The cells that others reach by name: targets, and perhaps the range's own."""
        return tuple(item for item in self.stand_ins if item.is_target)

    @property
    def has_tls(self) -> bool:
        """Whether the gateway answers with certificates of the range's own."""
        served = (item for item in self.stand_ins if not item.is_target)
        protocols = {port.protocol for item in served for port in item.ports}
        is_web = self.default == "simulate" or bool(self.upstreams)
        return is_web or bool(protocols & {"tls", "smtps"})

    def gateway_ports(self) -> tuple[int, ...]:
        """The TCP ports that the gateway listens on, the resolver's not among them, sorted."""
        served = (item for item in self.stand_ins if not item.is_target)
        answered = (port.number for item in served for port in item.ports)
        dialled = (port for upstream in self.upstreams for port in upstream.ports)
        simulated = (port.number for port in CATCH_ALL_PORTS) if self.default == "simulate" else ()
        return tuple(sorted({*answered, *dialled, *simulated}))

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "stand_ins": [item.to_json() for item in self.stand_ins],
            "default": self.default,
            "sink": self.sink,
            "upstreams": [asdict(item) for item in self.upstreams],
            "bounds": asdict(self.bounds),
            "controllers": list(self.controllers),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NetworkPlan:
        """The inverse of `to_json`.

        Raises `ValueError`, `KeyError` or `TypeError` for data that isn't such a plan.
        """
        default: Any = data["default"]
        if default not in ("deny", "simulate"):
            raise ValueError("`default` is none of deny, simulate")
        return cls(
            stand_ins=tuple(map(StandInPlan.from_json, data["stand_ins"])),
            default=default,
            sink=bool(data["sink"]),
            upstreams=tuple(map(UpstreamPlan.from_json, data["upstreams"])),
            bounds=NetworkBounds.from_json(data["bounds"]),
            controllers=tuple(str(name) for name in data["controllers"]),
        )


def plan_network(
    network: Network,
    base: Path | None,
    *,
    decoys: Iterable[DecoySpec] = (),
    open_files_max: int | None = None,
) -> NetworkPlan:
    """What a policy's network comes to.

    Args:
        base: the policy's own directory, None when it has none.
        decoys: those that are services become stand-ins of their id; what they hold is made for
            each sample (`signals.services`).
        open_files_max: this host's hard limit, which bounds a gateway's connections; None: none.

    Raises `PolicyError`: a stand-in has files, and there is no `base`.
    """
    return NetworkPlan(
        stand_ins=(
            *(_stand_in(name, item, base) for name, item in network.stand_ins.items()),
            *((_own_cell(network.own_cell),) if network.own_cell is not None else ()),
            *(_service(decoy) for decoy in decoys if decoy.is_service),
        ),
        default="simulate" if network.default.value == "simulate" else "deny",
        sink=network.sink,
        upstreams=tuple(
            UpstreamPlan(
                host=item.host,
                ports=item.ports,
                methods=item.methods,
                budget_bytes=item.budget,
                run_budget_bytes=item.whole_run,
                reason=item.reason,
            )
            for item in network.upstreams
        ),
        bounds=_bounds(network, open_files_max),
    )


def _bounds(network: Network, open_files_max: int | None) -> NetworkBounds:
    bounds = NetworkBounds(
        packet_record_bytes=network.record.packets,
        recorded_bytes=network.record.events,
        recorded_body_bytes=network.record.bodies,
        recorded_stream_bytes=network.record.streams,
    )
    if open_files_max is None or open_files_max - GATEWAY_OTHER_FILES >= bounds.connections:
        return bounds
    connections = max(2, open_files_max - GATEWAY_OTHER_FILES)
    return replace(
        bounds,
        connections=connections,
        connections_per_cell=min(bounds.connections_per_cell, connections // 2),
    )


def _stand_in(name: str, item: StandIn, base: Path | None) -> StandInPlan:
    settings = item.settings()
    field_name, own = item.own_path()
    directory = None
    if field_name:
        if base is None:
            raise PolicyError(
                f"the stand-in `{name}` has files, and this policy has no directory of its own",
                where=f"network.stand_ins.{name}.{field_name}",
                hint="write the policy to a file beside them",
            )
        directory = base / own
        del settings[field_name]
        if field_name == item.file_field:
            settings[field_name], directory = directory.name, directory.parent
    ports, all_ports = _ports(item.spoken_ports())
    return StandInPlan(
        id=name,
        kind=item.kind,
        names=item.names,
        ports=ports,
        settings=settings,
        directory=directory,
        all_ports=all_ports,
    )


def _service(decoy: DecoySpec) -> StandInPlan:
    protocol = SERVICE_PORTS[decoy.kind][1]
    if protocol == "http" and decoy.port in TLS_PORTS:
        protocol = "tls"
    port = PortPlan(number=decoy.port, protocol=protocol)
    # Of a metadata service the address is known, not the name.
    names = (decoy.host,) if decoy.place else ()
    return StandInPlan(id=decoy.id, kind=decoy.kind.value, names=names, ports=(port,))


def _ports(spoken: Iterable[tuple[int, str]]) -> tuple[tuple[PortPlan, ...], bool]:
    """The named ports, and whether all others can be reached too."""
    pairs = tuple(spoken)
    named = tuple(
        PortPlan(number=number, protocol=protocol)
        for number, protocol in pairs
        if number != ALL_PORTS
    )
    return named, len(named) < len(pairs)


def _own_cell(own: OwnCell) -> StandInPlan:
    """The range's own cell as others see it: by name, like a target cell."""
    ports, all_ports = _ports((port.number, port.protocol or "tcp") for port in own.ports)
    settings = {} if own.networks is None else {"networks": list(own.networks)}
    return StandInPlan(
        id=OWN_CELL,
        kind="cell",
        names=own.names,
        ports=ports,
        settings=settings,
        all_ports=all_ports,
    )


CATCH_ALL_PORTS: Final = (
    PortPlan(number=80, protocol="http"),
    PortPlan(number=443, protocol="tls"),
)
"""Where the catch-all of `default: simulate` answers."""
