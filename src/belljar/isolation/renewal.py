"""What makes a new cell a machine of its own: its port on the range's network, and fresh identity.

The network room makes ports, isolation makes cells; what they share is here. A clone whose guest
did not renew itself must not run."""

from __future__ import annotations

import os
import time
import uuid
from ipaddress import IPv4Address
from typing import Final, Protocol

from belljar.channel import Renewed, RenewedBit, network_part
from belljar.dataclass import dataclass
from belljar.errors import CellError
from belljar.units import printable

SEED_BYTES: Final = 256
NEEDED_OF_CLONE: Final = (
    RenewedBit.RNG | RenewedBit.CLOCK | RenewedBit.MACHINE_ID | RenewedBit.HOSTNAME
)
"""A clone without these is a copy. The boot id is renewed where the guest's kernel lets it."""
NEEDED_ON_A_NETWORK: Final = NEEDED_OF_CLONE | RenewedBit.NETWORK
NEEDED_OF_CONTAINER: Final = RenewedBit.HOSTNAME
"""Randomness and clock are its kernel's own; a machine id is made new where the image has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """One clone's new self. The seed is a secret and never recorded; the names say nothing."""

    seed: bytes
    machine_id: str
    boot_id: str
    hostname: str


def fresh_renewal() -> Renewal:
    """From the host's randomness."""
    return Renewal(
        seed=os.urandom(SEED_BYTES),
        machine_id=uuid.uuid4().hex,
        boot_id=str(uuid.uuid4()),
        hostname=f"host-{os.urandom(4).hex()}",
    )


def network_of(settings: PortSettings) -> bytes:
    """What RENEW tells a guest of its port. Raises `ValueError` for impossible settings."""
    return network_part(
        address=settings.address,
        gateway=settings.gateway,
        mac=settings.mac,
        gateway_mac=settings.gateway_mac,
        resolver=settings.resolver,
        mtu=settings.mtu,
    )


def now_ns() -> int:
    """The realtime clock, read as late as possible."""
    return time.time_ns()


def renewed_names(renewed: Renewed) -> list[str]:
    """What the guest says it made new, for the record."""
    return [bit.name.lower() for bit in RenewedBit if bit in renewed.done and bit.name is not None]


def judge(renewed: Renewed, *, where: str, needed: RenewedBit = NEEDED_OF_CLONE) -> None:
    """Raise `CellError` unless the guest did what makes it a new machine: else it must not run."""
    missing = [
        bit.name.lower()
        for bit in RenewedBit
        if bit in needed and bit not in renewed.done and bit.name is not None
    ]
    if missing:
        detail = f" ({printable(renewed.detail, max_chars=300)})" if renewed.detail else ""
        raise CellError(
            f"the guest did not renew its {', '.join(missing)}{detail}",
            where=where,
            hint="the cell was destroyed; nothing ran in it",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PortSettings:
    """What is configured at the cell's end of its link.

    The address is a /32: only the gateway is on the link, as a permanent neighbour. MACs are lower
    case hexadecimal with colons, local, unicast; `mtu` at most 65535.
    """

    address: IPv4Address
    gateway: IPv4Address
    mac: str
    gateway_mac: str
    resolver: IPv4Address
    mtu: int = 1500


class Port(Protocol):
    """One port of a range, made for one cell."""

    @property
    def settings(self) -> PortSettings:
        """What the cell is told."""
        ...

    @property
    def range_id(self) -> str:
        """The range that it is of; "" when it is nobody's."""
        ...

    @property
    def user_namespace(self) -> int | None:
        """The user namespace below which the cell's jail must be made; None: anywhere (root).

        The port's descriptor. In it 0 is the user and 1 to 65536 the subordinate ids in order, for
        groups too; `setgroups` is allowed.
        """
        ...

    async def attach(self, pid: int) -> None:
        """Put the configured link into the network namespace of that process of the host, up.

        Called before anything of the cell's runs there; again only after the last namespace's end.
        Raises `BelljarError`: the link can't be made, or the range is gone; the cell is then ended.
        """
        ...
