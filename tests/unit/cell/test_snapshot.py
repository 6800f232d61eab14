"""Which cells are saved; that they are is shown in tests/integration/test_snapshot.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.vm import Stage, staged

from belljar.cell.decoys import place_decoys
from belljar.cell.snapshot import _check
from belljar.errors import CellError, PolicyError
from belljar.events import Kind
from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.policy.limits import Tier
from belljar.signals.credentials import KEY_BYTES
from belljar.signals.decoys import Minted, mint

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({}, "snapshots: true"),
        ({"snapshots": True, "files": (SimpleNamespace(secret=True),)}, "with_secrets"),
        ({"snapshots": True, "decoys": (SimpleNamespace(),)}, "with_secrets"),
    ],
)
async def test_a_policy_has_to_allow_it(policy: dict[str, object], why: str) -> None:
    """Before anything is asked of the cell: with a hint at the field."""
    async with staged() as stage:
        cell, plan = stage.cell, stage.cell.plan
        cell.plan = replace(plan, policy=plan.policy.model_copy(update=policy))
        cell.origin = cast("Any", SimpleNamespace(parts=SimpleNamespace(weights=None)))
        with pytest.raises(PolicyError) as caught:
            await cell.snapshot()
        assert why in caught.value.hint
        assert stage.kinds() == []


def with_decoy(stage: Stage, tier: Tier) -> Minted:
    """Give the cell a decoy and a policy that lets it be saved."""
    minted = mint(bytes(KEY_BYTES), "c-1", DecoySpec(id="keys", kind=DecoyKind.DOCUMENT))
    cell, plan = stage.cell, stage.cell.plan
    policy = plan.policy.model_copy(update={"snapshots": "with_secrets"})
    cell.plan, cell.decoys = replace(plan, policy=policy, tier=tier), (minted,)
    cell.origin = cast("Any", SimpleNamespace(parts=SimpleNamespace(weights=None)))
    return minted


@pytest.mark.parametrize("content", [b"another", None])
async def test_a_machine_whose_decoy_was_changed_is_not_saved(content: bytes | None) -> None:
    """Or moved away: a fork could not be given another in its place."""
    async with staged() as stage:
        minted = with_decoy(stage, Tier.MICROVM)
        if content is not None:
            stage.guest.files[minted.files[0].path] = content
        with pytest.raises(PolicyError, match="keys"):
            await stage.cell.snapshot()
        assert stage.kinds() == []


@pytest.mark.parametrize("tier", [Tier.CONTAINER, Tier.GVISOR])
async def test_the_host_reads_no_decoy_where_its_read_would_hide_a_guests(tier: Tier) -> None:
    """While the host reads a file, a sensor on this host takes a guest that opens it for the host."""
    async with staged() as stage:
        minted, read = with_decoy(stage, tier), list[str]()
        stage.cell._live.client.own_reads.listeners.append(lambda path, _phase: read.append(path))
        await _check(stage.cell, cast("Any", stage.cell.origin))
        assert minted.files[0].path not in read


async def test_a_forks_decoy_that_cannot_be_replaced_is_not_the_policys_fault() -> None:
    """The saved cell's workload has changed what is at its place."""
    async with staged() as stage:
        minted = with_decoy(stage, Tier.MICROVM)
        stage.guest.files[minted.files[0].path] = b"in the way"
        with pytest.raises(CellError, match="keys"):
            await place_decoys(stage.cell, (), bytes(KEY_BYTES), replaced=[minted])
        assert stage.kinds() == [Kind.DECOY_FAILED]
