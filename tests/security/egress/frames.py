"""The frames of a packet record, as far down as the cases look: Ethernet, ARP, IPv4, IPv6's
addresses, TCP, UDP, ICMP. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address

from tests.fakes.pcapng import packets

ARP, IPV4, IPV6 = 0x0806, 0x0800, 0x86DD
TCP, UDP, ICMP, IGMP = 6, 17, 1, 2
SYN, RST = 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    at_s: float
    to_mac: str
    from_mac: str
    kind: int
    source: str = ""
    target: str = ""
    protocol: int = 0
    source_port: int = 0
    target_port: int = 0
    flags: int = 0
    icmp: tuple[int, int] = (0, 0)
    quoted: tuple[int, str, int] = (0, "", 0)
    is_fragment: bool = False
    has_options: bool = False
    payload: bytes = b""

    @property
    def is_refusal(self) -> bool:
        """A reset, or ICMP's unreachable: what a refused sender gets, with nothing in it."""
        reset = self.protocol == TCP and bool(self.flags & RST) and not self.payload
        return reset or (self.protocol == ICMP and self.icmp[0] == 3)


def read_frames(record: bytes) -> Iterator[Frame]:
    return (_frame(time_ns * 1e-9, frame) for time_ns, frame, _ in packets(record))


def _frame(at_s: float, data: bytes) -> Frame:
    kind = int.from_bytes(data[12:14], "big")
    frame = {
        "at_s": at_s,
        "to_mac": data[:6].hex(":"),
        "from_mac": data[6:12].hex(":"),
        "kind": kind,
    }
    body = data[14:]
    if kind == IPV4 and len(body) >= 20:
        return Frame(**frame, **_ipv4(body))  # type: ignore[arg-type]
    if kind == IPV6 and len(body) >= 40:
        source, target = (str(IPv6Address(body[at : at + 16])) for at in (8, 24))
        return Frame(**frame, source=source, target=target, protocol=body[6], payload=body[40:])  # type: ignore[arg-type]
    if kind == ARP and len(body) >= 28:
        source, target = (str(IPv4Address(body[at : at + 4])) for at in (14, 24))
        return Frame(**frame, source=source, target=target)  # type: ignore[arg-type]
    return Frame(**frame, payload=body)  # type: ignore[arg-type]


def _ipv4(body: bytes) -> dict[str, object]:
    length = (body[0] & 15) * 4
    total, part, protocol = (
        int.from_bytes(body[2:4], "big"),
        int.from_bytes(body[6:8], "big"),
        body[9],
    )
    inner = body[
        length : total or len(body)
    ]  # a length of 0: one frame for many, that the device would have parted
    found: dict[str, object] = {
        "source": str(IPv4Address(body[12:16])),
        "target": str(IPv4Address(body[16:20])),
        "protocol": protocol,
        "is_fragment": bool(part & 0x3FFF),
        "has_options": length > 20,
        "payload": inner,
    }
    if part & 0x1FFF:
        return found  # not the first part: no ports in it
    return found | _inner(protocol, inner)


def _inner(protocol: int, inner: bytes) -> dict[str, object]:
    if protocol == TCP and len(inner) >= 20:
        ports = struct.unpack_from("!HH", inner)
        start = (inner[12] >> 4) * 4
        return {
            "source_port": ports[0],
            "target_port": ports[1],
            "flags": inner[13],
            "payload": inner[start:],
        }
    if protocol == UDP and len(inner) >= 8:
        ports = struct.unpack_from("!HH", inner)
        return {"source_port": ports[0], "target_port": ports[1], "payload": inner[8:]}
    if protocol == ICMP and len(inner) >= 8:
        return {"icmp": (inner[0], inner[1]), "quoted": _quoted(inner[8:]), "payload": inner[8:]}
    return {}


def _quoted(inner: bytes) -> tuple[int, str, int]:
    if len(inner) < 24:
        return (0, "", 0)
    length = (inner[0] & 15) * 4
    return (
        inner[9],
        str(IPv4Address(inner[16:20])),
        int.from_bytes(inner[length + 2 : length + 4], "big"),
    )
