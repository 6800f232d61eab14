"""A range's packet rules as data, each refusal with its reason. Pure, golden.

`prerouting` decides alone, before fragments are put together; the other chains admit no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from ipaddress import IPv4Network
from typing import Any, Final, TypeAlias

from belljar.plan import nft
from belljar.plan.addresses import CellPort, RangeLayout
from belljar.plan.network import CATCH_ALL_PORTS, DNS_PORT, NetworkPlan

Rule: TypeAlias = list[nft.Statement]
TABLE: Final = "range"  # the namespace is the range's own: any other table in it is a breach
LOG_GROUP: Final = 1  # a network namespace's own: no other program listens here
LOG_SNAP_BYTES: Final = 128  # enough for the headers, by which a refused packet is told
LOCAL_MARK: Final = 1  # on packets to others' addresses that end here, and on the answers
DIAL_MARK: Final = 2  # on what the supervisor sends to a target cell for another
# On a connection's first segment, sent again by loopback: it is let in, or refused.
ENTER_MARK, REFUSE_MARK = 3, 4
_BEFORE_ASSEMBLY: Final = -450  # before the kernel's defragmentation at -400
_CHECK, _UNNAMED = "checked", "unnamed"
_LOGGED: Final = "logged"  # the counter of everything that is logged

# This host, private networks (the range's own prefix left out), carriers' (RFC 6598; Alibaba's
# metadata service), loopback, Azure's host, link-local (metadata services), private, protocol
# assignments (RFC 6890; Oracle's metadata service), private, benchmarks (RFC 2544), reserved.
# Multicast and broadcast have words of their own.
_FORBIDDEN: Final = (
    "0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12 "
    "192.0.0.0/24 192.168.0.0/16 198.18.0.0/15 240.0.0.0/4"
)
FORBIDDEN: Final = tuple(map(IPv4Network, _FORBIDDEN.split()))


class DropReason(StrEnum):
    """The prefix of a packet's log record, and a counter."""

    SPOOFED = "spoofed"  # another source address or MAC than the port's
    IPV6 = "ipv6"
    ARP = "arp"  # neighbours are fixed. Counted, not logged
    FRAGMENT = "fragment"
    SOURCE_ROUTE = "source_route"
    OPTIONS = "options"  # IPv4 options other than source routes
    MULTICAST = "multicast"
    BROADCAST = "broadcast"
    FORBIDDEN = "forbidden"  # an address that no policy can allow
    NEIGHBOUR = "neighbour"  # a cell of the range: no named port, or kept apart from the sender
    PORT = "port"  # A stand-in's address, another port
    ADDRESS = "address"  # an address that nobody has
    UDP = "udp"
    ICMP = "icmp"
    PROTOCOL = "protocol"  # neither TCP, UDP nor ICMP
    RATE = "rate"  # too many new connections or queries a second
    STRAY = "stray"  # to this namespace without `prerouting`'s consent
    FORWARDED = "forwarded"  # from cell to cell: nothing is forwarded
    OUTPUT = "output"  # sent by the range's own namespace, and no answer
    CONNECTION = "connection"  # to a target cell begins: let in when the target takes it

    @property
    def counter(self) -> str:
        return f"count_{self}"


# Logged to be let in by the supervisor, so that the record has it before the target does.
LET_THROUGH: Final = frozenset({DropReason.CONNECTION})
# Refused by RST or ICMP port-unreachable (gVisor ignores admin-prohibited).
ANSWERED: Final = frozenset(
    {
        *(DropReason.FORBIDDEN, DropReason.NEIGHBOUR, DropReason.PORT, DropReason.ADDRESS),
        *(DropReason.UDP, DropReason.ICMP, DropReason.PROTOCOL, DropReason.RATE),
    }
)


def render_rules(layout: RangeLayout, network: NetworkPlan) -> dict[str, Any]:
    """Nothing in it comes from a guest."""
    services = _Services(layout, network)
    counters = [reason.counter for reason in DropReason if reason is not DropReason.ARP]
    objects: list[dict[str, Any]] = [{"table": {"family": "inet", "name": TABLE}}]
    objects += [{"counter": _own(name=name)} for name in (*counters, _LOGGED)]
    objects += _sets(layout, services)
    chains = dict(_chains(layout, network, services))
    commands = [{"flush": {"ruleset": None}}, *({"add": item} for item in objects)]
    for name in chains:
        hook = {"type": "filter", "hook": name, "prio": _HOOKS.get(name), "policy": "drop"}
        commands.append({"add": {"chain": _own(name=name, **(hook if name in _HOOKS else {}))}})
    commands += [
        {"add": {"rule": _own(chain=name, expr=rule)}}
        for name, rules in chains.items()
        for rule in rules
    ]
    # Neighbours are fixed on both ends, so every ARP packet is a lie or an accident
    own: dict[str, Any] = {"family": "arp", "table": TABLE}
    commands += [
        {"add": {"table": {"family": "arp", "name": TABLE}}},
        {"add": {"counter": {**own, "name": DropReason.ARP.counter}}},
    ]
    expr = [nft.counter(DropReason.ARP.counter), nft.DROP]
    for at in ("input", "output"):
        chain = {**own, "name": at, "type": "filter", "hook": at, "prio": 0, "policy": "drop"}
        commands.append({"add": {"chain": chain}})
        commands.append({"add": {"rule": {**own, "chain": at, "expr": expr}}})
    return {"nftables": commands}


def forbidden_networks(layout: RangeLayout) -> tuple[IPv4Network, ...]:
    """Leave out the range's own addresses."""
    networks = list(FORBIDDEN)
    for hole in map(IPv4Network, (layout.prefix, *layout.local_prefixes)):
        kept = [each for each in networks if not each.overlaps(hole)]
        for network in networks:
            kept += network.address_exclude(hole) if hole.subnet_of(network) else ()
        networks = kept
    return tuple(sorted(networks))


def counts(listed: Mapping[str, Any]) -> dict[DropReason, int]:
    packets = _counted(listed)
    return {reason: packets.get(reason.counter, 0) for reason in DropReason}


def logged(listed: Mapping[str, Any]) -> int:
    return _counted(listed).get(_LOGGED, 0)


def _counted(listed: Mapping[str, Any]) -> dict[str, int]:
    found = [entry["counter"] for entry in listed["nftables"] if "counter" in entry]
    return {str(item["name"]): int(item["packets"]) for item in found}


class _Services:
    """Listeners, by (address, protocol, port)."""

    def __init__(self, layout: RangeLayout, network: NetworkPlan) -> None:
        cells = network.reached_cells
        ports = {item.id: tuple(port.number for port in item.ports) for item in network.stand_ins}
        ports |= {upstream.id: upstream.ports for upstream in network.upstreams}
        address = {item.id: layout.cell(item.id).address for item in cells}
        named = [
            (name.address, port)
            for name in layout.names
            if name.stand_in not in address
            for port in ports[name.stand_in]
        ]
        if layout.catch_all is not None:
            named += [(layout.catch_all, port.number) for port in CATCH_ALL_PORTS]
        dns = (layout.resolver, "udp", DNS_PORT)  # UDP alone: no answer is too long for it
        self.answered = sorted({dns, *((address, "tcp", port) for address, port in named)})
        self.of_cells: list[tuple[str, str, object]] = sorted(
            (address[item.id], "tcp", port) for item in cells for port in set(ports[item.id])
        )
        open_cells = sorted(address[item.id] for item in cells if item.all_ports)
        self.has_intervals = bool(open_cells)
        self.of_cells += [(each, "tcp", {"range": [1, 65535]}) for each in open_cells]
        self.targets = set(address)
        apart = {
            one.id: sorted(address[other.id] for other in cells if one.is_apart_from(other))
            for one in cells
        }
        # By cell, the addresses that it must not reach, if any.
        self.apart = {name: of for name, of in apart.items() if of}


def _own(**parts: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON values of any shape
    return {"family": "inet", "table": TABLE, **parts}


def _sets(layout: RangeLayout, services: _Services) -> Iterator[dict[str, Any]]:
    addresses = {address for address, _, _ in services.answered}
    service = ["ipv4_addr", "inet_proto", "inet_service"]
    forbidden = [
        {"prefix": {"addr": str(network.network_address), "len": network.prefixlen}}
        if network.prefixlen < 32
        else str(network.network_address)
        for network in forbidden_networks(layout)
    ]
    yield {"set": _own(name="forbidden", type="ipv4_addr", flags=["interval"], elem=forbidden)}
    yield _set("answered", service, [{"concat": list(item)} for item in services.answered])
    of_cells = [{"concat": list(item)} for item in services.of_cells]
    yield _set("of_cells", service, of_cells, has_intervals=services.has_intervals)
    yield _set("addresses", "ipv4_addr", sorted(addresses))
    yield _set("cells", "ipv4_addr", sorted(port.address for port in layout.cells))
    for port in layout.cells:
        if port.name in services.apart:
            yield _set(f"apart_{port.outer_device}", "ipv4_addr", services.apart[port.name])
    yield _set("devices", "ifname", sorted(port.outer_device for port in layout.cells))
    yield {"set": _own(name="refused", type="ifname", size=2 * max(1, len(layout.cells)))}


def _set(
    name: str, kind: object, elements: Sequence[object], *, has_intervals: bool = False
) -> dict[str, Any]:
    flags = {"flags": ["interval"]} if has_intervals else {}
    elem = {"elem": list(elements)} if elements else {}
    return {"set": _own(name=name, type=kind, **flags, **elem)}


# Each is a base chain, with the policy drop: what no rule names ends there.
_HOOKS: Final = {"prerouting": _BEFORE_ASSEMBLY, "input": 0, "forward": 0, "output": 0}


def _chains(
    layout: RangeLayout, network: NetworkPlan, services: _Services
) -> Iterator[tuple[str, list[Rule]]]:
    """Each chain comes before those that use it."""
    refused = (network.bounds.refusals_per_s, network.bounds.refusals_burst)
    for reason in DropReason:
        if reason not in LET_THROUGH | {DropReason.ARP}:
            yield _chain_of(reason), _end(reason, *refused)
    yield _CHECK, list(_checked())
    yield _UNNAMED, list(_unnamed(layout))
    for port in layout.cells:
        yield f"open_{port.outer_device}", list(_open(layout, network))
        yield f"from_{port.outer_device}", list(_from(port, services))
    by_device = [
        [port.outer_device, nft.goto(f"from_{port.outer_device}")] for port in layout.cells
    ]
    verdicts = {"vmap": {"key": nft.IIFNAME, "data": {"set": by_device}}}
    first: list[Rule] = [[verdicts]] if by_device else []
    if layout.proxy_port is not None:  # first segments that the supervisor sends again
        again = [nft.match(nft.IIFNAME, "lo"), nft.TCP]
        first.append([*again, nft.match(nft.MARK, ENTER_MARK), *_taken_by(layout.proxy_port)])
        first.append([*again, nft.match(nft.MARK, REFUSE_MARK), nft.TCP_RESET])
    yield "prerouting", [*first, [_to(DropReason.STRAY)]]
    yield "input", list(_input(layout))
    yield "forward", [[_to(DropReason.FORWARDED)]]
    yield "output", list(_output(layout))


def _chain_of(reason: DropReason) -> str:
    return f"{'refuse' if reason in ANSWERED else 'drop'}_{reason}"


def _to(reason: DropReason) -> nft.Statement:
    return nft.goto(_chain_of(reason))


def _end(reason: DropReason, per_s: int, burst: int) -> list[Rule]:
    limit = [nft.over(per_s, burst)]
    excess = {"set": {"op": "update", "elem": nft.IIFNAME, "set": "@refused", "stmt": limit}}
    rules: list[Rule] = [[nft.counter(reason.counter)], [excess, nft.DROP], _log(reason)]
    if reason not in ANSWERED:
        return [*rules, [nft.DROP]]
    return [*rules, [nft.TCP, nft.TCP_RESET], [nft.UNREACHABLE]]


def _checked() -> Iterator[Rule]:
    yield [nft.FRAGMENT, _to(DropReason.FRAGMENT)]
    # Before all other options, so that an attempt to be routed past the rules has its own name.
    for option in ("lsrr", "ssrr"):
        found = nft.match({"ip option": {"name": option}}, right=True)
        yield [found, _to(DropReason.SOURCE_ROUTE)]
    # A header of five words has no options (RFC 791).
    yield [nft.match(nft.field("ip", "hdrlength"), 5, "!="), _to(DropReason.OPTIONS)]
    multicast = {"prefix": {"addr": "224.0.0.0", "len": 4}}
    yield [nft.match(nft.DADDR, multicast), _to(DropReason.MULTICAST)]
    yield [nft.match(nft.DADDR, "255.255.255.255"), _to(DropReason.BROADCAST)]
    # By the frame's address, too: a frame for many may carry a packet for one.
    yield [nft.match(nft.PKTTYPE, "multicast"), _to(DropReason.MULTICAST)]
    yield [nft.match(nft.PKTTYPE, "broadcast"), _to(DropReason.BROADCAST)]
    yield [nft.match(nft.DADDR, "@forbidden"), _to(DropReason.FORBIDDEN)]


def _unnamed(layout: RangeLayout) -> Iterator[Rule]:
    yield [nft.match(nft.L4PROTO, "udp"), _to(DropReason.UDP)]
    yield [nft.match(nft.L4PROTO, "icmp"), _to(DropReason.ICMP)]
    yield [nft.match(nft.L4PROTO, "tcp", "!="), _to(DropReason.PROTOCOL)]
    yield [nft.match(nft.DADDR, "@cells"), _to(DropReason.NEIGHBOUR)]
    if layout.sink_port is not None:
        yield [nft.TCP, *_taken_by(layout.sink_port)]
    yield [nft.match(nft.DADDR, "@addresses"), _to(DropReason.PORT)]
    yield [_to(DropReason.ADDRESS)]


def _taken_by(port: int) -> Rule:
    return [{"tproxy": {"family": "ip", "port": port}}, nft.marked(LOCAL_MARK), nft.ACCEPT]


def _open(layout: RangeLayout, network: NetworkPlan) -> Iterator[Rule]:
    most = network.bounds
    too_many = nft.over(most.new_connections_per_s, most.new_connections_burst)
    yield [nft.FIRST, too_many, _to(DropReason.RATE)]
    queries = nft.over(most.queries_per_s, most.queries_burst)
    yield [nft.match(nft.L4PROTO, "udp"), queries, _to(DropReason.RATE)]
    if layout.proxy_port is not None:
        of_cell = nft.match(nft.DESTINATION, "@of_cells")
        counted = nft.counter(DropReason.CONNECTION.counter)
        yield [of_cell, nft.FIRST, counted, *_log(DropReason.CONNECTION), nft.DROP]
        yield [of_cell, nft.TCP, *_taken_by(layout.proxy_port)]
    yield [nft.match(nft.DESTINATION, "@answered"), nft.ACCEPT]
    yield [nft.goto(_UNNAMED)]


def _log(reason: DropReason) -> Rule:
    # The packet's beginning goes to the group's listener (NFLOG).
    log = {"log": {"prefix": reason, "group": LOG_GROUP, "snaplen": LOG_SNAP_BYTES}}
    return [nft.counter(_LOGGED), log]


def _from(port: CellPort, services: _Services) -> Iterator[Rule]:
    yield [nft.match(nft.field("ether", "saddr"), port.mac, "!="), _to(DropReason.SPOOFED)]
    yield [nft.match(nft.NFPROTO, "ipv6"), _to(DropReason.IPV6)]
    yield [nft.match(nft.field("ip", "saddr"), port.address, "!="), _to(DropReason.SPOOFED)]
    yield [{"jump": {"target": _CHECK}}]
    if port.name in services.apart:  # before answers are let through: a forged one is none
        apart = nft.match(nft.DADDR, f"@apart_{port.outer_device}")
        yield [apart, _to(DropReason.NEIGHBOUR)]
    if port.name in services.targets:
        answer = [nft.match(nft.SOURCE, "@of_cells"), nft.match(nft.DADDR, "@cells")]
        yield [*answer, nft.NOT_FIRST, nft.marked(LOCAL_MARK), nft.ACCEPT]
    yield [nft.goto(f"open_{port.outer_device}")]


def _input(layout: RangeLayout) -> Iterator[Rule]:
    from_cell = nft.match(nft.IIFNAME, "@devices")
    yield [from_cell, nft.match(nft.DESTINATION, "@answered"), nft.ACCEPT]
    taken = [nft.match(nft.MARK, LOCAL_MARK), nft.TCP, nft.ACCEPT]
    if layout.proxy_port is not None or layout.sink_port is not None:
        yield [from_cell, *taken]
    if layout.proxy_port is not None:  # what came by loopback, marked as entering
        yield [nft.match(nft.IIFNAME, "lo"), *taken]
    yield [_to(DropReason.STRAY)]


def _output(layout: RangeLayout) -> Iterator[Rule]:
    """Only the supervisor begins connections here."""
    to_cell = nft.match(nft.OIFNAME, "@devices")
    yield [to_cell, nft.match(nft.SOURCE, "@answered"), nft.match(nft.L4PROTO, "udp"), nft.ACCEPT]
    yield [to_cell, nft.match(nft.SOURCE, "@answered"), nft.NOT_FIRST, nft.ACCEPT]
    # Resets that the kernel itself sends for the rules and for closed connections.
    yield [to_cell, nft.flags(("syn", "rst"), "rst"), nft.ACCEPT]
    unreachable = nft.match(nft.field("icmp", "type"), "destination-unreachable")
    port = nft.match(nft.field("icmp", "code"), "port-unreachable")
    yield [to_cell, unreachable, port, nft.ACCEPT]
    taken = [to_cell, nft.match(nft.MARK, LOCAL_MARK)]
    if layout.proxy_port is not None:
        again = [nft.match(nft.OIFNAME, "lo"), nft.FIRST]
        for mark in (ENTER_MARK, REFUSE_MARK):
            yield [*again, nft.match(nft.MARK, mark), nft.ACCEPT]
        dialled = [to_cell, nft.match(nft.MARK, DIAL_MARK)]
        yield [*dialled, nft.match(nft.DESTINATION, "@of_cells"), nft.ACCEPT]
        yield [*taken, nft.match(nft.SOURCE, "@of_cells"), nft.NOT_FIRST, nft.ACCEPT]
    if layout.sink_port is not None:
        yield [*taken, nft.NOT_FIRST, nft.ACCEPT]
    yield [_to(DropReason.OUTPUT)]
