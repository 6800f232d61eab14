"""The facade has what the async classes have, and its calls reach a cell."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar import sync
from belljar.errors import PolicyError

PAIRS = [
    (belljar.Cell, sync.Cell),
    (belljar.RunningCommand, sync.RunningCommand),
    (belljar.CellStream, sync.CellStream),
    (belljar.Pool, sync.Pool),
    (belljar.Range, sync.Range),
]
OPENERS = ("open_cell", "open_pool", "open_range")
# By class: what is for pools, ranges, the harness or services' programs, of the thread
# that works in it, of anyio's streams, or done by leaving a block.
NOT_OFFERED = {
    "Cell": "disconnect failure mark_failed record_death run_probe_program make_directory last_op"
    " guard",
    "RunningCommand": "leave take_output left end",
    "CellStream": "aclose end extra extra_attributes",
    "Range": "routers model_requests killed rules",
    "Pool": "aclose refill",
}


def is_offered(owner: str, name: str) -> bool:
    return name not in NOT_OFFERED.get(owner, "").split()


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(function: Callable[..., Any]) -> list[tuple[Any, ...]]:
    """Name, kind, default and type of each, as callers know them."""
    waits = {"AsyncIterator": "Iterator", "Policylike": "PolicyLike"}
    found = []
    for item in inspect.signature(function).parameters.values():
        kind = str(item.annotation)
        for word, other in waits.items():
            kind = kind.replace(word, other)
        found.append((item.name, item.kind, item.default, kind))
    return found


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda kind: kind.__module__)
def test_every_public_method_has_its_counterpart(ours: type, theirs: type) -> None:
    """Same names, same parameters with the same defaults and types; what is missing is listed."""
    wanted = {name for name in public(ours) if is_offered(ours.__name__, name)}
    fields = {*getattr(ours, "__dataclass_fields__", ()), *theirs.__annotations__}
    assert wanted - public(theirs) - fields == set()
    for name in wanted:
        method = getattr(ours, name, None)
        if inspect.isfunction(method):
            assert parameters(method) == parameters(getattr(theirs, name)), name
    for name in OPENERS:
        assert parameters(getattr(belljar, name)) == parameters(getattr(sync, name))


@pytest.mark.parametrize("opener", [sync.open_cell, sync.open_pool, sync.open_range])
@pytest.mark.parametrize("policy", ["critcal", {"belljar": 1, "risk": "none"}])
def test_a_refused_policy_makes_nothing(
    opener: Callable[..., Any], policy: object, tmp_path: Path
) -> None:
    """A wrong name, dict or path is a `PolicyError` before a run begins."""
    with pytest.raises(PolicyError), opener(policy, home=tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []
