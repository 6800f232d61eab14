"""The exchange of machines behind a handle: what fails leaves the old one, what was found is raised."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from belljar.cell.cell import RevertibleCell
from belljar.cell.range import Range
from belljar.cell.revert import MAX_RETIRING, revertible
from belljar.errors import CellError, ContainmentBreach, HostError
from belljar.events import Kind
from belljar.policy import Risk

pytestmark = pytest.mark.anyio


class Machines:
    """Makes machines that only note what becomes of them."""

    def __init__(self) -> None:
        self.numbers = itertools.count(1)
        self.alive: list[str] = []
        self.most_alive = 0
        self.noted: list[tuple[str, Kind, Any]] = []
        self.failing: dict[str, Exception] = {}
        """By cell: what its destruction finds."""
        self.image = "one"

    @asynccontextmanager
    async def make(self) -> AsyncIterator[Range]:
        """One more."""
        name = f"c{next(self.numbers)}"
        cell = SimpleNamespace(
            id=name,
            tier="container",
            guard=None,
            plan=SimpleNamespace(risk=Risk.LOW, image=self.image),
            note=lambda kind, data: self.noted.append((name, kind, data)),
            _live=SimpleNamespace(killed=lambda: None),
        )
        self.alive.append(name)
        self.most_alive = max(self.most_alive, len(self.alive))
        try:
            yield Range(cell=cast("Any", cell))
        finally:
            self.alive.remove(name)
        if name in self.failing:
            raise self.failing[name]


async def test_the_handle_goes_on_in_the_new_machine() -> None:
    """Who holds it sees the new machine; which replaced which is on record; in the end none is
    left, and never were there more than one in use, one in the making and those being destroyed."""
    machines = Machines()
    async with revertible(machines.make) as opened:
        cell = opened.cell
        for _ in range(20):
            await cell.revert()
        assert cell.id == opened.cell.id == "c21"
    assert machines.alive == []
    assert machines.most_alive <= 2 + MAX_RETIRING
    exchanged = [data for _, kind, data in machines.noted if kind is Kind.CELL_REVERTED]
    assert [(data["from"], data["to"]) for data in exchanged] == [
        (f"c{number}", f"c{number + 1}") for number in range(1, 21)
    ]
    with pytest.raises(CellError):
        await cell.revert()


@pytest.mark.parametrize("error", [HostError("no room"), ContainmentBreach("a way out")])
async def test_a_new_machine_that_is_refused_leaves_the_old_one(error: Exception) -> None:
    """It is destroyed, and the old one is still in use; so it is when its image is another."""
    machines = Machines()

    async def refuse(_: Range) -> None:
        raise error

    async with revertible(machines.make) as opened:
        cell = cast("RevertibleCell", opened.cell)
        with pytest.raises(type(error)):
            await cell.machines.revert(on_ready=refuse)
        machines.image = "two"
        with pytest.raises(HostError):
            await cell.revert()
        assert (cell.id, machines.alive) == ("c1", ["c1"])
    assert Kind.CELL_REVERTED not in {kind for _, kind, _ in machines.noted}


async def test_what_an_old_machines_end_found_is_raised_at_the_end() -> None:
    """A breach before any other error, however many reverts follow."""
    machines = Machines()
    machines.failing = {"c1": HostError("not proven"), "c2": ContainmentBreach("left something")}

    async def revert() -> None:
        async with revertible(machines.make) as opened:
            for _ in range(10):
                await opened.cell.revert()

    with pytest.raises(ContainmentBreach, match="left something"):
        await revert()
    assert machines.alive == []


async def test_the_old_machine_is_whole_until_its_last_look() -> None:
    """What looks at it before its destruction finds it alive, and does not hold up its caller."""
    machines, seen = Machines(), list[tuple[str, bool]]()

    async def look(old: Range) -> None:
        seen.append((old.cell.id, old.cell.id in machines.alive))

    async with revertible(machines.make) as opened:
        cell = cast("RevertibleCell", opened.cell)
        await cell.machines.revert(on_end=look)
        assert (cell.id, seen) == ("c2", [])
    assert seen == [("c1", True)]
