"""The facade has what the async classes have, and its calls reach a cell."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from tests.fakes.vm import staged
from tests.unit.cell.test_pool import stand

import belljar
from belljar import sync
from belljar.sync.loop import own_loop

PAIRS = [
    (belljar.Cell, sync.Cell),
    (belljar.RunningCommand, sync.RunningCommand),
    (belljar.CellStream, sync.CellStream),
    (belljar.Pool, sync.Pool),
    (belljar.Range, sync.Range),
]
OPENERS = [
    (belljar.open_cell, sync.open_cell),
    (belljar.open_pool, sync.open_pool),
    (belljar.open_range, sync.open_range),
]
NOT_OFFERED = {
    # for pools, ranges and the harness
    ("Cell", "disconnect"),
    ("Cell", "failure"),
    ("Cell", "mark_failed"),
    ("Cell", "record_death"),
    ("Cell", "run_probe_program"),
    # of services' programs
    ("Cell", "make_directory"),
    ("RunningCommand", "leave"),
    ("Cell", "last_op"),
    # of the cell
    ("RunningCommand", "take_output"),
    ("RunningCommand", "left"),
    ("RunningCommand", "end"),
    # leaving its block closes a stream
    ("CellStream", "aclose"),
    ("CellStream", "abort"),
    # of anyio's streams
    ("CellStream", "extra"),
    ("CellStream", "extra_attributes"),
    ("Cell", "guard"),
    ("Cell", "watch"),
    ("open_range", "ahead"),
    ("open_range", "on_target"),
    # of the thread that works in it
    ("Range", "disconnect"),
    ("Range", "raise_if_dead"),
    ("Range", "routers"),
    ("Range", "model_requests"),
    ("Range", "killed"),
    ("Range", "rules"),
    # leaving its block closes a pool
    ("Pool", "aclose"),
}


def public(kind: type) -> set[str]:
    """Methods and properties."""
    return {name for name in dir(kind) if not name.startswith("_")}


def parameters(function: Callable[..., Any], owner: str = "") -> list[tuple[Any, ...]]:
    """Name, kind, default and type of each, as callers know them."""
    waits = {"AsyncIterator": "Iterator", "Iterable": "Iterator", "Policylike": "PolicyLike"}
    found = []
    for item in inspect.signature(function).parameters.values():
        if (owner, item.name) in NOT_OFFERED:
            continue
        kind = str(item.annotation)
        for word, other in waits.items():
            kind = kind.replace(word, other)
        found.append((item.name, item.kind, item.default, kind))
    return found


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda kind: kind.__module__)
def test_every_public_method_has_its_counterpart(ours: type, theirs: type) -> None:
    """Same names, same parameters with the same defaults and types; what is missing is listed."""
    wanted = {name for name in public(ours) if (ours.__name__, name) not in NOT_OFFERED}
    fields = {*getattr(ours, "__dataclass_fields__", ()), *theirs.__annotations__}
    assert wanted - public(theirs) - fields == set()
    for name in wanted:
        method = getattr(ours, name, None)
        if inspect.isfunction(method):
            assert parameters(method) == parameters(getattr(theirs, name)), name


@pytest.mark.parametrize(("ours", "theirs"), OPENERS, ids=lambda function: function.__module__)
def test_every_opener_has_its_counterpart(
    ours: Callable[..., Any], theirs: Callable[..., Any]
) -> None:
    """As for methods."""
    assert parameters(ours, ours.__name__) == parameters(theirs)


def test_operations_reach_the_cell() -> None:
    """A command, text for it, a running command and its iteration; the cell's facts are the
    same."""
    with own_loop() as loop, loop.entered(staged()) as stage:
        cell = sync.Cell(stage.cell, loop)
        assert (cell.id, cell.tier, cell.env) == (stage.cell.id, stage.cell.tier, stage.cell.env)
        assert cell.exec(["cat"], input="text é").stdout_text == "text é"
        assert cell.exec(["cat"], input=iter([b"a", b"b"])).stdout == b"ab"
        with cell.open_exec(["cat"]) as running:
            running.send_stdin("one")
            running.close_stdin()
            assert b"".join(chunk for _, chunk in running) == b"one"
            assert running.wait().success
        assert running.returncode == 0
        assert cell.ping() > 0


def test_a_pool_is_filled_from_the_callers_thread() -> None:
    """`refill` starts its work in the pool's own event loop."""
    with own_loop() as loop, loop.entered(stand()) as made:
        pool = sync.Pool(made.pool, loop)
        pool.refill()
        assert pool.filled() == 1
