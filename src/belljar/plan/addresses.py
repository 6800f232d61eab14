"""Addresses, MACs and devices of a range, drawn at random. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Final

from belljar.errors import HostError
from belljar.plan.network import CATCH_ALL_PORTS, NetworkPlan
from belljar.policy.guarding import METADATA_ADDRESS

MIN_RANDOM_BYTES: Final = 16  # 128 bits: no range's addresses can be guessed from another's
# RFC 1918's networks, tried in this order: the largest is most likely to have room.
_POOLS: Final = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
_PREFIX_LENGTH: Final = 22  # names and cells take a /24 each, so neither meets the other
# Of virtual machines, containers and homes: an address there would be read wrongly, by people and
# by probes
_USUAL: Final = (
    *("10.0.0.0/16", "10.88.0.0/16", "172.17.0.0/16"),
    *("192.168.0.0/23", "192.168.64.0/23", "192.168.122.0/24"),
)
_TRIES: Final = 4096  # before the next pool: of the largest, a quarter
_SIZE: Final = 1 << (32 - _PREFIX_LENGTH)
_RESOLVER_HOST: Final = 1  # the first address, where a router usually is
_OWN_PORTS: Final = range(20_000, 32_000)  # below the kernel's own (32,768 by default, ip(7))


@dataclass(frozen=True, slots=True, kw_only=True)
class NameAddress:
    pattern: str
    stand_in: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellPort:
    """A cell's link, with both ends' MACs."""

    name: str
    address: str
    mac: str
    gateway_mac: str
    outer_device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeLayout:
    """`resolver` is every cell's next hop, too."""

    prefix: str
    resolver: str
    names: tuple[NameAddress, ...]
    catch_all: str | None
    cells: tuple[CellPort, ...]
    sink_port: int | None = None
    proxy_port: int | None = None

    @property
    def local_prefixes(self) -> tuple[str, ...]:
        """They are for `ip route add local`."""
        names = str(IPv4Network(f"{self.resolver}/24", strict=False))
        has_metadata = any(name.address == METADATA_ADDRESS for name in self.names)
        return (names, *((f"{METADATA_ADDRESS}/32",) if has_metadata else ()))

    def cell(self, name: str) -> CellPort:
        return {port.name: port for port in self.cells}[name]


def lay_out(
    network: NetworkPlan, cells: Sequence[str], *, random_bytes: bytes, avoid: Iterable[str]
) -> RangeLayout:
    """Avoid the host's routes. Raises `HostError`, `ValueError`."""
    if len(random_bytes) < MIN_RANDOM_BYTES:
        # Fewer would still give addresses, but such as a guest could guess.
        raise ValueError(f"a layout needs {MIN_RANDOM_BYTES} random bytes")
    prefix = _prefix(random_bytes, avoid)
    names_net, cells_net, *_ = prefix.subnets(new_prefix=24)
    cells = [*cells, *(target.id for target in network.targets if target.id not in cells)]
    if len(set(cells)) != len(cells):
        raise ValueError("a cell's name stands twice")
    ports = tuple(_ports(cells, cells_net, random_bytes))
    free = _shuffled(range(_RESOLVER_HOST + 1, 255), _stream(random_bytes, "names"))
    names = tuple(_names(network, {port.name: port.address for port in ports}, names_net, free))
    catch_all = str(names_net[free.pop()]) if network.default == "simulate" else None
    taken = {*network.gateway_ports(), *(port.number for port in CATCH_ALL_PORTS)}
    drawn = (_OWN_PORTS[each % len(_OWN_PORTS)] for each in _stream(random_bytes, "sink"))
    free_ports = (port for port in drawn if port not in taken)
    sink_port = next(free_ports) if network.sink else None
    taken |= {sink_port or 0}  # no port is 0
    return RangeLayout(
        prefix=str(prefix),
        resolver=str(names_net[_RESOLVER_HOST]),
        names=names,
        catch_all=catch_all,
        cells=ports,
        sink_port=sink_port,
        proxy_port=next(free_ports) if network.reached_cells else None,
    )


def _stream(random_bytes: bytes, purpose: str) -> Iterator[int]:
    """Draw numbers that are independent for each purpose."""
    block = 0
    while True:
        digest = hashlib.sha256(b"%d\0%s\0%s" % (block, purpose.encode(), random_bytes)).digest()
        yield from (int.from_bytes(digest[at : at + 4], "big") for at in range(0, 32, 4))
        block += 1


def _shuffled(numbers: Iterable[int], stream: Iterator[int]) -> list[int]:
    return [number for _, number in sorted((next(stream), number) for number in numbers)]


def _prefix(random_bytes: bytes, avoid: Iterable[str]) -> IPv4Network:
    avoided = [IPv4Network(item, strict=False) for item in (*avoid, *_USUAL)]
    stream = _stream(random_bytes, "prefix")
    for pool in _POOLS:
        for _ in range(_TRIES):
            at = int(pool.network_address) + next(stream) % (pool.num_addresses // _SIZE) * _SIZE
            found = IPv4Network((at, _PREFIX_LENGTH))
            if not any(found.overlaps(other) for other in avoided):
                return found
    what = "this host has routes to all private networks, so none is left for a range"
    hint = "narrow a route (`ip -4 route show table all`), or use a network namespace"
    raise HostError(what, where="network", hint=hint)


def _ports(names: Sequence[str], net: IPv4Network, random_bytes: bytes) -> Iterator[CellPort]:
    hosts = _shuffled(range(1, 255), _stream(random_bytes, "cells"))
    drawn = _stream(random_bytes, "macs")
    for index, name in enumerate(names):
        yield CellPort(
            name=name,
            address=str(net[hosts[index]]),
            mac=_mac(drawn),
            gateway_mac=_mac(drawn),
            outer_device=f"p{index}",
        )


def _mac(stream: Iterator[int]) -> str:
    """Draw one, unicast and locally administered (IEEE 802)."""
    drawn = bytearray(next(stream).to_bytes(4, "big") + next(stream).to_bytes(4, "big")[:2])
    drawn[0] = (drawn[0] & 0xFC) | 0x02
    return drawn.hex(":")


def _names(
    network: NetworkPlan, targets: Mapping[str, str], net: IPv4Network, free: list[int]
) -> Iterator[NameAddress]:
    owned = [
        (name, item.id, targets.get(item.id) if item.is_target else None)
        for item in network.stand_ins
        for name in item.names
    ]
    owned += [(upstream.host, upstream.id, None) for upstream in network.upstreams]
    for pattern, owner, address in owned:
        yield NameAddress(pattern=pattern, stand_in=owner, address=address or str(net[free.pop()]))
    for item in network.stand_ins:
        if item.kind == "metadata":
            yield NameAddress(pattern=METADATA_ADDRESS, stand_in=item.id, address=METADATA_ADDRESS)
