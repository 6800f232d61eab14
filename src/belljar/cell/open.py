"""`open_cell` and `open_range`: policy in, recorded cells out, and nothing left afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from belljar.cell.guarded import guarded_recorder
from belljar.cell.parts import describe, prepare, start_run
from belljar.cell.range import FileClock, Origin, Range
from belljar.cell.revert import revertible
from belljar.cell.single import ready_cell
from belljar.cell.stop_rules import stop_rules
from belljar.descriptors import exhaustion_as_host_error, require_free
from belljar.events import Actor
from belljar.host.settings import PolicyLike, resolve_here
from belljar.isolation.hold import refuse_if_held, refuse_if_stopped
from belljar.ledger import RunDirectory
from belljar.policy import LoadedPolicy
from belljar.store.home import belljar_home

if TYPE_CHECKING:
    from belljar.cell.cell import Cell, Snapshot
    from belljar.cell.ranges import OnTarget

_CELL_DESCRIPTORS: Final = 32
"""A cell keeps a dozen open, and needs more while it is made and destroyed."""
_RANGE_DESCRIPTORS: Final = 64
"""A range with one cell keeps some thirty open."""


@asynccontextmanager
async def open_cell(
    policy: PolicyLike = None,
    *,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
) -> AsyncIterator[Cell]:
    """A fresh cell of the plan's tier, destroyed when the block is left.

    If its policy has a network it is the range's own cell: network, stand-ins and target cells are
    made with it and end with it (see `open_range`).

    Args:
        policy: a preset's name (default `high`), a policy file's path, a `Policy`, a dict with a
            policy file's fields, or a loaded policy.
        run: the run directory that records it; default one of its own, closed with the cell.
        home: Belljar's store; default `belljar_home()`.
        actor: of its operations, for the record.

    Raises:
        PolicyError, HostError: refused before anything was made; also while the store is held.
        CellError: it could not be made, or died while a call waited.
        ContainmentBreach: its destruction found something left, or its range's rules were changed.
            Recorded and removed, but nothing of this run may count as contained.

    No task group or cancel scope stays open between entry and exit: they may happen in different
    tasks, under asyncio or trio.
    """
    async with _open("cell", policy, run=run, home=home, actor=actor) as opened:
        yield opened.cell


@asynccontextmanager
async def open_range(
    policy: PolicyLike = None,
    *,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
    ahead: bool = False,
    on_target: OnTarget | None = None,
) -> AsyncIterator[Range]:
    """The cells of one sample on a network of their own, destroyed when the block is left, however
    it is left. A policy without a network gives a range of one cell. Besides what `open_cell` has:

    Args:
        ahead: it is made ahead of use, for the record: see `open_pool`.
        on_target: called with each target cell when it runs, before its program is started; what it
            raises ends the range.

    Raises:
        CellError: a target cell does not become healthy; the gateway or its supervisor died.
        ContainmentBreach: the network's rules were changed.
    """
    async with _open(
        "range", policy, run=run, home=home, actor=actor, ahead=ahead, on_target=on_target
    ) as opened:
        yield opened


@asynccontextmanager
async def _open(
    kind: str,
    policy: PolicyLike,
    *,
    run: RunDirectory | None,
    home: Path | None,
    actor: Actor,
    ahead: bool = False,
    on_target: OnTarget | None = None,
) -> AsyncIterator[Range]:
    home = home or belljar_home()
    refuse_if_held(home)
    loaded = resolve_here(policy)
    with nullcontext(run) if run else start_run(kind, loaded.source, [], home=home) as run:
        make = partial(
            _machine, loaded, run=run, home=home, actor=actor, ahead=ahead, on_target=on_target
        )
        async with revertible(make) as opened:
            yield opened


@asynccontextmanager
async def _machine(
    loaded: LoadedPolicy,
    *,
    run: RunDirectory,
    home: Path,
    actor: Actor,
    ahead: bool,
    on_target: OnTarget | None,
    snapshot: Snapshot | None = None,
) -> AsyncIterator[Range]:
    has_network = loaded.policy.network is not None
    async with AsyncExitStack() as stack:
        require_free(_RANGE_DESCRIPTORS if has_network else _CELL_DESCRIPTORS)
        with exhaustion_as_host_error():
            refuse_if_held(home)
            refuse_if_stopped(home, run.run_id)
            if loaded.policy.host:
                from belljar.cell.air_gap import hold_air_gap  # late: few policies require it

                await anyio.to_thread.run_sync(hold_air_gap, run, loaded)
            make = partial(ready_cell, run_id=run.run_id, home=home, actor=actor, ahead=ahead)
            if has_network:
                from belljar.cell.ranges import open_with_network

                opened = await open_with_network(
                    stack, loaded, make, run=run, home=home, on_target=on_target
                )
            else:
                parts = await prepare(loaded, recorder=run.recorder, home=home)
                describe(run, loaded, parts)
                rules = stack.enter_context(stop_rules(run, loaded.policy, home))
                recorder = stack.enter_context(guarded_recorder(rules, loaded))
                if snapshot is not None:
                    recorder.adopt(snapshot.ancestors)
                since = FileClock.now()
                made = make(loaded, parts, recorder=recorder, snapshot=snapshot)
                opened = Range(cell=await stack.enter_async_context(made), rules=rules)
                again = partial(
                    _machine, loaded, run=run, home=home, actor=actor, ahead=False, on_target=None
                )
                opened.cell.origin = Origin(run, home, parts, since, again)
            if loaded.policy.decoys and not ahead:
                from belljar.cell.decoys import decoys_in

                placing = decoys_in(opened.cell, loaded, run, snapshot=snapshot)
                await stack.enter_async_context(placing)
            if snapshot is not None:
                from belljar.cell.snapshot import run_hooks

                await run_hooks(snapshot, opened.cell)
        yield opened
        opened.raise_if_dead()
