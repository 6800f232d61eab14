"""A range's lifetime, where it needs no network."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from tests.fakes.recorder import MemoryRecorder

from belljar.network.owner.making import RangeSpec
from belljar.network.owner.range import open_range
from belljar.plan.addresses import lay_out
from belljar.plan.network import NetworkPlan


@pytest.mark.anyio
async def test_one_that_was_not_begun_is_not_ended(tmp_path: Path) -> None:
    """Whoever is cancelled before has no range on record: neither its opening nor its end."""
    network, recorder = NetworkPlan(), MemoryRecorder()
    layout = lay_out(network, ["agent"], random_bytes=bytes(16), avoid=[])
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with open_range(
            RangeSpec(network=network, layout=layout, directory=tmp_path),
            recorder=recorder,
            home=tmp_path,
        ):
            raise AssertionError("it was opened")
    assert scope.cancelled_caught
    assert recorder.events == []
