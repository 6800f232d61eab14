"""Logged packets made into events, so few that no guest can flood the record: the first of each kind one by one, then how many. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from belljar.network.nflog import Logged
from belljar.plan.addresses import RangeLayout
from belljar.plan.rules import ANSWERED, Reason

FIRST_TOLD: Final = 100
"""Of one cell and reason: so many different destinations have an event of their own; the rest are counted together by protocol."""
_MAX_PROTOCOLS: Final = 8
_KNOWN: Final = frozenset(str(reason) for reason in Reason)
Flow = dict[str, Any]
"""The data of a `network.flow`."""


@dataclass(slots=True)
class _Seen:
    """What is known of one cell and reason."""

    destinations: set[tuple[str, str, int | None]] = field(default_factory=set)
    counted: dict[str, list[int]] = field(default_factory=dict)


class Flows:
    """Logged packets in, events' data out. Memory: 100 destinations for each of a cell's reasons, of which there are some twenty."""

    def __init__(self, layout: RangeLayout) -> None:
        self.lost = 0
        self._cells: dict[int, str] = {}
        self._names = _names(layout)
        self._seen: dict[tuple[str, str], _Seen] = {}
        self._next: int | None = None

    def attached(self, device: int, cell: str) -> None:
        """The device with this number is the cell's port."""
        self._cells[device] = cell

    def take(self, logged: Logged) -> Flow | None:
        """The event's data, if the packet has one of its own."""
        self._count_lost(logged.sequence)
        cell = self._cells.get(logged.device, "")
        reason = logged.reason if logged.reason in _KNOWN else "unknown"
        seen = self._seen.setdefault((cell, reason), _Seen())
        destination = (logged.protocol, logged.destination, logged.port)
        if destination in seen.destinations or len(seen.destinations) >= FIRST_TOLD:
            self._count(seen, logged)
            return None
        seen.destinations.add(destination)
        return self._flow(cell, reason, logged.protocol, logged.destination, logged.port, logged.bytes, 1) | {
            "source": logged.source
        }

    def flush(self) -> Iterator[Flow]:
        """What was counted since the last time."""
        for (cell, reason), seen in self._seen.items():
            for protocol, (packets, size) in seen.counted.items():
                yield self._flow(cell, reason, protocol, "", None, size, packets)
            seen.counted.clear()

    def _count(self, seen: _Seen, logged: Logged) -> None:
        protocol = logged.protocol if len(seen.counted) < _MAX_PROTOCOLS or logged.protocol in seen.counted else "other"
        total = seen.counted.setdefault(protocol, [0, 0])
        total[0] += 1
        total[1] += logged.bytes

    def _count_lost(self, sequence: int | None) -> None:
        if sequence is None:
            return
        if self._next is not None and sequence > self._next:
            self.lost += sequence - self._next
        self._next = sequence + 1

    def _flow(
        self, cell: str, reason: str, protocol: str, address: str, port: int | None, size: int, count: int
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
    if reason == Reason.CONNECTION:
        return "allowed"
    return "refused" if reason in ANSWERED else "dropped"


def _names(layout: RangeLayout) -> Mapping[str, str]:
    """The first name of each address. The cells' own names are not among them: nobody resolves those."""
    found: dict[str, str] = {}
    for name in layout.names:
        found.setdefault(name.address, name.pattern)
    return found
