"""A range's network: stand-ins, real upstreams and bounds, without an address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from belljar.dataclass import dataclass, field, replace
from belljar.errors import PolicyError
from belljar.plan.jail import GroupLimits
from belljar.policy.guarding import OWN_CELL, SERVICE_PORTS
from belljar.units import ALL_PORTS

if TYPE_CHECKING:  # a gateway reads plans and needs none of pydantic's models
    from belljar.policy.model import DecoySpec
    from belljar.policy.network import Network, OwnCell
    from belljar.policy.stand_ins import StandIn

DNS_PORT: Final = 53  # RFC 1035, 4.2. TCP isn't served there: no answer is too long for UDP.
TARGET_KINDS: Final = frozenset({"cell", "python"})  # kinds that a target cell answers
DIAL_BYTES: Final = 512  # of an upstream's budget for each dial's own packets
Default: TypeAlias = Literal["deny", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PortPlan:
    number: int
    protocol: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StandInPlan:
    """Files in `settings` are relative to `directory`."""

    id: str
    kind: str
    names: tuple[str, ...]
    ports: tuple[PortPlan, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    directory: Path | None = None
    all_ports: bool = False

    @property
    def is_target(self) -> bool:
        return self.kind in TARGET_KINDS

    @property
    def is_detached(self) -> bool:
        """It has no network device."""
        return self.is_target and self.settings.get("networks") == []

    @property
    def networks(self) -> frozenset[str]:
        """A cell's networks; empty means every one."""
        return frozenset(self.settings.get("networks") or ())

    @property
    def awaits(self) -> tuple[str, ...] | None:
        """None means all cells before it."""
        awaited = self.settings.get("awaits")
        return None if awaited is None else tuple(awaited)

    def is_apart_from(self, other: StandInPlan) -> bool:
        return bool(self.networks and other.networks) and self.networks.isdisjoint(other.networks)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamPlan:
    host: str
    ports: tuple[int, ...]
    methods: tuple[str, ...]
    budget_bytes: int
    reason: str
    run_budget_bytes: int

    @property
    def id(self) -> str:
        """Stand-ins' ids have no colon."""
        return f"upstream:{self.host}"


GATEWAY_OTHER_FILES: Final = 256  # a gateway's descriptors beside its connections'
_FILES_OF_CELLS: Final = 2  # descriptors of a connection between two cells


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkBounds:
    """A guest could make these grow."""

    packet_record_bytes: int = 512 << 20
    """More of the cells' frames is not recorded, which voids the sample."""
    recorded_bytes: int = 1 << 30  # of events and bodies: a further one ends the range
    connections: int = 10_000  # open at one time at the gateway: more are closed
    connections_per_cell: int = 1_000  # likewise, of one cell
    cell_connections: int = 1_000  # likewise, between cells
    new_connections_per_s: int = 500  # of one cell: a further one is refused (`rate`)
    new_connections_burst: int = 1_000
    queries_per_s: int = 500  # of one cell to the resolver, likewise
    queries_burst: int = 1_000
    refusals_per_s: int = 1_000  # of one cell: a further one is dropped and counted
    refusals_burst: int = 2_000
    gateway_memory_bytes: int = 256 << 20  # of the gateway: it dies, and the range with it
    supervisor_memory_bytes: int = 256 << 20  # of the range supervisor, likewise
    group_memory_bytes: int = 768 << 20  # of the range's control group: the range ends
    group_cpu_percent: int = 150  # 100 is one core; the gateway has one thread
    group_processes: int = 32  # likewise of processes and threads


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkPlan:
    """`controllers` are the host's."""

    stand_ins: tuple[StandInPlan, ...] = ()
    default: Default = "deny"
    sink: bool = False
    upstreams: tuple[UpstreamPlan, ...] = ()
    bounds: NetworkBounds = field(default_factory=NetworkBounds)
    controllers: tuple[str, ...] = ()

    @property
    def group_limits(self) -> GroupLimits:
        return GroupLimits(
            memory_max_bytes=self.bounds.group_memory_bytes,
            cpu_quota_percent=self.bounds.group_cpu_percent,
            processes=self.bounds.group_processes,
        )

    @property
    def has_own_cell(self) -> bool:
        """The range's own cell has a network device."""
        return not any(item.is_detached for item in self.stand_ins if item.id == OWN_CELL)

    @property
    def has_cells(self) -> bool:
        """Without any no network is made."""
        return self.has_own_cell or any(not item.is_detached for item in self.targets)

    def attached(self) -> NetworkPlan:
        """Leave out cells without a network device."""
        kept = tuple(item for item in self.stand_ins if not item.is_detached)
        return replace(self, stand_ins=kept)

    @property
    def targets(self) -> tuple[StandInPlan, ...]:
        return tuple(item for item in self.stand_ins if item.is_target and item.id != OWN_CELL)

    @property
    def reached_cells(self) -> tuple[StandInPlan, ...]:
        return tuple(item for item in self.stand_ins if item.is_target)

    @property
    def has_tls(self) -> bool:
        is_web = self.default == "simulate" or bool(self.upstreams)
        return is_web or any(port.protocol in ("tls", "smtps") for port in self._served())

    def gateway_ports(self) -> tuple[int, ...]:
        """The resolver's is not among them."""
        dialled = (port for upstream in self.upstreams for port in upstream.ports)
        return tuple(sorted({*(port.number for port in self._served()), *dialled}))

    def _served(self) -> tuple[PortPlan, ...]:
        served = (item for item in self.stand_ins if not item.is_target)
        simulated = CATCH_ALL_PORTS if self.default == "simulate" else ()
        return (*(port for item in served for port in item.ports), *simulated)


