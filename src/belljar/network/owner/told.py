"""The connections that a gateway has told of, held against those that were seen answered.

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
from belljar.network.packets import put_bounded
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import NetworkPlan

# Some 50 MiB. An older one that is answered only now ends its range.
_MAX_TOLD: Final = 131_072


@dataclass(slots=True)
class _Ends:
    """Counts connections between the same addresses and ports, one after the other.

    The supervisor's report of one may come when the gateway has told of the next.
    """

    is_encrypted: bool
    told: int = 0
    answered: int = 0
    passed_on: int = 0  # between cells: to the target
    long: int = 0
    # With events of anything exchanged, or of the verdict on a ClientHello; with secrets.
    reported: int = 0
    with_secrets: int = 0

    def unreported(self) -> int:
        return max(0, max(self.answered, self.passed_on) - self.reported)


@dataclass(slots=True)
class _Connection:
    key: bytes
    ends: _Ends
    is_reported: bool = False
    has_secrets: bool = False


class ToldConnections:
    def __init__(self, layout: RangeLayout, network: NetworkPlan) -> None:
        self._layout = layout
        self._stand_ins = (*network.stand_ins, *map(as_stand_in, network.upstreams))
        self._addresses = {port.name: port.address for port in layout.cells}
        self._by_key: dict[bytes, _Ends] = {}
        self._by_number: dict[int, _Connection] = {}
        self._forgotten = self._queries = 0

    def take(self, kind: str, data: Mapping[str, Any], *, has_secrets: bool) -> None:
        """Take a recorded event of the gateway's. Raises `KeyError`, `ValueError`."""
        number = data.get("connection")
        self._queries += kind == Kind.NETWORK_DNS
        if kind == Kind.NETWORK_CONNECTION and number is not None:
            self._open(number, data, has_secrets=has_secrets)
        elif (found := self._by_number.get(number or 0)) is not None and not found.is_reported:
            is_tls = found.ends.is_encrypted
            told = (Kind.NETWORK_TLS,) if is_tls else (Kind.NETWORK_HTTP, Kind.NETWORK_STREAM)
            found.is_reported = kind in told
            found.ends.reported += found.is_reported

    def _open(self, number: int, data: Mapping[str, Any], *, has_secrets: bool) -> None:
        address, cell = str(data["address"]), self._addresses[data["cell"]]
        ends = IPv4Address(address).packed + IPv4Address(cell).packed
        ports = (int(data[name]).to_bytes(2, "big") for name in ("port", "source_port"))
        key = ends + b"".join(ports)
        found = self._by_number.get(number)
        if found is None:  # else its secrets follow
            reached = self._by_key.get(key)
            if reached is None:
                flow = Flow(address=address, port=int(data["port"]))
                protocol = decide(flow, self._layout, self._stand_ins).protocol
                reached = _Ends(protocol in ENCRYPTED)
            if (oldest := put_bounded(self._by_key, key, reached, _MAX_TOLD)) is not None:
                self._forgotten += oldest.unreported()
            found = _Connection(key, reached)
            put_bounded(self._by_number, number, found, _MAX_TOLD)
            found.ends.told += 1
        if found.key != key:
            raise ValueError("two connections with one number")
        found.ends.with_secrets += has_secrets and not found.has_secrets
        found.has_secrets |= has_secrets

    def answer(self, connection: bytes, *, is_long: bool) -> str:
        """Return what is wrong with an answer that was seen, or "".

        It is called once a connection, and once more beyond a handshake's size.
        """
        answers, is_first = 0, not is_long
        # The same connection, from its other end.
        swapped = connection[4:8] + connection[:4] + connection[10:12] + connection[8:10]
        if (ends := self._by_key.get(connection)) is not None:
            ends.answered += is_first
            ends.long += is_long
            answers = ends.answered
        elif (ends := self._by_key.get(swapped)) is not None:
            ends.passed_on += is_first
            answers = ends.passed_on
        if is_first and (ends is None or answers > ends.told):
            return "it has answered on a connection that it has not told of"
        if ends is None or not ends.is_encrypted:
            return ""
        if answers > ends.reported:
            return "it has answered in TLS without a word of it"
        if ends.long > ends.with_secrets:
            return "it has answered in TLS, and kept the secrets to itself"
        return ""

    def unreported(self, datagrams: int) -> int:
        connections = self._forgotten + sum(each.unreported() for each in self._by_key.values())
        return connections + max(0, datagrams - self._queries)
