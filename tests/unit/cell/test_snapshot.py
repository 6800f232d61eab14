"""Which cells are saved; that they are is shown in tests/integration/test_snapshot.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.fakes.vm import staged

from belljar.errors import PolicyError
from belljar.policy.guarding import DecoyKind, DecoySpec
from belljar.signals.credentials import KEY_BYTES
from belljar.signals.decoys import mint

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
        cell.origin = SimpleNamespace(parts=SimpleNamespace(weights=None))
        with pytest.raises(PolicyError) as caught:
            await cell.snapshot()
        assert why in caught.value.hint
        assert stage.kinds() == []


@pytest.mark.parametrize("content", [b"another", None])
async def test_a_cell_whose_decoy_was_changed_is_not_saved(content: bytes | None) -> None:
    """Or moved away: a fork could not be given another in its place."""
    minted = mint(bytes(KEY_BYTES), "c-1", DecoySpec(id="keys", kind=DecoyKind.API_KEY))
    async with staged() as stage:
        cell, plan = stage.cell, stage.cell.plan
        policy = plan.policy.model_copy(update={"snapshots": "with_secrets"})
        cell.plan, cell.decoys = replace(plan, policy=policy), (minted,)
        cell.origin = SimpleNamespace(parts=SimpleNamespace(weights=None))
        if content is not None:
            stage.guest.files[minted.files[0].path] = content
        with pytest.raises(PolicyError, match="keys"):
            await cell.snapshot()
        assert stage.kinds() == []
