"""What makes a clone a new machine: fresh values out, the guest's answer judged.

Pure but for the randomness and the clock it is given.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Final

from belljar.channel import Renewed, RenewedBit, network_part
from belljar.dataclass import dataclass
from belljar.errors import CellError
from belljar.isolation.port import PortSettings
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
    """What RENEW tells a guest of its port.

    Raises `ValueError` for settings that can't be a link's.
    """
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
    """Raises `CellError` when the guest did not do what makes it a new machine: such a clone must
    not run.
    """
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
