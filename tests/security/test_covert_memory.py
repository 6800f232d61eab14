"""Nothing that a cell leaves in a range is found in another of the same run and policy: neither
beside it nor in one that is opened when it has ended.

Every kind of stand-in and every part of a gateway that remembers something, each written to and
looked into by real clients in a cell. In its own range each word is found (so looking works); what
keeps nothing has the deed on record. Out of scope: how long things take.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from tests.machine import PATIENCE_S
from tests.security.covert_memory import KEEPING, VOIDS, Memory, Void, lay, shell
from tests.security.covert_world import Pair, Side, opened_side

from belljar.cell.parts import start_run
from belljar.network.stand_ins import KINDS
from belljar.plan.addresses import RangeLayout
from belljar.policy.load import load_policy
from belljar.policy.loaded import LoadedPolicy

pytestmark = [pytest.mark.root, pytest.mark.vm]


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Whether a word was found in its own range, in the one beside, and in the one after."""

    own: bool
    beside: bool
    after: bool


@dataclass(frozen=True, kw_only=True)
class Given:
    """How many events the deed made on record of its own range and of the one beside, and what each
    range said before and after it."""

    own_events: int
    beside_events: int
    own: tuple[str, str]
    beside: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class World:
    """What was seen of three ranges, which have ended."""

    looked: Mapping[str, Looked]
    given: Mapping[str, Given]
    layouts: tuple[RangeLayout, RangeLayout, RangeLayout]
    policy: LoadedPolicy


@pytest.fixture(scope="module")
def world(vm_home: Path, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Two ranges at the same time; then the first ends, and a third is opened beside the second."""
    return anyio.run(_play, load_policy(lay(tmp_path_factory.mktemp("memory"))), vm_home)


async def _play(policy: LoadedPolicy, home: Path) -> World:
    with start_run("covert", "memory", [], home=home) as run:
        async with AsyncExitStack() as first, opened_side(policy, run, home) as other:
            one = await first.enter_async_context(opened_side(policy, run, home))
            given = await _give(Pair(one, other, run))
            said = await one.run({memory.name: shell(memory.leave) for memory in KEEPING})
            keys = {memory.name: memory.known(said[memory.name]) for memory in KEEPING}
            own, beside = await _look(one, keys), await _look(other, keys)
            await first.aclose()
            async with opened_side(policy, run, home) as third:
                after = await _look(third, keys)
            layouts = (one.network.layout, other.network.layout, third.network.layout)
    looked = {name: Looked(own=own[name], beside=beside[name], after=after[name]) for name in keys}
    return World(looked=looked, given=given, layouts=layouts, policy=policy)


async def _look(side: Side, keys: Mapping[str, str]) -> dict[str, bool]:
    """Which words are there."""
    words = {
        memory.name: shell(memory.look.replace("{key}", keys[memory.name])) for memory in KEEPING
    }
    said = await side.run(words)
    return {
        memory.name: memory.found.replace("{key}", keys[memory.name]) in said[memory.name]
        for memory in KEEPING
    }


async def _give(pair: Pair) -> dict[str, Given]:
    """All deeds in the first; both are asked before and after."""
    sides, questions = (pair.one, pair.other), {void.name: void.ask for void in VOIDS}
    before = [await side.run(questions) for side in sides]
    had = [await _settled(pair, side, streams=1) for side in sides]
    await pair.one.run({void.name: void.give for void in VOIDS})
    has = [
        await _settled(pair, side, streams=streams)
        for side, streams in zip(sides, (2, 1), strict=True)
    ]
    after = [await side.run(questions) for side in sides]
    return {
        name: Given(
            own_events=has[0][name] - had[0][name],
            beside_events=has[1][name] - had[1][name],
            own=(before[0][name], after[0][name]),
            beside=(before[1][name], after[1][name]),
        )
        for name in questions
    }


async def _settled(pair: Pair, side: Side, *, streams: int) -> dict[str, int]:
    """The count once each stream's end is on record, perhaps after the client has left."""
    names = [void.name for void in VOIDS if void.event[0] == "network.stream"]
    with anyio.fail_after(PATIENCE_S):
        while True:
            counted = _count(pair, side)
            if all(counted[name] >= streams for name in names):
                return counted
            await anyio.sleep(0.05)


def _count(pair: Pair, side: Side) -> dict[str, int]:
    """A side's events of each deed."""
    events = [(event["kind"], json.dumps(event["data"])) for event in pair.events(side)]
    return {
        void.name: sum(kind == void.event[0] and void.event[1] in data for kind, data in events)
        for void in VOIDS
    }


@pytest.mark.promise("3.3")
@pytest.mark.parametrize("memory", KEEPING, ids=lambda memory: memory.name)
def test_what_is_kept_is_kept_for_its_own_range(world: World, memory: Memory) -> None:
    """Found where it was left; not beside; not in a range that begins when it has ended."""
    assert world.looked[memory.name] == Looked(own=True, beside=False, after=False)


@pytest.mark.promise("3.3")
@pytest.mark.parametrize("void", VOIDS, ids=lambda void: void.name)
def test_what_is_given_to_a_void_changes_no_answer(world: World, void: Void) -> None:
    """On record of its range and of no other; whoever asks is answered as before."""
    given = world.given[void.name]
    assert (given.own_events > 0, given.beside_events) == (True, 0)
    assert given.own[0] == given.own[1] != ""
    assert given.beside[0] == given.beside[1] != ""


def test_no_address_of_a_range_is_another_ones(world: World) -> None:
    """Prefixes, addresses and MACs: none tells of a range before or beside."""
    seen = []
    for layout in world.layouts:
        names = (name.address for name in layout.names if name.stand_in != "cloud")
        seen.append({layout.prefix, *names, *(cell.mac for cell in layout.cells)})
    assert not any(one & other for one, other in itertools.combinations(seen, 2))


def test_every_kind_is_looked_into(world: World) -> None:
    """A kind of stand-in that is added is added here."""
    assert world.policy.policy.network is not None
    kinds: set[str] = {stand_in.kind for stand_in in world.policy.policy.network.stand_ins.values()}
    kinds |= {decoy.kind.value for decoy in world.policy.policy.decoys if decoy.is_service}
    assert kinds == {*KINDS, "python", "cell"} - {"catch_all"}
    named = " ".join([*(row.name for row in KEEPING), *(row.name for row in VOIDS)])
    assert [kind for kind in kinds if kind not in named] == []
