"""TCP conversations out of a packet record (pcap, Ethernet, IPv4). Pure: bytes in, data out; every byte of it is a guest's.

The record is whole but for what rotation threw away and what a full disk kept out, so both directions are put together from sequence numbers (RFC 9293, section 3.4),
up to the first gap. What a sender said twice counts as it was said first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Final

MAX_CONVERSATIONS: Final = 20_000
MAX_STREAM_BYTES: Final = 4 << 20
"""Of each direction of a conversation: what comes after is not looked at."""
_MAX_PACKET_BYTES: Final = 1 << 18
_MAGIC: Final = {
    b"\xd4\xc3\xb2\xa1": ("<", 1e-6),
    b"\xa1\xb2\xc3\xd4": (">", 1e-6),
    b"\x4d\x3c\xb2\xa1": ("<", 1e-9),
    b"\xa1\xb2\x3c\x4d": (">", 1e-9),
}
_HEADER_BYTES: Final = 24
_ETHERNET: Final = 1
_ETHERTYPE_IPV4: Final = 0x0800
_TCP: Final = 6
_FIN, _SYN, _RST, _ACK = 1, 2, 4, 16
_HALF: Final = 1 << 31
_WHOLE: Final = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One TCP segment. `at_s`: seconds since the epoch."""

    at_s: float
    source: tuple[str, int]
    target: tuple[str, int]
    sequence: int
    flags: int
    payload: bytes


@dataclass(slots=True)
class _Stream:
    """One direction: what was said, in order, as far as it is known; `early` is what came before its turn."""

    next_sequence: int | None = None
    said: bytearray = field(default_factory=bytearray)
    early: dict[int, bytes] = field(default_factory=dict)
    early_bytes: int = 0

    def take(self, segment: Segment) -> None:
        """One segment more, in whatever order."""
        if segment.flags & _SYN:
            self.next_sequence = (segment.sequence + 1) % _WHOLE
        elif segment.payload and self.next_sequence is not None:
            self._place(segment.sequence, segment.payload, self.next_sequence)

    def finish(self) -> bytes:
        """All that is known up to the first gap."""
        first = self.next_sequence or 0
        for sequence in sorted(self.early, key=lambda each: (each - first + _HALF) % _WHOLE):
            if not self._append(self.early[sequence], sequence):
                break
        return bytes(self.said)

    def _place(self, sequence: int, payload: bytes, expected: int) -> None:
        if (expected - sequence) % _WHOLE < _HALF:
            self._append(payload, sequence)
            while (late := self.early.pop(self.next_sequence or 0, None)) is not None:
                self.early_bytes -= len(late)
                self._append(late, self.next_sequence or 0)
        elif sequence not in self.early and self.early_bytes + len(payload) <= MAX_STREAM_BYTES:
            self.early[sequence] = payload
            self.early_bytes += len(payload)

    def _append(self, payload: bytes, sequence: int) -> bool:
        """False when there is a gap before it."""
        expected = self.next_sequence or 0
        behind = (expected - sequence) % _WHOLE
        if behind >= _HALF:
            return False
        fresh = payload[behind:]
        self.next_sequence = (expected + len(fresh)) % _WHOLE
        self.said += fresh[: MAX_STREAM_BYTES - len(self.said)]
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A TCP connection as it was seen: who began it, and what each side said, in order, at most `MAX_STREAM_BYTES`."""

    client: tuple[str, int]
    server: tuple[str, int]
    began_s: float
    ended_s: float
    sent: bytes
    received: bytes


@dataclass(slots=True)
class _Open:
    client: tuple[str, int]
    server: tuple[str, int]
    began_s: float
    ended_s: float
    sent: _Stream = field(default_factory=_Stream)
    received: _Stream = field(default_factory=_Stream)

    def closed(self) -> Conversation:
        return Conversation(
            client=self.client,
            server=self.server,
            began_s=self.began_s,
            ended_s=self.ended_s,
            sent=self.sent.finish(),
            received=self.received.finish(),
        )


def conversations(segments: Iterable[Segment]) -> Iterator[Conversation]:
    """The connections that were begun within the record, in the order of their beginnings; at most `MAX_CONVERSATIONS`."""
    found: dict[tuple[tuple[str, int], tuple[str, int]], _Open] = {}
    done: list[_Open] = []
    for segment in segments:
        pair = (segment.source, segment.target)
        if segment.flags & (_SYN | _ACK) == _SYN:
            known = found.get(pair)
            if known is not None and not known.received.said and not known.sent.said:
                known.sent.take(segment)  # said again
            elif len(found) + len(done) < MAX_CONVERSATIONS:
                done += [known] if known is not None else []
                found[pair] = _Open(*pair, segment.at_s, segment.at_s)
                found[pair].sent.take(segment)
            continue
        _take(found.get(pair), found.get(pair[::-1]), segment)
    yield from (each.closed() for each in sorted([*done, *found.values()], key=lambda each: each.began_s))


def _take(sent: _Open | None, received: _Open | None, segment: Segment) -> None:
    if sent is not None:
        sent.ended_s = segment.at_s
        sent.sent.take(segment)
    elif received is not None:
        received.ended_s = segment.at_s
        received.received.take(segment)


def read_segments(record: bytes) -> Iterator[Segment]:
    """The TCP segments of a packet record; other packets, fragments and damaged ones are passed over. Raises `ValueError` when it is no such record."""
    order, unit_s = _MAGIC.get(record[:4], ("", 0.0))
    if not order or len(record) < _HEADER_BYTES:
        raise ValueError("no packet record: its first bytes are not pcap's")
    if struct.unpack_from(f"{order}I", record, 20)[0] & 0xFFFF != _ETHERNET:
        raise ValueError("a packet record of another link than Ethernet")
    at = _HEADER_BYTES
    while at + 16 <= len(record):
        seconds, fraction, kept, _ = struct.unpack_from(f"{order}IIII", record, at)
        at += 16
        if kept > _MAX_PACKET_BYTES or at + kept > len(record):
            return
        segment = _segment(record[at : at + kept], seconds + fraction * unit_s)
        at += kept
        if segment is not None:
            yield segment


def _segment(frame: bytes, at_s: float) -> Segment | None:
    if len(frame) < 34 or int.from_bytes(frame[12:14], "big") != _ETHERTYPE_IPV4:
        return None
    packet = frame[14:]
    header_bytes, length = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big")
    fragment = int.from_bytes(packet[6:8], "big") & 0x3FFF
    whole = packet[0] >> 4 == 4 and 20 <= header_bytes <= length <= len(packet)
    if not whole or fragment or packet[9] != _TCP:
        return None
    return _tcp(packet[header_bytes:length], str(IPv4Address(packet[12:16])), str(IPv4Address(packet[16:20])), at_s)


def _tcp(segment: bytes, source: str, target: str, at_s: float) -> Segment | None:
    if len(segment) < 20:
        return None
    source_port, target_port, sequence = struct.unpack_from("!HHI", segment)
    header_bytes = (segment[12] >> 4) * 4
    if not 20 <= header_bytes <= len(segment):
        return None
    return Segment(
        at_s=at_s,
        source=(source, source_port),
        target=(target, target_port),
        sequence=sequence,
        flags=segment[13],
        payload=segment[header_bytes:],
    )
