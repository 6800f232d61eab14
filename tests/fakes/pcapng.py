"""pcapng as the draft describes it, apart from Belljar's own writer and reader."""

from __future__ import annotations

import struct
from collections.abc import Iterator

SECTION, INTERFACE, PACKET = 0x0A0D0D0A, 1, 6
IN, OUT = 1, 2
"""Low two bits of `epb_flags`."""


def blocks(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and body of each block; both its lengths must be right."""
    at = 0
    while at < len(data):
        kind, size = struct.unpack_from("=II", data, at)
        assert size % 4 == 0
        assert struct.unpack_from("=I", data, at + size - 4) == (size,)
        yield kind, data[at + 8 : at + size - 4]
        at += size
    assert at == len(data)


def options(data: bytes) -> dict[int, bytes]:
    found, at = {}, 0
    while at < len(data):
        code, length = struct.unpack_from("=HH", data, at)
        if code == 0:
            break
        found[code] = data[at + 4 : at + 4 + length]
        at += 4 + length + -length % 4
    return found


def packets(data: bytes) -> Iterator[tuple[int, bytes, int]]:
    """Time (ns), frame and direction of each packet of a record; the rest must be as it should."""
    (kind, section), (then, interface), *rest = blocks(data)
    assert (kind, section[:8]) == (SECTION, struct.pack("=IHH", 0x1A2B3C4D, 1, 0))
    assert (then, interface[:8]) == (INTERFACE, struct.pack("=HHI", 1, 0, 65536))
    assert options(interface[8:]) == {9: b"\x09"}  # nanoseconds
    for kind, body in rest:
        assert kind == PACKET
        interface_id, high, low, kept, length = struct.unpack_from("=IIIII", body)
        assert interface_id == 0
        assert kept <= min(length, 65536)
        (flags,) = struct.unpack("=I", options(body[20 + kept + -kept % 4 :])[2])
        yield high << 32 | low, body[20 : 20 + kept], flags & 3
