"""TCP conversations out of a packet record.

Pure: bytes in, data out; every byte of it is a guest's.

Only frames that the range sent on to their receivers count.
A conversation begins with the server's SYN-ACK, which has both first sequence numbers (RFC 9293,
section 3.5). So no segment of a client can begin one, or begin it anew.
Both directions are put together from sequence numbers, up to the first gap.
Of overlapping segments with different data the first version is shown, and the conversation is
`ambiguous`: which version the receiver took is unknown.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from socket import inet_ntoa
from typing import Final, NamedTuple, TypeAlias

MAX_CONVERSATIONS: Final = 20_000
"""Conversations with data: a further one is not read, and counted."""
MAX_BEGUN: Final = 200_000
"""Connections, silent ones included: a further one is not read, and counted."""
MAX_STREAM_BYTES: Final = 4 << 20
"""Of each direction of a conversation: what follows is not read, and counted."""
MAX_HELD_BYTES: Final = 256 << 20  # Of all conversations together, likewise.
MAX_STRAYS: Final = 100
"""Pairs of ends with segments outside of any connection; the rest are counted together."""
_HELD_BESIDE_BYTES: Final = 128
_MAX_FAST_OPEN: Final = 1000
_ETHERTYPE_IPV4: Final = b"\x08\x00"
_TCP: Final = 6
_FIN, _SYN, _RST, _ACK, _URG = 1, 2, 4, 16, 32
_HALF: Final = 1 << 31
_WHOLE: Final = 1 << 32
End: TypeAlias = tuple[str, int]  # Address and port.


class Segment(NamedTuple):
    """One TCP segment. `is_sound`: its checksum is right, or left to a device."""

    at_s: float
    source: End
    target: End
    sequence: int
    acknowledged: int
    flags: int
    payload: bytes
    length_bytes: int
    is_sound: bool = True


@dataclass(slots=True)
class _Stream:
    """One direction, in order; `early` holds segments before their turn."""

    next_sequence: int
    data: bytearray = field(default_factory=bytearray)
    length: int = 0
    early: dict[int, bytes] = field(default_factory=dict)
    early_bytes: int = 0
    ambiguous: bool = False
    cut_bytes: int = 0

    def take(self, sequence: int, payload: bytes) -> None:
        if (self.next_sequence - sequence) % _WHOLE >= _HALF:
            known = self.early.get(sequence, b"")
            self.ambiguous |= payload[: len(known)] != known[: len(payload)]
            fresh = payload[len(known) :]
            if self.early_bytes + len(fresh) > MAX_STREAM_BYTES:
                self.cut_bytes += len(fresh)
            else:
                self.early[sequence] = known + fresh
                self.early_bytes += len(fresh)
            return
        self._append(sequence, payload)
        while (late := self.early.pop(self.next_sequence, None)) is not None:
            self.early_bytes -= len(late)
            self._append(self.next_sequence, late)

    def finish(self) -> bool:
        """Append early segments up to a gap; whether there is one."""
        now = self.next_sequence
        for sequence in sorted(self.early, key=lambda each: (each - now + _HALF) % _WHOLE):
            if (self.next_sequence - sequence) % _WHOLE >= _HALF:
                return True
            self._append(sequence, self.early[sequence])
        return False

    def _append(self, sequence: int, payload: bytes) -> None:
        """Take a segment that begins at the next byte or before it."""
        behind = (self.next_sequence - sequence) % _WHOLE
        start = self.length - behind
        # Before the stream's beginning only the one byte of a keepalive is usual
        if start < 0 and (start < -1 or len(payload) > 1):
            self.ambiguous = True
            self.cut_bytes += min(-start, len(payload))
        again = payload[max(0, -start) : behind]
        known = self.data[max(0, start) : max(0, start) + len(again)]
        self.ambiguous |= known != again[: len(known)]
        fresh = payload[behind:]
        self.length += len(fresh)
        self.next_sequence = (self.next_sequence + len(fresh)) % _WHOLE
        kept = fresh[: MAX_STREAM_BYTES - len(self.data)]
        self.data += kept
        self.cut_bytes += len(fresh) - len(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A TCP connection: what client and server sent in order, up to `MAX_STREAM_BYTES` each.

    `ambiguous`: a sender sent two versions of a byte, or what an honest stack doesn't send.
    `has_gap`: bytes are missing from the record, and `sent` or `received` ends there.
    """

    client: End
    server: End
    began_s: float
    ended_s: float
    sent: bytes
    received: bytes
    ambiguous: bool = False
    has_gap: bool = False
    cut_bytes: int = 0


