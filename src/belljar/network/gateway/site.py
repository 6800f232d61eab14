"""What a gateway's connections share, and each one's peer and byte account.

A received byte is *recorded* in an event of the connection, *framing* that follows from
what it frames, or the *remainder*, which `network.connection` keeps.
A connection with others (missing bytes) is not accounted for.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from belljar.capture import Capture, body_of
from belljar.events import JsonValue, Kind
from belljar.network.decide import Flow, RequestHead, Verdict, decide, known_to
from belljar.network.gateway.config import Bounds
from belljar.network.gateway.context import App, StreamApp
from belljar.network.gateway.guard import Guard
from belljar.network.gateway.reporter import Reporter, printable_text
from belljar.network.ipc import SECRETS, Item
from belljar.plan.addresses import RangeLayout
from belljar.plan.network import StandInPlan
from belljar.signals.values import Channel

REMAINDER_EXCEEDED: Final = "too many bytes outside of requests, messages and streams"
# So much of the remainder has its own event while the connection goes on.
PART_BYTES: Final = 32 << 10
KEPT_BYTES: Final = 64 << 10  # Of one such event: above `PART_BYTES` by more than one TLS record.
# A WebSocket message has a mask of 4 bytes, a request priorities and pings.
EARNED_PER_RECORD_BYTES: Final = 64
# One byte in so many: a window update of 13 bytes comes every KiB at most.
EARNED_SHARE: Final = 32

# Not counted in the bound: what an ordinary client still sends of a refused or answered request's
# body: pieces that wait for the application.
LATE_BODY_BYTES: Final = 512 << 10
LATE_BODY: Final = "late_body"


class Account:
    """One connection's bytes.

    `free_bytes`: the remainder's bound, before what is earned. `reason`: why the gateway ended the
    connection.
    """

    def __init__(self, number: int = 0, free_bytes: int = 16 << 10) -> None:
        self.number = number
        self.received_bytes = self.recorded_bytes = self.framing_bytes = self.remainder_bytes = 0
        self.sent_bytes = self.unread_bytes = 0
        self.is_at_end = False
        self.reason = ""
        self._free_bytes = free_bytes
        self._records = self._requests = 0
        self._start = time.monotonic()
        self._kinds: Counter[str] = Counter()
        self._unrecorded: Capture | None = None  # The remainder since the event before.
        self._secrets, self._labels = b"", set[bytes]()
        self._holders: list[Callable[[], None]] = []

    def before_end(self, leave: Callable[[], None]) -> None:
        """Call `leave` once before the last event."""
        self._holders.append(leave)

    def receive(self, size: int) -> None:
        """Bytes came from the socket."""
        self.received_bytes += size

    def record(self, size: int) -> None:
        """Bytes have an event of their own."""
        self.recorded_bytes += size
        self._records += 1

    def begin_request(self) -> None:
        """One more has a head, maybe an unread body."""
        self._requests += 1

    def frame(self, size: int) -> None:
        """Bytes follow from what they frame."""
        self.framing_bytes += size

    def remain(self, kind: str, data: bytes) -> None:
        """Bytes are in no other event."""
        if not data:
            return
        self.remainder_bytes += len(data)
        self._kinds[kind] += len(data)
        if self._unrecorded is None:
            self._unrecorded = Capture(max_kept_bytes=KEPT_BYTES)
        self._unrecorded.feed(data)

    def keep_secrets(self, lines: bytes) -> None:
        """Keep lines of NSS's key log for the next event."""
        self._secrets += lines
        self._labels |= {line.partition(b" ")[0] for line in lines.splitlines()}

    def has_secrets(self, labels: frozenset[bytes]) -> bool:
        """Return whether lines with these labels were kept."""
        return labels <= self._labels

    def end_for(self, reason: str) -> None:
        """Why it ends; the first reason counts."""
        self.reason = self.reason or reason

    @property
    def missing_bytes(self) -> int:
        """Received, and in no event."""
        found = self.recorded_bytes + self.framing_bytes + self.remainder_bytes
        return max(0, self.received_bytes - found)

    @property
    def is_over(self) -> bool:
        """Whether the remainder is over its bound."""
        passed = self.recorded_bytes + self.sent_bytes
        earned = self._records * EARNED_PER_RECORD_BYTES + passed // EARNED_SHARE
        late = min(self._kinds[LATE_BODY], self._requests * LATE_BODY_BYTES)
        return self.remainder_bytes - late > self._free_bytes + earned

    @property
    def is_part_due(self) -> bool:
        """Whether the remainder is to be recorded now."""
        return self._unrecorded is not None and self._unrecorded.total_bytes >= PART_BYTES

    @property
    def has_unrecorded(self) -> bool:
        """Whether some remainder has no event yet."""
        return self._unrecorded is not None or bool(self._secrets) or self.missing_bytes > 0

    def item(self, place: dict[str, JsonValue], *, closed: bool) -> Item:
        """The event since the one before. `place`: cell and address."""
        while closed and self._holders:
            self._holders.pop()()
        data: dict[str, JsonValue] = {
            **place,
            "connection": self.number,
            "phase": "closed" if closed else "open",
            "received_bytes": self.received_bytes,
            "recorded_bytes": self.recorded_bytes,
            "framing_bytes": self.framing_bytes,
            "remainder_bytes": self.remainder_bytes,
            "missing_bytes": self.missing_bytes if closed else 0,
            "unread_bytes": self.unread_bytes,
            "eof": self.is_at_end,
            "accounted": closed and not self.missing_bytes and not self.unread_bytes,
            "reason": printable_text(self.reason, 200),
            "duration_ms": since_ms(self._start),
            **({"remainder": dict(self._kinds)} if self._kinds else {}),
        }
        part, self._unrecorded = self._unrecorded, None
        bodies = () if part is None else tuple(part.bodies("remainder"))
        if self._secrets:
            bodies += (body_of(SECRETS, self._secrets, KEPT_BYTES),)
            self._secrets = b""
        return Item(Kind.NETWORK_CONNECTION, data, bodies)


