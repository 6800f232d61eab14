"""Differences between a task and the cells that stand in for it."""

from __future__ import annotations

import json

import pytest

from belljar.differences import Difference, Kind


@pytest.mark.parametrize("kind", Kind)
def test_a_difference_is_json(kind: Kind) -> None:
    """Every kind goes through an event and comes back with all its fields."""
    written = Difference(kind=kind, where="service web", key="cpuset", detail="no such limit", hint="")
    read = json.loads(json.dumps(written.data()))
    assert Difference(**{**read, "kind": Kind(read["kind"])}) == written