@dataclass(slots=True)
class _Open:
    numbers: tuple[int, int]
    client: End
    server: End
    began_s: float
    ended_s: float
    sent: _Stream
    received: _Stream
    has_data: bool = False
    is_left_out: bool = False
    is_ended: bool = False
    ambiguous: bool = False

    def closed(self) -> Conversation:
        has_gap = self.sent.finish() | self.received.finish()
        return Conversation(
            client=self.client,
            server=self.server,
            began_s=self.began_s,
            ended_s=self.ended_s,
            sent=bytes(self.sent.data),
            received=bytes(self.received.data),
            ambiguous=self.ambiguous or self.sent.ambiguous or self.received.ambiguous,
            has_gap=has_gap,
            cut_bytes=self.sent.cut_bytes + self.received.cut_bytes,
        )


class ConversationTracker:
    """Takes segments, yields conversations with served ports."""

    def __init__(self, is_served: Callable[[End], bool]) -> None:
        self.left_out: Counter[str] = Counter()
        """How many were not read, by bound: `connections`, `bytes`."""
        self.strays: dict[tuple[str, str, int | None], list[int]] = {}
        """(source, target, served port) → segments and bytes outside of any connection.

        The port is None where the target serves none; the empty key is all others'.
        """
        self._is_served = is_served
        self._found: dict[tuple[End, End], _Open] = {}
        self._done: list[_Open] = []
        self._fast_open: dict[tuple[End, End], Segment] = {}
        self._with_data = 0
        self._held_bytes = 0

    def take(self, segment: Segment) -> None:
        """The next segment, in the order of sending."""
        client, server = self._is_served(segment.target), self._is_served(segment.source)
        if segment.flags & _RST or not (client or server):
            return
        if segment.flags & _SYN:
            self._take_syn(segment, by_server=server)
        elif (found := self._found.get((segment.source, segment.target))) is not None:
            self._take_data(found, found.sent, segment)
        elif (found := self._found.get((segment.target, segment.source))) is not None:
            self._take_data(found, found.received, segment)
        else:
            key = (segment.source[0], segment.target[0], segment.target[1] if client else None)
            if key not in self.strays and len(self.strays) >= MAX_STRAYS:
                key = ("", "", None)
            counted = self.strays.setdefault(key, [0, 0])
            counted[0] += 1
            counted[1] += segment.length_bytes

    def finish(self) -> Iterator[Conversation]:
        """Conversations with data, in the order of their beginnings. Once."""
        with_data = [each for each in (*self._done, *self._found.values()) if each.has_data]
        self._found, self._done = {}, []
        yield from (each.closed() for each in sorted(with_data, key=lambda each: each.began_s))

    def _take_syn(self, segment: Segment, *, by_server: bool) -> None:
        if segment.flags & _ACK:
            if by_server:
                self._begin(segment, (segment.target, segment.source))
        elif segment.payload and len(self._fast_open) < _MAX_FAST_OPEN:
            # TCP Fast Open data (RFC 7413) counts if it is answered; two versions are ambiguous
            pair = (segment.source, segment.target)
            first = self._fast_open.setdefault(pair, segment)
            if (first.sequence, first.payload) != (segment.sequence, segment.payload):
                self._fast_open[pair] = first._replace(flags=first.flags | _URG)
        else:
            self.left_out["bytes"] += len(segment.payload)

    def _begin(self, segment: Segment, pair: tuple[End, End]) -> None:
        if (reverse := self._found.get((pair[1], pair[0]))) is not None:
            reverse.ambiguous = True  # a connection's client answers no SYN
            return
        asked = self._fast_open.pop(pair, None)
        numbers = (segment.sequence, segment.acknowledged)
        known = self._found.get(pair)
        if known is not None:
            if known.numbers == numbers:  # sent again
                return
            known.ambiguous |= not known.is_ended
            del self._found[pair]
            if known.has_data:
                self._done.append(known)
        if len(self._found) + len(self._done) >= MAX_BEGUN:
            self.left_out["connections"] += 1
            return
        taken = 0 if asked is None else (numbers[1] - asked.sequence - 1) % _WHOLE
        is_taken = asked is not None and taken == len(asked.payload)
        first = (numbers[1] - taken) % _WHOLE if is_taken else numbers[1]
        streams = _Stream(first), _Stream((numbers[0] + 1) % _WHOLE)
        new = self._found[pair] = _Open(numbers, *pair, segment.at_s, segment.at_s, *streams)
        if asked is not None and is_taken:
            self._take_data(new, new.sent, asked._replace(sequence=first))

    def _take_data(self, found: _Open, stream: _Stream, segment: Segment) -> None:
        found.is_ended |= bool(segment.flags & _FIN)
        if not segment.payload:
            return
        # No stack takes them (RFC 9293, 3.10.7.4)
        if not segment.is_sound or not segment.flags & (_ACK | _SYN):
            found.ambiguous = True
            return
        if not (found.has_data or found.is_left_out):
            found.has_data = self._with_data < MAX_CONVERSATIONS
            found.is_left_out = not found.has_data
            self._with_data += found.has_data
            self.left_out["connections"] += found.is_left_out
        if found.is_left_out:
            return
        size = len(segment.payload) + _HELD_BESIDE_BYTES
        if self._held_bytes + size > MAX_HELD_BYTES:
            stream.cut_bytes += len(segment.payload)
            return
        self._held_bytes += size
        found.ended_s = segment.at_s
        found.ambiguous |= bool(segment.flags & _URG)
        stream.take(segment.sequence, segment.payload)