class Incoming:
    """A request's bytes, until an exchange records them.

    `head`: as it came. `fields`: as sent. `take_unread`: gives what the stand-in did not receive.
    """

    def __init__(self, account: Account, head: bytes, fields: list[tuple[bytes, bytes]]) -> None:
        self._account = account
        account.begin_request()
        self.head, self.fields = head, fields
        self._pieces: list[bytes] = []
        self._is_claimed = self._is_over = False
        self.take_unread: Callable[[], bytes] = bytes

    def came(self, data: bytes) -> None:
        """A piece of the body has come."""
        if self._is_over:
            self._account.remain(LATE_BODY, data)
        elif data:
            self._pieces.append(data)

    def took(self, data: bytes) -> None:
        """The exchange has this very object, and counts it."""
        self._pieces = [piece for piece in self._pieces if piece is not data]

    def claim_head(self) -> int:
        """Record the head; return its size."""
        if self._is_claimed:
            return 0
        self._is_claimed = True
        self._account.record(len(self.head))
        return len(self.head)

    def leave(self) -> None:
        """Give what no exchange takes to the remainder."""
        if self._is_over:
            return
        self._is_over = True
        if not self._is_claimed:
            self._is_claimed = True
            self._account.remain("head", self.head)
        for piece in self._pieces:
            self._account.remain(LATE_BODY, piece)
        # A connection may have a thousand requests.
        self._pieces, self.head, self.fields = [], b"", []


