"""What a new cell's parts must be, and which failed start may pass by itself."""

from __future__ import annotations

from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from belljar.channel import RenewedBit
from belljar.channel.frames import NEEDED_OF_CLONE, Answer, FrameType
from belljar.errors import CellError
from belljar.isolation.oci.trees import inner_tmp
from belljar.isolation.renewal import PortSettings, Renewal, renew

ALL = ~RenewedBit.NETWORK
SETTINGS = PortSettings(
    address=IPv4Address("10.0.0.2"),
    gateway=IPv4Address("10.0.0.1"),
    mac="02:00:00:00:00:02",
    gateway_mac="02:00:00:00:00:01",
)


def guest(done: RenewedBit) -> Any:  # noqa: ANN401 - a client
    answer = Answer(kind=FrameType.RENEWED, done=done, detail="\x1b why")
    return SimpleNamespace(renew=AsyncMock(return_value=answer))


@pytest.mark.anyio
@pytest.mark.promise("3.1")
@pytest.mark.parametrize("missing", [*(bit for bit in ALL if bit is not RenewedBit.BOOT_ID), None])
async def test_a_missing_part_fails_closed(missing: RenewedBit | None) -> None:
    """Fresh randomness, clock, ids, host name and network are needed; a new boot id is not."""
    port: Any = None
    of_clone = partial(renew, new=Renewal(), cell_id="c-0", needed=NEEDED_OF_CLONE)
    if missing is None:
        event = await of_clone(guest(ALL & ~RenewedBit.BOOT_ID), port=None)
        assert event.data["done"] == ["rng", "clock", "machine_id", "hostname"]
        missing = RenewedBit.NETWORK
        port = SimpleNamespace(settings=SETTINGS)
        assert (await of_clone(guest(ALL | missing), port=port)).data["mac"] == SETTINGS.mac
    with pytest.raises(CellError, match=str(missing.name).lower()):
        await of_clone(guest(ALL & ~missing), port=port)


@pytest.mark.parametrize("target", ["/etc", "x" * 300])
def test_an_images_link_is_not_followed_on_the_host(tmp_path: Path, target: str) -> None:
    """An image's /tmp that leads elsewhere counts as none, wherever it leads."""
    assert inner_tmp(tmp_path, "/new") == ""
    (tmp_path / "tmp").symlink_to(target)
    assert inner_tmp(tmp_path, "/new") == ""
    (tmp_path / "tmp").unlink()
    (tmp_path / "tmp").mkdir()
    assert inner_tmp(tmp_path, "/new") == "/new/tmp"
