"""Which frames of a packet record the gateway's events hold, so that they may be thrown away.

Pure. A frame needs no record in two cases:

- The range's own gateway sent it.
- It is an ordinary segment of a TCP connection to the gateway, and each byte of the connection was
  sent in one version only and is in an event.

Every other frame is evidence that only the packet record has.
Identification, window, timestamps and acknowledgement numbers are not compared.
"""

from __future__ import annotations

import struct
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from socket import inet_aton, inet_ntoa
from typing import Any, Final, TypeAlias

from belljar.events import Event, Kind
from belljar.network.ipc import KINDS
from belljar.plan.addresses import RangeLayout

MAX_TRACKED: Final = 65_536
"""Pairs of ends that are followed: frames of a further one are evidence, each."""
MAX_PAST: Final = 1_000_000  # Connections that ended on them, likewise.
MAX_REPORTED: Final = 200_000
"""Connections of the gateway's that are remembered: a further one accounts for nothing."""
RECENT_BYTES: Final = 128 << 10
"""Of a connection: no cell sends more before an acknowledgement (`tcp_rmem` of the gateway)."""
MAX_RECENT_BYTES: Final = 32 << 20
"""Of all together: what a connection that was silent for longest sends again can't be compared."""
_IPV4: Final = b"\x08\x00"
_PLAIN_IP: Final = 0x45
_TCP: Final = 6
_ETHERNET_BYTES, _IP_BYTES, _TCP_BYTES = 14, 20, 20
_MIN_TCP_BYTES: Final = _ETHERNET_BYTES + _IP_BYTES + _TCP_BYTES
_MIN_FRAME_BYTES: Final = 60
_DONT_FRAGMENT: Final = 0x4000
_FIN, _SYN, _RST, _PSH, _ACK, _URG = 1, 2, 4, 8, 16, 32
_ECN: Final = 0xC0
"""ECE and CWR. By default no kernel sets them, or a type of service."""
_TIME_TO_LIVE: Final = 64  # Of Linux and gVisor. No router stands between a cell and the gateway.
_TIMESTAMPS: Final = b"\x01\x01\x08\x0a"
_TIMESTAMPS_BYTES: Final = 12
_WHOLE: Final = 1 << 32
_SEQUENCE: Final = struct.Struct("!II")
_OF_CONNECTIONS: Final = KINDS - {
    Kind.NETWORK_ATTEMPT,
    Kind.LIMIT_HIT,
    Kind.GUARD_HIT,
    Kind.GUARD_UNSCANNED,
}
"""What holds a connection's bytes. (An attempt repeats what one of these has.)"""
_GATEWAYS_BODIES: Final = frozenset({"response", "sent"})
End: TypeAlias = tuple[str, int, str, int]
"""The cell's name and port, the address and port that it dialled."""


class Frame(Enum):
    """What a frame is that belongs to no followed connection."""

    OURS = "ours"
    EVIDENCE = "evidence"


