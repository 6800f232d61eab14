"""The shared parts of a gateway's connections, and the guard."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from belljar.capture import body_of
from belljar.events import JsonValue, Kind
from belljar.network.decide import Flow, FlowVerdict, RequestHead, decide, known_to
from belljar.network.gateway.config import Bounds, GuardConfig
from belljar.network.gateway.reporter import Reporter, die_without_memory
from belljar.network.ipc import SECRETS, Item
from belljar.network.stand_ins.web import App, StreamApp
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import StandInPlan
from belljar.policy.guarding import Action, GuardRules, Place
from belljar.signals.observe import Carried, hit_event, unscanned
from belljar.signals.scanner import Scanner
from belljar.signals.streams import StreamScanner
from belljar.signals.values import Channel

SCAN_TIMEOUT_S: Final = 0.5  # The gateway is blocked while it scans.
_SCANNED_FIRST: Final = frozenset({Action.BLOCK, Action.STOP})


class Guard:
    def __init__(self, config: GuardConfig | None, upstreams: frozenset[str] = frozenset()) -> None:
        self._rules = GuardRules(actions={} if config is None else config.actions)
        self._upstreams = upstreams
        self._streams: StreamScanner | None = None
        if config is not None:
            bounds = replace(config.spec.bounds, time_s=SCAN_TIMEOUT_S)
            self._streams = StreamScanner(Scanner(replace(config.spec, bounds=bounds)))

    def scans(self, stand_in: str) -> bool:
        action = self._rules.action(self._place(stand_in))
        return self._streams is not None and action in _SCANNED_FIRST

    def scan(
        self,
        stand_in: str,
        channel: Channel,
        name: str,
        data: bytes,
        common: Mapping[str, JsonValue],
    ) -> tuple[list[Item], bool]:
        """Return items to record, and True if it blocks."""
        if self._streams is None or not self.scans(stand_in):
            return [], False
        place, operation = self._place(stand_in), f"{channel.value}.{name}"
        part = Carried(channel, operation, data, place=place, to=stand_in, where=common)
        scanned = self._streams.feed(self._flow(stand_in, channel, common), channel, name, data)
        action = self._rules.action(place)
        events = [hit_event(part, hit, cell_id=None, action=action) for hit in scanned.hits]
        if not scanned.complete:
            events.append(unscanned(part, cell_id=None, evidence=None, reason=scanned.problem))
        is_blocked = bool(scanned.hits) or (not scanned.complete and place is Place.UPSTREAM)
        return [Item(event.kind, event.data) for event in events], is_blocked

    def end(self, stand_in: str, common: Mapping[str, JsonValue]) -> None:
        """Forget a connection: others' flows would give way."""
        if self._streams is not None:
            self._streams.end(self._flow(stand_in, Channel.STREAM, common))

    def _place(self, stand_in: str) -> Place:
        return Place.UPSTREAM if stand_in in self._upstreams else Place.RANGE

    @staticmethod
    def _flow(stand_in: str, channel: Channel, common: Mapping[str, JsonValue]) -> str:
        flow = f"{common.get('cell', '')}/{channel.value}/{stand_in}"
        # Bytes of another connection must not come in between.
        return f"{flow}/{common.get('connection', '')}" if channel is Channel.STREAM else flow


def warm_up(config: GuardConfig) -> None:
    """Load what a scan imports, before confinement. Raises `HostError`."""
    # The automaton is made once, by `Guard`
    Scanner(replace(config.spec, values=())).scan(_WARM_UP)


# A frame of zstd, whose reader is imported late.
_WARM_UP: Final = bytes.fromhex("28b52ffd200361 0900616263")
MAX_SECRETS_BYTES: Final = 64 << 10  # Of one handshake; it has five lines of some 200 bytes.
LIMIT_EVENTS_EVERY_S = 1.0  # More often, the events of limits would be a flood of their own.
RANGE_ENDED = "the range ended"  # Why something was cut off, when the range's end did it.


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer(Flow):
    cell: str
    source_port: int = 0
    number: int = 0
    # Of its TLS: in no event yet, and the names of all.
    secrets: bytearray = field(default_factory=bytearray, compare=False)
    labels: set[bytes] = field(default_factory=set, compare=False)

    @property
    def scheme(self) -> str:
        return "https" if self.hello else "http"

    def connection_fields(self) -> dict[str, JsonValue]:
        return {"cell": self.cell, "connection": self.number}

    def place_fields(self) -> dict[str, JsonValue]:
        return {**self.connection_fields(), "address": self.address, "port": self.port}


