"""Which cells are saved; that they are is shown in tests/integration/test_snapshot.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tests.fakes.vm import staged

from belljar.errors import PolicyError

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        ({}, "snapshots: true"),
        ({"snapshots": True, "files": (SimpleNamespace(secret=True),)}, "with_secrets"),
        ({"snapshots": "with_secrets", "decoys": (SimpleNamespace(),)}, "decoys"),
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
