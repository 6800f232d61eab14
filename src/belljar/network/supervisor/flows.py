"""Logged packets made into events, so few that no guest can flood the record: the first of each
kind one by one, then how many. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from belljar.network.supervisor.nflog import Logged
from belljar.plan.addresses import RangeLayout
from belljar.plan.rules import ANSWERED, LET_THROUGH, Reason

FIRST_TOLD: Final = 100
"""Of one cell and reason: so many different destinations that were refused have an event of their
own; the rest are counted together by protocol.
"""
FIRST_ALLOWED: Final = 65_536
"""Likewise, of what was let through: every port of a cell.

How often they were spoken to is told one by one for the first hundred of each time that it is told.
"""
_MAX_PROTOCOLS: Final = 8
_KNOWN: Final = frozenset(str(reason) for reason in Reason)
_Destination: TypeAlias = tuple[str, str, int | None]
"""Protocol, address, port."""
Flow = dict[str, Any]
"""The data of a `network.flow`."""


@dataclass(slots=True)
class _Seen:
    """What is known of one cell and reason."""

    destinations: set[_Destination] = field(default_factory=set)
    counted: dict[_Destination, _Sum] = field(default_factory=dict)
    protocols: set[str] = field(default_factory=set)

    def sum_of(self, destination: _Destination, *, by_name: bool) -> _Sum:
        """Where a packet is counted: its destination's own sum, or its protocol's."""
        if not by_name or (destination not in self.counted and len(self.counted) >= FIRST_TOLD):
            protocol = destination[0]
            if len(self.protocols) < _MAX_PROTOCOLS:
                self.protocols.add(protocol)
            destination = (protocol if protocol in self.protocols else "other", "", None)
        return self.counted.setdefault(destination, _Sum())


@dataclass(slots=True)
class _Sum:
    packets: int = 0
    bytes: int = 0
    not_listed: int = 0


class Flows:
    """Logged packets in, events' data out.

    Memory: 100 destinations for each of a cell's reasons, of which there are some twenty, and every
    port that it may speak to.
    """

    def __init__(self, layout: RangeLayout) -> None:
        self.taken = 0
        self.lost = 0
        self._cells: dict[int, str] = {}
        self._names = _names(layout)
        self._seen: dict[tuple[str, str], _Seen] = {}

    def attached(self, device: int, cell: str) -> None:
        """The device with this number is the cell's port."""
        self._cells[device] = cell

    def take(self, logged: Logged) -> Flow | None:
        """The event's data, if the packet has one of its own."""
        self.taken += 1
        cell = self._cells.get(logged.device, "")
        reason = logged.reason if logged.reason in _KNOWN else "unknown"
        seen = self._seen.setdefault((cell, reason), _Seen())
        destination = (logged.protocol, logged.destination, logged.port)
        is_allowed = _verdict(reason) == "allowed"
        is_listed = destination in seen.destinations
        if is_listed or len(seen.destinations) >= (FIRST_ALLOWED if is_allowed else FIRST_TOLD):
            counted = seen.sum_of(destination, by_name=is_allowed and is_listed)
            counted.packets += 1
            counted.bytes += logged.bytes
            counted.not_listed += not is_listed
            return None
        seen.destinations.add(destination)
        return self._flow(
            cell, reason, logged.protocol, logged.destination, logged.port, logged.bytes, 1
        ) | {"source": logged.source}

    def flush(self) -> Iterator[Flow]:
        """What was counted since the last time."""
        for (cell, reason), seen in self._seen.items():
            for (protocol, address, port), told in seen.counted.items():
                flow = self._flow(cell, reason, protocol, address, port, told.bytes, told.packets)
                yield flow if address else flow | {"destinations_not_listed": told.not_listed}
            seen.counted.clear()
            seen.protocols.clear()

    def count_lost(self, logged: int) -> None:
        """The rules have logged so many packets, and all that were to be had of them are taken: the
        rest is lost. While packets come that is too few, never too many.
        """
        self.lost = max(self.lost, logged - self.taken)

    def _flow(
        self,
        cell: str,
        reason: str,
        protocol: str,
        address: str,
        port: int | None,
        size: int,
        count: int,
    ) -> Flow:
        return {
            "cell": cell,
            "protocol": protocol,
            "address": address,
            "port": port,
            "verdict": _verdict(reason),
            "reason": reason,
            "bytes": size,
            "count": count,
            "name": self._names.get(address, ""),
        }


def _verdict(reason: str) -> str:
    if reason in LET_THROUGH:
        return "allowed"
    return "refused" if reason in ANSWERED else "dropped"


def _names(layout: RangeLayout) -> Mapping[str, str]:
    """The first name of each address.

    The cells' own names are not among them: nobody resolves those.
    """
    found: dict[str, str] = {}
    for name in layout.names:
        found.setdefault(name.address, name.pattern)
    return found