@dataclass(slots=True, kw_only=True)
class Site:
    layout: RangeLayout
    stand_ins: tuple[StandInPlan, ...]
    bounds: Bounds
    reporter: Reporter
    apps: dict[str, App] = field(default_factory=dict)
    streams: dict[str, StreamApp] = field(default_factory=dict)
    exchanges: int = 0
    bodies_bytes: int = 0
    idle: set[asyncio.Task[Any] | None] = field(default_factory=set)  # Between requests.
    guard: Guard = field(default_factory=lambda: Guard(None))
    is_ending: bool = False
    unreported: int = 0  # Exchanges whose end is in no event.
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    connections: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    cells: dict[str, str] = field(default_factory=dict)  # By address.
    _known: dict[str, RangeLayout] = field(default_factory=dict)
    _limits: Counter[str] = field(default_factory=Counter)
    _limits_due: bool = False
    _scanning: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.cells = {port.address: port.name for port in self.layout.cells}
        names = self.cells.values()
        self._known = {name: known_to(name, self.layout, self.stand_ins) for name in names}

    def known_to(self, cell: str) -> RangeLayout:
        return self._known.get(cell, self.layout)

    def judge(self, peer: Peer, request: RequestHead | None = None) -> FlowVerdict:
        flow = peer if request is None else replace(peer, request=request)
        return decide(flow, self.known_to(peer.cell), self.stand_ins)

    def hit(self, limit: str) -> None:
        """Count a limit for an event each second."""
        self._limits[limit] += 1
        if not self._limits_due:
            self._limits_due = True
            asyncio.get_running_loop().call_later(LIMIT_EVENTS_EVERY_S, self.post_limits)

    async def record(self, *items: Item | Callable[[], Item]) -> None:
        """Record items; without memory, the gateway ends."""
        try:
            made = [each if isinstance(each, Item) else each() for each in items]
            await self.reporter.record(*made)
        except MemoryError:
            die_without_memory()

    def post(self, make: Callable[[], Item]) -> asyncio.Future[Any]:
        """Return a future, done at the record."""
        try:
            return self.reporter.post(make())
        except MemoryError:
            die_without_memory()

    async def blocks(
        self,
        stand_in: str,
        channel: Channel,
        parts: Sequence[tuple[str, bytes]],
        common: Mapping[str, JsonValue],
    ) -> bool:
        if not self.guard.scans(stand_in):
            return False
        items, is_blocked = list[Item](), False
        try:
            async with self._scanning:
                for name, data in parts:
                    # The loop turns between two scans, however many wait: a heartbeat is sent.
                    await asyncio.sleep(0)
                    found, blocks = self.guard.scan(stand_in, channel, name, data, common)
                    items += found
                    is_blocked |= blocks
        finally:  # what was found is on record, also of an exchange that is cut meanwhile
            if items:
                await self.record(*items)
        return is_blocked

    def post_limits(self) -> None:
        self._limits_due = False
        for limit, count in self._limits.items():
            data = {"limit": limit, "value": getattr(self.bounds, limit), "count": count}
            self.reporter.post(Item(Kind.LIMIT_HIT, data))
        self._limits.clear()


def connection_item(peer: Peer) -> Item:
    data = {**peer.place_fields(), "source_port": peer.source_port, "phase": "open"}
    secrets = bytes(peer.secrets)
    peer.secrets.clear()
    bodies = (body_of(SECRETS, secrets, MAX_SECRETS_BYTES),) if secrets else ()
    return Item(Kind.NETWORK_CONNECTION, data, bodies)


def postpone(timeout: asyncio.Timeout | None, seconds: float) -> None:
    if timeout is not None and not timeout.expired():
        timeout.reschedule(asyncio.get_running_loop().time() + seconds)


def since_ms(start: float) -> float:
    return round((time.monotonic() - start) * 1000, 3)
