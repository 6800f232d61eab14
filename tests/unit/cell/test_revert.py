"""The exchange of machines behind a handle: what fails leaves the old one, what was found is raised."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from tests.fakes import guest as g
from tests.fakes.vm import Stage, staged

from belljar.cell.range import MAX_RETIRING, Range, RevertibleCell, revertible
from belljar.errors import CellError, ContainmentBreach, HostError
from belljar.events import Kind
from belljar.isolation.hold import KillOrder, new_order, raise_if_killed
from belljar.isolation.jail import JailEnd
from belljar.policy.limits import Risk

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


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
        self.orders: dict[str, KillOrder] = {}
        self.orders_by_rules: dict[str, KillOrder] = {}
        self.failed: list[str] = []
        self.memory_bytes = 0

    @asynccontextmanager
    async def make(self) -> AsyncIterator[Range]:
        name = f"c{next(self.numbers)}"
        limits = SimpleNamespace(memory_bytes=self.memory_bytes, disk_bytes=0)
        cell = SimpleNamespace(
            id=name,
            tier="container",
            guard=None,
            plan=SimpleNamespace(risk=Risk.LOW, image=self.image, limits=limits, policy="its own"),
            note=lambda kind, data: self.noted.append((name, kind, data)),
            record_death=lambda: None,
            mark_failed=lambda _error: self.failed.append(name),
            _live=SimpleNamespace(
                killed=lambda: self.orders.get(name),
                kill=lambda order: self.orders.setdefault(name, order),
            ),
        )
        rules = SimpleNamespace(order=None)
        self.alive.append(name)
        self.most_alive = max(self.most_alive, len(self.alive))
        try:
            yield Range(cell=cast("Any", cell), rules=cast("Any", rules))
        finally:
            self.alive.remove(name)
            rules.order = self.orders_by_rules.get(name)
        if name in self.failing:
            raise self.failing[name]


@pytest.mark.parametrize(("memory_bytes", "most_retiring"), [(0, MAX_RETIRING), (1 << 60, 0)])
async def test_the_handle_goes_on_in_the_new_machine(memory_bytes: int, most_retiring: int) -> None:
    """Who holds it sees the new machine; which replaced which is on record."""
    machines = Machines()
    machines.memory_bytes = memory_bytes
    async with revertible(machines.make) as opened:
        cell = opened.cell
        for _ in range(20):
            await cell.revert()
        assert cell.id == opened.cell.id == "c21"
    assert machines.alive == []
    assert machines.most_alive <= 2 + most_retiring
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
        assert machines.failed == ["c1"] * isinstance(error, ContainmentBreach)
        machines.image = "two"
        with pytest.raises(HostError):
            await cell.revert()
        assert (cell.id, machines.alive) == ("c1", ["c1"])
    assert Kind.CELL_REVERTED not in {kind for _, kind, _ in machines.noted}


async def test_an_old_machine_whose_end_is_not_proven_is_raised_at_the_end() -> None:
    """Though no later machine found anything."""
    machines = Machines()
    machines.failing = {"c1": HostError("not proven")}

    async def revert() -> None:
        async with revertible(machines.make) as opened:
            await opened.cell.revert()

    with pytest.raises(HostError, match="not proven"):
        await revert()


@pytest.mark.parametrize("finds", ["destruction", "last look"])
async def test_a_breach_of_an_old_machine_is_raised_whatever_else_is(finds: str) -> None:
    """Also when the block, the look before or another machine ended with an error."""
    machines = Machines()
    if finds == "destruction":
        machines.failing = {"c1": ContainmentBreach("left something")}
    machines.failing["c2"] = HostError("not proven")

    async def look(_: Range) -> None:
        raise CellError("no look") if finds == "destruction" else ContainmentBreach("a way out")

    async def revert() -> None:
        async with revertible(machines.make) as opened:
            await cast("RevertibleCell", opened.cell).machines.revert(on_end=look)
            raise ValueError("the caller's own")

    with pytest.raises(ContainmentBreach) as caught:
        await revert()
    assert caught.value.__cause__ is not None
    if finds == "destruction":  # nothing that an old machine's end found is lost
        assert ["no look" in note for note in caught.value.__cause__.__notes__] == [True]
    assert machines.alive == []


@pytest.mark.parametrize("is_of_run", [True, False])
async def test_a_snapshot_of_another_policy_or_run_makes_no_machine(is_of_run: bool) -> None:
    """A sample would go on with another one's rights, files and rules."""
    machines, run = Machines(), object()
    origin = SimpleNamespace(
        run=run if is_of_run else object(),
        machine=machines.make,
        parts=SimpleNamespace(plan=SimpleNamespace(policy="another")),
    )
    async with revertible(machines.make) as opened:
        opened.cell.origin = cast("Any", SimpleNamespace(run=run))
        with pytest.raises(CellError, match="policy" if is_of_run else "run"):
            await opened.cell.revert(to=cast("Any", SimpleNamespace(origin=origin)))
        assert (opened.cell.id, machines.noted, next(machines.numbers)) == ("c1", [], 2)


