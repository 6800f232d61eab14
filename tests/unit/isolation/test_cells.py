"""What a new cell's parts must be, and which failed start may pass by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.channel import Renewed, RenewedBit
from belljar.channel.frames import NEEDED_OF_CLONE, NEEDED_ON_A_NETWORK
from belljar.errors import CellError
from belljar.isolation.oci.trees import inner_tmp
from belljar.isolation.renewal import fresh_renewal, judge, renewed_event

ALL = (
    RenewedBit.RNG
    | RenewedBit.CLOCK
    | RenewedBit.MACHINE_ID
    | RenewedBit.BOOT_ID
    | RenewedBit.HOSTNAME
)


@pytest.mark.promise("3.1")
@pytest.mark.parametrize("missing", [*(bit for bit in ALL if bit is not RenewedBit.BOOT_ID), None])
def test_a_missing_part_fails_closed(missing: RenewedBit | None) -> None:
    """Fresh randomness, clock, ids, host name and network are needed; a new boot id is not."""
    if missing is None:
        found = Renewed(done=ALL & ~RenewedBit.BOOT_ID, detail="")
        judge(found, where="cell c-0", needed=NEEDED_OF_CLONE)
        event = renewed_event("c-0", found, fresh_renewal())
        assert event.data["done"] == ["rng", "clock", "machine_id", "hostname"]
        networked = Renewed(done=ALL | RenewedBit.NETWORK, detail="")
        judge(networked, where="cell c-0", needed=NEEDED_ON_A_NETWORK)
        missing, needed = RenewedBit.NETWORK, NEEDED_ON_A_NETWORK
    else:
        needed = NEEDED_OF_CLONE
    with pytest.raises(CellError, match=str(missing.name).lower()):
        judge(Renewed(done=ALL & ~missing, detail="\x1b why"), where="cell c-0", needed=needed)


@pytest.mark.parametrize("target", ["/etc", "x" * 300])
def test_an_images_link_is_not_followed_on_the_host(tmp_path: Path, target: str) -> None:
    """An image's /tmp that leads elsewhere counts as none, wherever it leads."""
    assert inner_tmp(tmp_path, "/new") == ""
    (tmp_path / "tmp").symlink_to(target)
    assert inner_tmp(tmp_path, "/new") == ""
    (tmp_path / "tmp").unlink()
    (tmp_path / "tmp").mkdir()
    assert inner_tmp(tmp_path, "/new") == "/new/tmp"
