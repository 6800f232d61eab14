"""Which cells are saved; that they are is shown in tests/integration/test_snapshot.py."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.vm import staged

from belljar.errors import PolicyError
from belljar.policy.guarding import DecoyKind, DecoySpec

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


async def test_a_cell_with_decoys_is_not_saved() -> None:
    """Two cells with one secret could not be told apart, whatever the policy says."""
    async with staged() as stage:
        cell, spec = stage.cell, DecoySpec(id="keys", kind=DecoyKind.DOCUMENT)
        fields = {"snapshots": True, "decoys": (spec,)}
        cell.plan = replace(cell.plan, policy=cell.plan.policy.model_copy(update=fields))
        cell.origin = cast("Any", SimpleNamespace(parts=SimpleNamespace(weights=None)))
        with pytest.raises(PolicyError, match="decoys"):
            await cell.snapshot()
        assert stage.kinds() == []
