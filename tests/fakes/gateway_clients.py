"""Hostile clients of a gateway, and small bounds to meet them with."""

from __future__ import annotations

import os
import random
from pathlib import Path

from tests.fakes.gateway import Gateway

from belljar.events import Kind
from belljar.network.gateway.config import Bounds

# In everything but time: what waits is `test_gateway_waits`' affair, and a busy machine no client's
# fault.
SMALL = Bounds(
    head_timeout_s=60.0, handshake_timeout_s=60.0, body_bytes=100_000, head_bytes=8192, headers=20
)


def reason(gateway: Gateway) -> str:
    """Why a request was refused: its head, or its body."""

    def reasons() -> list[str]:
        kinds = (Kind.NETWORK_HTTP, Kind.NETWORK_HTTP_ANSWERED)
        events = [event for event in gateway.owner.events if event.kind in kinds]
        return [str(event.data["reason"]) for event in events if event.data.get("reason")]

    gateway.owner.wait(lambda: bool(reasons()))
    return reasons()[0]


def resident_bytes(gateway: Gateway) -> int:
    """Memory of the gateway's process."""
    pages = int(Path(f"/proc/{gateway.process.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Some bytes changed."""
    found = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(found))
        choice = chance.randrange(3)
        if choice == 0:
            found[at] = chance.randrange(256)
        elif choice == 1:
            del found[at : at + chance.randint(1, 5)]
        else:
            found[at:at] = found[at : at + 20]
    return bytes(found)
