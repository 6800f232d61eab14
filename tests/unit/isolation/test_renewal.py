"""What makes a clone a new machine is judged, not assumed."""

from __future__ import annotations

import pytest

from belljar.channel import Renewed, RenewedBit
from belljar.channel.frames import NEEDED_OF_CLONE, NEEDED_ON_A_NETWORK
from belljar.errors import CellError
from belljar.isolation.renewal import fresh_renewal, judge, renewed_event

ALL = (
    RenewedBit.RNG
    | RenewedBit.CLOCK
    | RenewedBit.MACHINE_ID
    | RenewedBit.BOOT_ID
    | RenewedBit.HOSTNAME
)


@pytest.mark.promise("3.1")
@pytest.mark.parametrize(
    "bit", [RenewedBit.RNG, RenewedBit.CLOCK, RenewedBit.MACHINE_ID, RenewedBit.HOSTNAME]
)
def test_a_missing_part_fails_closed(bit: RenewedBit) -> None:
    """Without fresh randomness, clock, machine id or host name a clone does not run; the message
    names what is missing."""
    with pytest.raises(CellError, match=str(bit.name).lower()):
        judge(Renewed(done=ALL & ~bit, detail="\x1b why"), where="cell c-0", needed=NEEDED_OF_CLONE)


def test_the_boot_id_is_where_possible() -> None:
    """All but the boot id is enough; the record says what was done."""
    renewed = Renewed(done=ALL & ~RenewedBit.BOOT_ID, detail="")
    judge(renewed, where="cell c-0", needed=NEEDED_OF_CLONE)
    event = renewed_event("c-0", renewed, fresh_renewal())
    assert event.data["done"] == ["rng", "clock", "machine_id", "hostname"]


def test_a_network_that_did_not_come_up_fails_closed() -> None:
    """A clone with a port whose guest says nothing of its network does not run."""
    judge(
        Renewed(done=ALL | RenewedBit.NETWORK, detail=""),
        where="cell c-0",
        needed=NEEDED_ON_A_NETWORK,
    )
    with pytest.raises(CellError, match="network"):
        judge(Renewed(done=ALL, detail=""), where="cell c-0", needed=NEEDED_ON_A_NETWORK)