def field_lines(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Header fields, a line each."""
    return b"".join(b"%s: %s\r\n" % (name, value) for name, value in fields)


LIMIT_EVENTS_EVERY_S = 1.0
RANGE_ENDED = "the range ended"  # Why something was cut off, when the range's end did it.
_RESERVE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One connection: cell, destination, SNI, byte account."""

    cell: str
    address: str
    port: int
    source_port: int = 0
    sni: str | None = None
    hello: bool = False
    account: Account = field(default_factory=Account, compare=False)

    def connection_fields(self) -> dict[str, JsonValue]:
        """Whose connection an event is of."""
        return {"cell": self.cell, "connection": self.account.number}

    def place_fields(self) -> dict[str, JsonValue]:
        """And where it was dialled to."""
        return {**self.connection_fields(), "address": self.address, "port": self.port}


@dataclass(slots=True, kw_only=True)
class Site:
    """State that all connections of a gateway share.

    `apps`, `streams`: stand-ins by id. `idle`: tasks between requests.
    `is_ending`: no more is sent to cells. `unreported`: lost for want of memory.
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
    idle: set[asyncio.Task[Any] | None] = field(default_factory=set)
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
        """Name of the cell at an address, or ""."""
        return self._cells.get(address, "")

    def known_to(self, cell: str) -> RangeLayout:
        """Names that exist for this cell."""
        return self._known.get(cell, self.layout)

    def judge(self, peer: Peer, request: RequestHead | None = None) -> Verdict:
        """The verdict on a connection and its request."""
        flow = Flow(
            address=peer.address, port=peer.port, sni=peer.sni, hello=peer.hello, request=request
        )
        return decide(flow, self.known_to(peer.cell), self.stand_ins)

    def hit(self, limit: str) -> None:
        """Count a limit; recorded together, at most each second."""
        self._limits[limit] += 1
        if not self._limits_due:
            self._limits_due = True
            asyncio.get_running_loop().call_later(LIMIT_EVENTS_EVERY_S, self.post_limits)

    def count_out_of_memory(self) -> None:
        """Count it; the reserve is given up meanwhile."""
        self._reserve = b""
        with contextlib.suppress(MemoryError):
            self.hit("memory_bytes")

    async def record(self, *items: Item | Callable[[], Item]) -> None:
        """Record items, or what makes them; without memory, count them and raise."""
        try:
            await self.reporter.record(
                *[each if isinstance(each, Item) else each() for each in items]
            )
        except MemoryError:
            self.unreported += len(items)
            raise

    def post(self, make: Callable[[], Item]) -> None:
        """Post an item as made; without memory, count it."""
        try:
            self.reporter.post(make())
        except MemoryError:
            self.unreported += 1

    async def blocks(
        self,
        stand_in: str,
        channel: Channel,
        parts: Sequence[tuple[str, bytes]],
        common: Mapping[str, JsonValue],
    ) -> bool:
        """Whether the guard blocks parts of a flow, on record."""
        result = self.guard.scan(stand_in, channel, parts, common)
        if result.items:
            await self.record(*result.items)
        return result.blocked

    def post_limits(self) -> None:
        """Record the counts of hit limits."""
        self._limits_due = False
        with contextlib.suppress(MemoryError):
            self._reserve = self._reserve or bytes(_RESERVE_BYTES)
        for limit, count in self._limits.items():
            data = {"limit": limit, "value": getattr(self.bounds, limit), "count": count}
            self.reporter.post(Item(Kind.LIMIT_HIT, data))
        self._limits.clear()


def connection_item(peer: Peer, *, closed: bool) -> Item:
    """A connection's `network.connection`, as of now."""
    place = peer.place_fields() | {"source_port": peer.source_port}
    return peer.account.item(place, closed=closed)


def postpone(timeout: asyncio.Timeout | None, seconds: float | None) -> None:
    """Restart a timeout, or stop it (None)."""
    if timeout is not None and not timeout.expired():
        loop = asyncio.get_running_loop()
        timeout.reschedule(None if seconds is None else loop.time() + seconds)


def since_ms(start: float) -> float:
    """Milliseconds since a `time.monotonic()`."""
    return round((time.monotonic() - start) * 1000, 3)
