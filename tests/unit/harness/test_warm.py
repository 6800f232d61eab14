"""Which samples may take a cell that was made ahead, and how many are made."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from inspect_ai import Task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.util import SandboxEnvironmentSpec
from tests.fakes.cell import FakeCells

from belljar.errors import HostError
from belljar.harness import warm
from belljar.harness.config import BelljarConfig, for_sample, load
from belljar.harness.options import Selection
from belljar.harness.session import Session
from belljar.harness.warm import (
    OVERHEAD_BYTES,
    RESERVED_BYTES,
    WarmCells,
    cells_in_memory,
    expected_samples,
    warm_cells,
)
from belljar.isolation.hold import hold, release
from belljar.probe.judge import NoRouter

GIB = 1 << 30
pytestmark = pytest.mark.anyio


def task_of(count: int, *own: BelljarConfig, epochs: int | None = None) -> Task:
    """A task with so many samples of its own sandbox, and some with theirs."""
    samples = [Sample(input="x") for _ in range(count)]
    samples += [
        Sample(input="x", sandbox=SandboxEnvironmentSpec("belljar", config)) for config in own
    ]
    return Task(
        dataset=MemoryDataset(samples),
        sandbox=SandboxEnvironmentSpec("belljar", BelljarConfig()),
        epochs=epochs,
    )


def test_samples_are_counted_by_what_their_cells_are_made_of() -> None:
    """A sample with a sandbox of its own needs a cell of its own making; the operator's epochs and
    limit count."""
    other = BelljarConfig(image="other")
    every = Selection()
    own = BelljarConfig()
    assert expected_samples([task_of(3, other)], epochs=None, selection=every) == {own: 3, other: 1}
    assert expected_samples([task_of(3, epochs=2)], epochs=None, selection=every) == {own: 6}
    first = Selection(limit=2)
    assert expected_samples([task_of(3, epochs=2)], epochs=5, selection=first) == {own: 10}
    some = Selection(limit=(2, 5))
    assert expected_samples([task_of(9)], epochs=None, selection=some) == {own: 3}
    named = Selection(ids=["2", "4"])
    ordered = task_of(3, other)
    named.order(ordered)
    assert expected_samples([ordered], epochs=None, selection=named) == {own: 1, other: 1}


def test_cells_are_counted_by_all_that_they_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory and disk of each, its VMM's, and what the host keeps for itself."""
    resources = load(None).policy.resources
    each = resources.memory_bytes + resources.disk_bytes + OVERHEAD_BYTES
    for room_bytes, fitting in ((3 * each, 3), (3 * each - 1, 2)):
        available_bytes = RESERVED_BYTES + room_bytes
        monkeypatch.setattr(warm, "available_memory_bytes", lambda: available_bytes)  # noqa: B023
        assert cells_in_memory(resources) == fitting


@asynccontextmanager
async def warmed(session: Session, expected: dict[BelljarConfig, int]) -> AsyncIterator[WarmCells]:
    """Pools of one cell, closed as the evaluation's end does."""
    with warm_cells(session, size=1, expected=expected) as made:
        assert made is not None
        try:
            yield made
        finally:
            await made.close()


async def cells_for_one_sample(home: Path, *, expected: int) -> int:
    """How many cells a run had made when its first sample, of so many that it expects, was over."""
    cells = FakeCells()
    session = Session(source=cells, home=home)
    async with warmed(session, {BelljarConfig(): expected}):
        policy = load(None)
        async with session.range_of_sample(None, policy, is_shared=True):
            pass
    return len(cells.opened)


async def test_a_plan_that_one_sample_uses_has_no_pool(tmp_path: Path) -> None:
    """What nobody would take is not made."""
    assert await cells_for_one_sample(tmp_path, expected=1) == 1


async def test_without_room_nothing_is_made_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that is full of running cells gets no more."""
    monkeypatch.setattr(warm, "available_memory_bytes", lambda: 2 * GIB)
    assert await cells_for_one_sample(tmp_path, expected=9) == 1


async def test_a_policy_with_the_samples_own_values_takes_no_cell_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell made ahead has nobody's metadata in it; a policy that changed under its name is
    another policy."""
    file = tmp_path / "policy.yaml"
    file.write_text('belljar: 1\nrisk: high\nenv:\n  FLAG: "${SAMPLE_METADATA_FLAG:-none}"\n')
    cells = FakeCells()
    session = Session(source=cells, home=tmp_path)
    config = str(file)
    async with warmed(session, {BelljarConfig(policy=config): 9}) as warm:
        with monkeypatch.context() as no_pools:
            no_pools.setattr(warm, "range", lambda *_: pytest.fail("a pool was asked"))
            for flag in ("a", "b"):
                loaded = load(config)
                policy = for_sample(loaded, {"flag": flag})
                async with session.range_of_sample(
                    config, policy, is_shared=policy is loaded
                ) as opened:
                    assert opened.cell.id == cells.opened[-1].id
        for text in ("lifetime: 1h", "lifetime: 2h"):
            file.write_text(f"belljar: 1\nrisk: high\nresources: {{{text}}}\n")
            changed = load(config)
            async with session.range_of_sample(config, changed, is_shared=True) as opened:
                assert opened.cell.plan.limits.lifetime_s == changed.policy.resources.lifetime_s


async def test_a_cell_made_ahead_is_probed_with_its_router(tmp_path: Path) -> None:
    """With a network device it would not be probed without, and so not be given out."""
    cells = FakeCells()
    cells.router = NoRouter(interface="eth0", mac="02:00:00:00:00:01")
    phases: list[str] = []
    cells.on_probe = lambda _cell, phase: phases.append(phase)
    session = Session(source=cells, home=tmp_path)
    async with warmed(session, {BelljarConfig(): 9}):
        policy = load(None)
        async with session.range_of_sample(None, policy, is_shared=True):
            pass
        with anyio.fail_after(30):
            while not phases:
                await anyio.lowlevel.checkpoint()
        async with session.range_of_sample(None, policy, is_shared=True) as opened:
            assert list(opened.routers.values()) == [cells.router, cells.router]
    assert phases == ["warm-up"] * len(phases) != []
    assert session.breaches == []


@pytest.mark.promise("6.4")
async def test_a_held_host_gives_out_no_cell_that_was_made_ahead(tmp_path: Path) -> None:
    """Neither an idle one nor a new one, from the moment of the hold."""
    session = Session(source=FakeCells(), home=tmp_path)
    async with warmed(session, {BelljarConfig(): 9}):
        policy = load(None)
        async with session.range_of_sample(None, policy, is_shared=True):
            pass
        hold(tmp_path, "an incident")
        with pytest.raises(HostError, match="an incident"):
            async with session.range_of_sample(None, policy, is_shared=True):
                pass
        release(tmp_path)
        async with session.range_of_sample(None, policy, is_shared=True):
            pass