def read_segments(frames: Iterable[tuple[float, bytes]]) -> Iterator[Segment]:
    """TCP segments of (time, frame); other packets, fragments and damaged ones are skipped."""
    for at_s, frame in frames:
        packet = frame[14:]
        if len(packet) < 20 or frame[12:14] != _ETHERTYPE_IPV4:
            continue
        header_bytes, length = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big")
        is_fragment = int.from_bytes(packet[6:8], "big") & 0x3FFF
        is_whole = packet[0] >> 4 == 4 and 20 <= header_bytes <= length <= len(packet)
        segment = packet[header_bytes:length]
        if is_fragment or not is_whole or packet[9] != _TCP or len(segment) < 20:
            continue
        source_port, target_port, sequence, acknowledged = struct.unpack_from("!HHII", segment)
        data_at = (segment[12] >> 4) * 4
        if not 20 <= data_at <= len(segment):
            continue
        yield Segment(
            at_s=at_s,
            source=(inet_ntoa(packet[12:16]), source_port),
            target=(inet_ntoa(packet[16:20]), target_port),
            sequence=sequence,
            acknowledged=acknowledged,
            flags=segment[13],
            payload=segment[data_at:],
            length_bytes=length,
            is_sound=_is_sound(segment, packet[12:20]),
        )


def _is_sound(segment: bytes, addresses: bytes) -> bool:
    """RFC 9293 section 3.1; checksum offload leaves the pseudo header's sum there."""
    pseudo = int.from_bytes(addresses + struct.pack("!HH", _TCP, len(segment)), "big")
    text = int.from_bytes(segment + b"\0" * (len(segment) % 2), "big")
    unfinished = (pseudo - int.from_bytes(segment[16:18], "big")) % 0xFFFF == 0
    return unfinished or (pseudo + text) % 0xFFFF == 0
