"""The connections that a gateway has told of, held against those that the supervisor saw answered.

Pure. A gateway that a cell has taken over could answer it and report nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any, Final

from belljar.events import Kind
from belljar.network.decide import ENCRYPTED, Flow, decide
from belljar.network.gateway.config import as_stand_in
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import NetworkPlan

# Some 50 MiB. An older one that is answered only now ends its range.
_MAX_TOLD: Final = 131_072


@dataclass(slots=True)
class _Connection:
    number: int
    is_encrypted: bool
    is_answered: bool = False
    is_passed_on: bool = False  # between cells: to the target
    # What the gateway's events have: anything exchanged, the verdict on a ClientHello, secrets.
    has_exchange: bool = False
    has_tls: bool = False
    has_secrets: bool = False


class ToldConnections:
    """One gateway's."""

    def __init__(self, layout: RangeLayout, network: NetworkPlan) -> None:
        self._layout = layout
        self._stand_ins = (*network.stand_ins, *map(as_stand_in, network.upstreams))
        self._addresses = {port.name: port.address for port in layout.cells}
        self._by_key: dict[bytes, _Connection] = {}
        self._by_number: dict[int, bytes] = {}
        self._forgotten = self._queries = 0

    def take(self, kind: str, data: Mapping[str, Any], *, has_secrets: bool) -> None:
        """An event of the gateway's, which is on record. Raises `KeyError`, `ValueError`."""
        number = data.get("connection")
        self._queries += kind == Kind.NETWORK_DNS
        if kind == Kind.NETWORK_CONNECTION and number is not None:
            self._open(number, data, has_secrets=has_secrets)
        elif (found := self._by_key.get(self._by_number.get(number or 0, b""))) is not None:
            found.has_exchange |= kind in (Kind.NETWORK_HTTP, Kind.NETWORK_STREAM)
            found.has_tls |= kind == Kind.NETWORK_TLS

    def _open(self, number: int, data: Mapping[str, Any], *, has_secrets: bool) -> None:
        address, cell = str(data["address"]), self._addresses[data["cell"]]
        ends = IPv4Address(address).packed + IPv4Address(cell).packed
        ports = (int(data[name]).to_bytes(2, "big") for name in ("port", "source_port"))
        key = ends + b"".join(ports)
        found = self._by_key.get(key)
        if self._by_number.setdefault(number, key) != key:
            raise ValueError("two connections with one number")
        if found is None or found.number != number:  # else its secrets follow
            if found is not None:
                self._forget(key)
            flow = Flow(address=address, port=int(data["port"]))
            protocol = decide(flow, self._layout, self._stand_ins).protocol
            found = self._by_key[key] = _Connection(number, protocol in ENCRYPTED)
            if len(self._by_key) > _MAX_TOLD:
                self._forget(next(iter(self._by_key)))
        found.has_secrets |= has_secrets

    def _forget(self, key: bytes) -> None:
        old = self._by_key.pop(key)
        self._by_number.pop(old.number, None)
        self._forgotten += _is_unreported(old)

    def answer(self, connection: bytes, *, is_long: bool) -> str:
        """What is wrong with an answer that was seen on it; empty if nothing is.

        Told once for each connection, and once more if it is longer than any handshake.
        """
        found, is_first = self._by_key.get(connection), not is_long
        if found is not None:
            is_known, found.is_answered = not found.is_answered, True
        elif found := self._by_key.get(_swapped(connection)):
            is_known, found.is_passed_on = not found.is_passed_on, True
        if is_first and (found is None or not is_known):
            return "it has answered on a connection that it has not told of"
        if found is None or not found.is_encrypted:
            return ""
        if not found.has_tls:
            return "it has answered in TLS without a word of it"
        if is_long and not found.has_secrets:
            return "it has answered in TLS, and kept the secrets to itself"
        return ""

    def unreported(self, datagrams: int) -> int:
        """What was answered without an event of it: connections, and so many datagrams."""
        connections = self._forgotten + sum(map(_is_unreported, self._by_key.values()))
        return connections + max(0, datagrams - self._queries)


def _swapped(connection: bytes) -> bytes:
    return connection[4:8] + connection[:4] + connection[10:12] + connection[8:10]


def _is_unreported(connection: _Connection) -> bool:
    is_told = connection.has_tls if connection.is_encrypted else connection.has_exchange
    return connection.is_answered and not is_told