@pytest.mark.parametrize("named", ["c1", "c2", "c2, at its end", "c2, in the making"])
async def test_a_kill_order_during_the_exchange_ends_it(named: str) -> None:
    """Whichever machine it names."""
    machines, order = Machines(), new_order("cells", "a test")

    async def kill(_: Range) -> None:
        if "end" in named:
            machines.orders_by_rules["c2"] = order
            raise HostError("no room")
        machines.orders[named] = order

    @asynccontextmanager
    async def make() -> AsyncIterator[Range]:
        async with machines.make() as made:
            if made.cell.id == "c2" and "making" in named:
                raise_if_killed(order, where="cell c2")
            yield made

    async with revertible(make) as opened:
        cell = cast("RevertibleCell", opened.cell)
        with pytest.raises(HostError if "end" in named else CellError):
            await cell.machines.revert(on_ready=kill)
        assert (cell.id, machines.alive, machines.orders["c1"]) == ("c1", ["c1"], order)
        assert machines.failed == ["c1"] * (named != "c1")
    assert Kind.CELL_REVERTED not in {kind for _, kind, _ in machines.noted}


async def test_the_old_machine_is_whole_until_its_last_look() -> None:
    """The last look finds it alive, in its caller's context, and does not hold that up."""
    machines, seen = Machines(), list[tuple[str, bool]]()
    context = ContextVar("context", default="none")
    context.set("the caller's")

    async def look(old: Range) -> None:
        assert context.get() == "the caller's"
        seen.append((old.cell.id, old.cell.id in machines.alive))

    async with revertible(machines.make) as opened:
        cell = cast("RevertibleCell", opened.cell)
        await cell.machines.revert(on_end=look)
        assert (cell.id, seen) == ("c2", [])
        await cell.machines.flush()  # as before a score
        assert (seen, machines.alive) == ([("c1", True)], ["c2"])


@pytest.mark.parametrize(
    ("ends", "recorded"),
    [
        ("unnoticed before the revert", Kind.CELL_FAILED),
        ("by its destruction", None),
        ("by a broken protocol in its destruction", Kind.PROTOCOL_VIOLATION),
    ],
)
async def test_the_death_of_a_reverted_cell_is_on_record(ends: str, recorded: Kind | None) -> None:
    """Unless its own destruction is what ended it. A command that ran in it ends in any case."""

    async def end(stage: Stage) -> None:
        if "protocol" in ends:
            await stage.guest.send(g.frame(g.RESULT, 1, b"no result"))
        else:
            stage.guest.close()
        while Kind.EXEC_FAILED not in stage.kinds():
            await anyio.lowlevel.checkpoint()

    async with staged() as first, staged() as second:
        stages = [first, second]

        @asynccontextmanager
        async def make() -> AsyncIterator[Range]:
            stage = stages.pop(0)
            yield Range(cell=stage.cell)
            await stage.cell.destroy()
            if stage is first and "by" in ends:
                await end(first)

        async def run() -> None:
            with suppress(CellError):
                await first.cell.exec(["hang"])

        async with revertible(make) as opened:
            cell = cast("RevertibleCell", opened.cell)
            async with anyio.create_task_group() as tasks:
                if "unnoticed" in ends:
                    first.vm.ended = JailEnd(signal=9, status=None, cause="itself")
                else:
                    tasks.start_soon(run)
                    await first.cell.ping()
                await cell.machines.revert(verify=False)
        deaths = {Kind.CELL_FAILED, Kind.PROTOCOL_VIOLATION} & set(first.kinds())
        assert deaths == ({recorded} if recorded else set())
        assert Kind.CELL_FAILED not in second.kinds()
