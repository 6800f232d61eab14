"""What all connections of a gateway share, and what is known of one of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar.events import JsonValue, Kind
from belljar.network.decide import Asked, Flow, Verdict, decide, known_to
from belljar.network.gateway.account import Account
from belljar.network.gateway.bounds import Bounds
from belljar.network.gateway.context import App, StreamApp
from belljar.network.gateway.guard import Guard
from belljar.network.gateway.reporter import Item, Reporter
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import StandInPlan

LIMIT_EVENTS_EVERY_S = 1.0
RANGE_ENDED = "the range ended"
"""Why something was cut off, when the range's end did it."""
_RESERVE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One connection: the cell that dialled, what it dialled, and the name it said in TLS.

    `account`: what became of the bytes that came on it.
    """

    cell: str
    address: str
    port: int
    source_port: int = 0
    sni: str | None = None
    hello: bool = False
    account: Account = field(default_factory=Account, compare=False)


@dataclass(slots=True, kw_only=True)
class Site:
    """The gateway's own state: one a process. `apps` and `streams` are the stand-ins, by id.

    `idle`: the tasks of connections that are in the midst of nothing. `is_ending`: the range ends,
    and nothing is said to a cell any more. `unreported`: how much could not be told for want of
    memory.
    """

    layout: RangeLayout
    stand_ins: tuple[StandInPlan, ...]
    bounds: Bounds
    reporter: Reporter
    apps: Mapping[str, App] = field(default_factory=dict)
    streams: Mapping[str, StreamApp] = field(default_factory=dict)
    exchanges: int = 0
    heads_bytes: int = 0
    bodies_bytes: int = 0
    idle: set[asyncio.Task[Any]] = field(default_factory=set)
    guard: Guard = field(default_factory=lambda: Guard(None))
    is_ending: bool = False
    unreported: int = 0
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    connections: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _cells: dict[str, str] = field(default_factory=dict)
    _known: dict[str, RangeLayout] = field(default_factory=dict)
    _limits: Counter[str] = field(default_factory=Counter)
    _limits_due: bool = False
    _reserve: bytes = bytes(_RESERVE_BYTES)

    def __post_init__(self) -> None:
        self._cells = {port.address: port.name for port in self.layout.cells}
        self._known = {
            name: known_to(name, self.layout, self.stand_ins) for name in self._cells.values()
        }

    def cell(self, address: str) -> str:
        """The name of the cell at an address; empty when there is none."""
        return self._cells.get(address, "")

    def known_to(self, cell: str) -> RangeLayout:
        """The names that there are for the cell of this name.

        (From an address that no cell has no packet comes through the rules.)
        """
        return self._known.get(cell, self.layout)

    def judge(self, peer: Peer, asked: Asked | None = None) -> Verdict:
        """The verdict on what is known of a connection, and of a request on it."""
        flow = Flow(
            address=peer.address, port=peer.port, sni=peer.sni, hello=peer.hello, asked=asked
        )
        return decide(flow, self.known_to(peer.cell), self.stand_ins)

    def hit(self, limit: str) -> None:
        """Counts that a limit was hit; the counts go on record together, at most once a second."""
        self._limits[limit] += 1
        if not self._limits_due:
            self._limits_due = True
            asyncio.get_running_loop().call_later(LIMIT_EVENTS_EVERY_S, self.tell_limits)

    def starve(self) -> None:
        """Counts that there was no memory for something.

        What is held back for that is given up until the count is on record.
        """
        self._reserve = b""
        with contextlib.suppress(MemoryError):
            self.hit("memory_bytes")

    def tell(self, *made: Callable[[], Item]) -> None:
        """Posts what is cut off, item by item as each is made; one that there is no memory for is
        counted.
        """
        for make in made:
            try:
                self.reporter.post(make())
            except MemoryError:
                self.unreported += 1

    def tell_limits(self) -> None:
        """Posts the counts of limits that were hit."""
        self._limits_due = False
        with contextlib.suppress(MemoryError):
            self._reserve = self._reserve or bytes(_RESERVE_BYTES)
        for limit, count in self._limits.items():
            self.reporter.post(
                Item(Kind.LIMIT_HIT, {"limit": limit, "value": self._most(limit), "count": count})
            )
        self._limits.clear()

    def _most(self, limit: str) -> float:
        value: float = getattr(self.bounds, limit)
        return value


def connection_item(peer: Peer, *, closed: bool) -> Item:
    """A connection's `network.connection`, as it is now."""
    place: dict[str, JsonValue] = {
        "cell": peer.cell,
        "address": peer.address,
        "port": peer.port,
        "source_port": peer.source_port,
    }
    return peer.account.item(place, closed=closed)


def since_ms(start: float) -> float:
    """Milliseconds since a `time.monotonic()`."""
    return round((time.monotonic() - start) * 1000, 3)