@dataclass(slots=True, eq=False)
class Connection:
    """What a cell sent from one port to one port of the gateway.

    Attributes:
        past: the bytes of each connection that ended there.
        recent: last bytes of the open one, to compare what is sent again.
        early: segments that came before their turn.
        kept: frames in each of the two files that take turns.
        dropped: frames thrown away.
        broken: a byte came in two versions or not in an ordinary segment, so no count of bytes
            proves that all are known.
    """

    numbers: tuple[int, int] | None = None
    next: int = 0
    size: int = 0
    past: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=lambda: [0, 0])
    dropped: int = 0
    broken: bool = False
    ended: bool = False
    recent: bytearray = field(default_factory=bytearray)
    early: dict[int, tuple[bytes, int]] = field(default_factory=dict)
    early_bytes: int = 0

    def begin(self, numbers: tuple[int, int]) -> None:
        """A new connection: the gateway's first sequence number, the cell's next."""
        if self.numbers != numbers:
            self.close()
            self.numbers, self.next, self.ended = numbers, numbers[1], False

    def close(self) -> None:
        """End the open connection."""
        if self.size:
            self.past.append(self.size)
        self.size = 0
        self.forget()

    def forget(self) -> None:
        """Drop remembered bytes; early segments can't be placed any more."""
        self.broken |= bool(self.early)
        self.early.clear()
        self.recent.clear()
        self.early_bytes = 0

    @property
    def remembered_bytes(self) -> int:
        """Size of `recent` and `early`."""
        return len(self.recent) + self.early_bytes

    def take(self, sequence: int, payload: memoryview, flags: int) -> bool:
        """Whether it is an ordinary segment: the next bytes, the same bytes again, or none."""
        if self.broken or flags & (_SYN | _URG) or not flags & (_ACK | _RST):
            return False
        if not payload:
            return self._take_empty(sequence, flags)
        if flags & _RST:
            return False
        if 0 < (sequence - self.next) % _WHOLE <= RECENT_BYTES and not self.ended:
            # Before its turn, as when two processors send
            early = bytes(payload), flags
            if sequence in self.early or self.early_bytes + len(payload) > RECENT_BYTES:
                self.broken = self.early.get(sequence) != early
                return not self.broken
            self.early[sequence] = early
            self.early_bytes += len(payload)
            return True
        is_ordinary = self._append(sequence, payload, flags)
        while is_ordinary and (held := self.early.pop(self.next, None)) is not None:
            self.early_bytes -= len(held[0])
            is_ordinary = self._append(self.next, memoryview(held[0]), held[1])
        return is_ordinary

    def _append(self, sequence: int, payload: memoryview, flags: int) -> bool:
        """The next bytes, or some of those before them once more."""
        behind = (self.next - self.ended - sequence) % _WHOLE
        again, fresh = payload[:behind], payload[behind:]
        start = len(self.recent) - behind
        if start < 0 or self.recent[start : start + len(again)] != again or (fresh and self.ended):
            self.broken = True
            return False
        self.recent += fresh
        self.size += len(fresh)
        self.next = (self.next + len(fresh)) % _WHOLE
        if fresh or (sequence + len(payload)) % _WHOLE == self.next:
            self._take_empty(self.next, flags)
        return True

    def _take_empty(self, sequence: int, flags: int) -> bool:
        """An empty segment at the next byte, or the one before (keepalive, repeated FIN)."""
        if (self.next - sequence) % _WHOLE > 1:
            return False
        if flags & _FIN and not self.ended:
            self.ended = True
            self.next = (self.next + 1) % _WHOLE
        return True


class Connections:
    """Follows the connections of a range's cells to its gateway, frame by frame."""

    def __init__(self, layout: RangeLayout) -> None:
        self._names = {inet_aton(port.address): port.name for port in layout.cells}
        self._of: dict[bytes, Connection] = {}
        self._past = self._recent_bytes = 0
        self._spoken: OrderedDict[Connection, None] = OrderedDict()

    def take(self, frame: memoryview, *, sent: bool) -> Connection | Frame:
        """Whose a frame is. `sent`: the range sent it to a cell."""
        is_ipv4 = len(frame) >= _ETHERNET_BYTES + _IP_BYTES and bytes(frame[12:14]) == _IPV4
        if sent:
            if not is_ipv4 or bytes(frame[26:30]) in self._names:
                return Frame.EVIDENCE  # the source is another cell
            is_tcp = frame[14] == _PLAIN_IP and frame[23] == _TCP and len(frame) >= _MIN_TCP_BYTES
            if is_tcp and frame[47] & (_SYN | _ACK) == _SYN | _ACK:
                self._begin(frame)
            return Frame.OURS
        connection = self._of.get(bytes(frame[26:38])) if is_ipv4 else None
        if connection is None:
            return Frame.EVIDENCE
        segment = _segment(frame)
        if segment is None:
            return Frame.EVIDENCE
        before = connection.remembered_bytes
        is_ordinary = connection.take(*segment)
        if connection.remembered_bytes != before:
            self._trim(connection, before)
        # Fields that a program may choose; the bytes count for the connection anyway
        is_ordinary &= frame[15] == 0 and frame[22] == _TIME_TO_LIVE and not frame[47] & _ECN
        return connection if is_ordinary else Frame.EVIDENCE

    def _trim(self, connection: Connection, before: int) -> None:
        """Forget old bytes, of this connection and of the longest silent."""
        del connection.recent[:-RECENT_BYTES]
        self._recent_bytes += connection.remembered_bytes - before
        self._spoken[connection] = None
        self._spoken.move_to_end(connection)
        while self._recent_bytes > MAX_RECENT_BYTES:
            silent, _ = self._spoken.popitem(last=False)
            self._recent_bytes -= silent.remembered_bytes
            silent.forget()

    def _begin(self, frame: memoryview) -> None:
        # As a cell's frame has them: addresses, then ports
        key = bytes(frame[30:34]) + bytes(frame[26:30]) + bytes(frame[36:38]) + bytes(frame[34:36])
        connection = self._of.get(key)
        if connection is None:
            if len(self._of) >= MAX_TRACKED:
                return
            connection = self._of[key] = Connection()
        before, remembered_bytes = len(connection.past), connection.remembered_bytes
        ours, cells = _SEQUENCE.unpack_from(frame, 38)
        connection.begin((ours, cells))
        self._recent_bytes += connection.remembered_bytes - remembered_bytes
        self._past += len(connection.past) - before
        connection.broken |= self._past > MAX_PAST

    def at_risk(self) -> Iterator[dict[str, Any]]:
        """Connections with frames thrown away, as JSON for `Accounts.settle`."""
        for key, connection in self._of.items():
            if connection.dropped:
                connection.close()
                yield {
                    "cell": self._names.get(key[:4], ""),
                    "source_port": int.from_bytes(key[8:10], "big"),
                    "address": inet_ntoa(key[4:8]),
                    "port": int.from_bytes(key[10:12], "big"),
                    "bytes": sorted(Counter(connection.past).items()),
                    "broken": connection.broken,
                    "dropped": connection.dropped,
                }