def plan_network(
    network: Network,
    base: Path | None,
    *,
    decoys: Iterable[DecoySpec] = (),
    open_files_max: int | None = None,
) -> NetworkPlan:
    """Raises `PolicyError` for files without a `base`."""
    return NetworkPlan(
        stand_ins=(
            *(_stand_in(name, item, base) for name, item in network.stand_ins.items()),
            *((_own_cell(network.own_cell),) if network.own_cell is not None else ()),
            *(_service(decoy) for decoy in decoys if decoy.is_service),
        ),
        default=network.default,
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
        packet_record_bytes=network.record.packets, recorded_bytes=network.record.events
    )
    has_cells = network.own_cell is not None or any(
        item.kind in TARGET_KINDS for item in network.stand_ins.values()
    )
    cell_connections = bounds.cell_connections if has_cells else 0
    wanted = gateway_files(bounds.connections, cell_connections)
    if open_files_max is None or open_files_max >= wanted:
        return bounds
    # Of what is left, a quarter is for connections between cells
    free = max(4, open_files_max - GATEWAY_OTHER_FILES)
    cell_connections = min(cell_connections, free // (4 * _FILES_OF_CELLS))
    connections = free - _FILES_OF_CELLS * cell_connections
    return replace(
        bounds,
        connections=connections,
        connections_per_cell=min(bounds.connections_per_cell, connections // 2),
        cell_connections=max(1, cell_connections),
    )


def gateway_files(connections: int, cell_connections: int) -> int:
    return connections + _FILES_OF_CELLS * cell_connections + GATEWAY_OTHER_FILES


def _stand_in(name: str, item: StandIn, base: Path | None) -> StandInPlan:
    settings = item.settings()
    (field_name, own), directory = item.own_path(), None
    if field_name:
        if base is None:
            raise PolicyError(
                "the stand-in has files, and this policy has no directory of its own",
                where=f"network.stand_ins.{name}.{field_name}",
                hint="write the policy to a file beside them",
            )
        directory = base / own
        # The gateway sees the directory at another place: the host's path is no setting.
        del settings[field_name]
        if field_name == item.file_field:
            settings[field_name], directory = directory.name, directory.parent
    ports, all_ports = _ports(item.spoken_ports())
    plan = StandInPlan(id=name, kind=item.kind, names=item.names, ports=ports)
    return replace(plan, settings=settings, directory=directory, all_ports=all_ports)


def _service(decoy: DecoySpec) -> StandInPlan:
    protocol = SERVICE_PORTS[decoy.kind][1]
    if protocol == "http" and decoy.port in (443, 8443):
        protocol = "tls"
    port = PortPlan(number=decoy.port, protocol=protocol)
    # Of a metadata service the address is known, not the name.
    names = (decoy.host,) if decoy.place else ()
    return StandInPlan(id=decoy.id, kind=decoy.kind.value, names=names, ports=(port,))


def _ports(spoken: Iterable[tuple[int, str]]) -> tuple[tuple[PortPlan, ...], bool]:
    ports = tuple(PortPlan(number=number, protocol=protocol) for number, protocol in spoken)
    named = tuple(port for port in ports if port.number != ALL_PORTS)
    return named, named != ports


def _own_cell(own: OwnCell) -> StandInPlan:
    ports, all_ports = _ports((port.number, port.protocol or "tcp") for port in own.ports)
    plan = StandInPlan(id=OWN_CELL, kind="cell", names=own.names, ports=ports)
    settings = {} if own.networks is None else {"networks": list(own.networks)}
    return replace(plan, settings=settings, all_ports=all_ports)


CATCH_ALL_PORTS: Final = (  # where the catch-all of `default: simulate` answers
    PortPlan(number=80, protocol="http"),
    PortPlan(number=443, protocol="tls"),
)
