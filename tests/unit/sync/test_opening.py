"""Opening without an event loop: refusals are those of the async functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from belljar import sync
from belljar.errors import PolicyError


@pytest.mark.parametrize("opener", [sync.open_cell, sync.open_pool, sync.open_range])
@pytest.mark.parametrize("policy", ["critcal", {"belljar": 1, "risk": "none"}])
def test_a_refused_policy_makes_nothing(
    opener: Callable[..., Any], policy: object, tmp_path: Path
) -> None:
    """A wrong name, a wrong dict and a path without a file are a `PolicyError` before a run
    begins."""
    with pytest.raises(PolicyError), opener(policy, home=tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
