"""A new cell's port and fresh identity, for network and isolation."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import IPv4Address
from typing import TYPE_CHECKING, Final

from belljar.dataclass import dataclass, field
from belljar.errors import CellError
from belljar.events import Event, JsonValue, Kind, Trust
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.channel import GuestClient, RenewedBit

# What a guest's device takes in, in bytes of a packet: without merged buffers, no more than an
# Ethernet frame's.
MTU: Final = 1500
# RENEW takes 32 to 512 bytes.
SEED_BYTES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """`seed` is secret and never recorded."""

    seed: bytes = field(default_factory=partial(os.urandom, SEED_BYTES))
    machine_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    boot_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    hostname: str = field(default_factory=lambda: f"host-{os.urandom(4).hex()}")


async def renew(
    client: GuestClient, new: Renewal, port: GivenPort | None, *, cell_id: str, needed: RenewedBit
) -> Event:
    from belljar.channel.frames import RenewedBit, counted

    network, place = b"", dict[str, JsonValue]()
    if port is not None:
        network, needed = port.settings.packed(), needed | RenewedBit.NETWORK
        place = {"address": str(port.settings.address), "mac": port.settings.mac}
    texts = (new.machine_id.encode(), new.boot_id.encode(), new.hostname.encode())
    identity = b"".join(map(counted, (new.seed, *texts)))
    renewed = await client.renew(time.time_ns().to_bytes(8, "little") + identity + network)
    if missing := [str(bit.name).lower() for bit in needed if bit not in renewed.done]:
        detail = f" ({printable(renewed.detail, max_chars=300)})" if renewed.detail else ""
        raise CellError(
            f"the guest did not renew its {', '.join(missing)}{detail}",
            where=f"cell {cell_id}",
            hint="the cell was destroyed; nothing ran in it",
        )
    done: list[JsonValue] = [str(bit.name).lower() for bit in renewed.done]
    data = {"done": done, "machine_id": new.machine_id, "hostname": new.hostname, **place}
    return Event(kind=Kind.CELL_RENEWED, cell_id=cell_id, data=data, trust=Trust.GUEST_REPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSettings:
    """`address` is a /32; MACs are in lower case."""

    address: IPv4Address
    gateway: IPv4Address
    mac: str
    gateway_mac: str

    def packed(self) -> bytes:
        """Return RENEW's network part; the gateway is the resolver."""
        macs = bytes.fromhex((self.mac + self.gateway_mac).replace(":", ""))
        ends = self.address.packed + self.gateway.packed
        return ends + macs + self.gateway.packed + MTU.to_bytes(2, "little")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenPort:
    """A range's port for one cell.

    `user_namespace` is the jail's parent; None: any (root). In it 0 is the user, 1 to 65536 the
    subordinate ids, for groups too; `setgroups` is allowed.

    `attach` puts the link into that host process's network namespace before the cell runs.
    Raises `BelljarError`: end the cell.
    """

    settings: PortSettings
    user_namespace: int | None
    attach: Callable[[int], Awaitable[None]]
