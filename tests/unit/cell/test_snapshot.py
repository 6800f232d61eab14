"""Which cells are saved; that they are is shown in tests/integration/test_snapshot.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.vm import Stage, staged

from belljar.cell.decoys import place_decoys
from belljar.errors import CellError, PolicyError
from belljar.events import Kind
from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.policy.limits import Tier
from belljar.signals.credentials import KEY_BYTES
from belljar.signals.decoys import Minted, mint

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


def with_decoy(stage: Stage) -> Minted:
    """Give the cell a decoy and a policy that lets it be saved."""
    minted = mint(bytes(KEY_BYTES), "c-1", DecoySpec(id="keys", kind=DecoyKind.DOCUMENT))
    cell, plan = stage.cell, stage.cell.plan
    policy = plan.policy.model_copy(update={"snapshots": "with_secrets"})
    cell.plan, cell.decoys = replace(plan, policy=policy, tier=Tier.MICROVM), (minted,)
    cell.origin = cast("Any", SimpleNamespace(parts=SimpleNamespace(weights=None)))
    return minted


async def test_a_machine_whose_decoy_was_moved_away_is_not_saved() -> None:
    """A fork could not be given another in its place."""
    async with staged() as stage:
        with_decoy(stage)
        with pytest.raises(PolicyError, match="keys"):
            await stage.cell.snapshot()
        assert stage.kinds() == []


async def test_a_forks_decoy_that_cannot_be_replaced_is_not_the_policys_fault() -> None:
    """The saved cell's workload has changed what is at its place."""
    async with staged() as stage:
        minted = with_decoy(stage)
        stage.guest.files[minted.files[0].path] = b"in the way"
        with pytest.raises(CellError, match="keys"):
            await place_decoys(stage.cell, (), bytes(KEY_BYTES), replaced=[minted])
        assert stage.kinds() == [Kind.DECOY_FAILED]