def _segment(frame: memoryview) -> tuple[int, memoryview, int] | None:
    """Sequence number, payload and flags of an ordinary TCP segment."""
    if frame[14] != _PLAIN_IP or frame[23] != _TCP or len(frame) < _MIN_TCP_BYTES:
        return None
    length = int.from_bytes(frame[16:18], "big")
    end = _ETHERNET_BYTES + length
    padding = frame[end:]
    if int.from_bytes(frame[20:22], "big") & ~_DONT_FRAGMENT or len(frame) < end:
        return None
    if padding and (len(frame) > _MIN_FRAME_BYTES or any(padding)):
        return None
    options = frame[46] - (_TCP_BYTES << 2)  # the header's length in words, above four zero bits
    if options == _TIMESTAMPS_BYTES << 2:
        if len(frame) < 66 or bytes(frame[54:58]) != _TIMESTAMPS:
            return None
    elif options:
        return None
    start = _ETHERNET_BYTES + _IP_BYTES + _TCP_BYTES + (options >> 2)
    if start > end:
        return None
    sequence, _ = _SEQUENCE.unpack_from(frame, 38)
    return sequence, frame[start:end], frame[47]


class Accounts:
    """Compares, for the owner, recorded connections with frames thrown away."""

    def __init__(self) -> None:
        self.unaccounted = 0
        """Frames thrown away of connections that no event holds whole."""
        self._whole: dict[End, Counter[int]] = {}
        self._others: set[End] = set()
        self._partial: set[int] = set()
        self._count = 0
        self._is_blind = False

    def report(self, event: Event, recorded: Event) -> None:
        """An event of the gateway, and what of it was recorded."""
        if event.kind not in _OF_CONNECTIONS:
            return
        number = event.data.get("connection")
        is_cells = event.data.get("direction") != "received"
        is_whole = recorded is event and all(
            len(body.content) == body.total_bytes
            for body in event.bodies
            if is_cells and body.name not in _GATEWAYS_BODIES
        )
        if not is_whole and isinstance(number, int):
            self._partial.add(number)
        elif not is_whole and event.data.get("transport") != "udp":
            self._is_blind = True  # its connection is not known
        if event.kind is Kind.NETWORK_CONNECTION and event.data["phase"] == "closed":
            self._close(event.data)
        self._is_blind |= len(self._partial) > MAX_REPORTED

    def _close(self, data: Mapping[str, Any]) -> None:
        end = _end(data)
        self._count += 1
        if data["accounted"] is not True or data["connection"] in self._partial:
            self._others.add(end)
        elif data["received_bytes"] and self._count <= MAX_REPORTED:
            self._whole.setdefault(end, Counter())[data["received_bytes"]] += 1
        self._partial.discard(data["connection"])

    def settle(self, at_risk: Sequence[Mapping[str, Any]]) -> None:
        """Compare what `Connections.at_risk` yields."""
        for each in at_risk:
            end = _end(each)
            sent = Counter({int(size): int(times) for size, times in each["bytes"]})
            is_doubtful = self._is_blind or each["broken"] or end in self._others
            if is_doubtful or self._whole.get(end, Counter()) != sent:
                self.unaccounted += int(each["dropped"])


def _end(data: Mapping[str, Any]) -> End:
    return str(data["cell"]), int(data["source_port"]), str(data["address"]), int(data["port"])
