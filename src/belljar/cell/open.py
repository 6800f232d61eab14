"""`open_cell` and `open_range`: policy in, recorded cells out, nothing left afterwards."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import AsyncIterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import anyio.to_thread

from belljar.cell.cell import Cell, Snapshot
from belljar.cell.guarded import guarded_recorder
from belljar.cell.parts import MachineParts, Parts, describe, prepare, start_run
from belljar.cell.range import CellOrigin, FileClock, OnTarget, Opening, Range, revertible
from belljar.cell.stop_rules import stop_rules
from belljar.cell.task_data import not_taken, put_in
from belljar.descriptors import exhaustion_as_host_error, require_free
from belljar.errors import host_errors
from belljar.events import Actor, Recorder
from belljar.host.settings import PolicyLike, resolve_here
from belljar.isolation.hold import check_may_start
from belljar.isolation.program_root import STORE_HINT
from belljar.isolation.renewal import GivenPort
from belljar.isolation.sandbox import Sandbox
from belljar.ledger.rundir import RunDirectory
from belljar.policy.loaded import LoadedPolicy
from belljar.store.home import belljar_home
from belljar.store.journal import CellAbout, Journal

# A cell keeps a dozen open, and needs more while it is made and destroyed.
_CELL_DESCRIPTORS: Final = 32
# A range with one cell keeps some thirty open.
_RANGE_DESCRIPTORS: Final = 64


@asynccontextmanager
async def open_cell(
    policy: PolicyLike = None,
    *,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
) -> AsyncIterator[Cell]:
    """Open a fresh cell of the plan's tier; leaving the block destroys it.

    `policy` is a preset's name (default `high`), a policy file's path, a `Policy`, a dict
    with a policy file's fields, or a loaded policy. Without `run` it is recorded in a run
    directory of its own. Entry and exit may happen in different tasks.

    Raise `PolicyError` and `HostError` before anything was made; `CellError` if it could not
    be made, or died while a call waited; `ContainmentBreach` if its destruction found
    something left, or its range's rules were changed: nothing of this run counts as contained.
    """
    async with open_range(policy, run=run, home=home, actor=actor) as opened:
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
    """Open the cells of one sample, on a network of their own if the policy has one.

    `ahead` marks a cell of a pool. `on_target` is called with each target cell before its
    program starts; its errors end the range. Raise as `open_cell`, and `CellError` when a
    target cell does not become healthy, or the gateway or its supervisor died.
    """
    home = home or belljar_home()
    check_may_start(home)
    loaded = resolve_here(policy)
    kind = "cell" if loaded.policy.network is None else "range"
    with nullcontext(run) if run else start_run(kind, loaded.source, [], home=home) as run:
        opening = Opening(loaded, run, home, actor, ahead=ahead, on_target=on_target)
        async with revertible(partial(_machine, opening)) as opened:
            yield opened


@asynccontextmanager
async def _machine(opening: Opening, snapshot: Snapshot | None = None) -> AsyncIterator[Range]:
    loaded, run, home = opening.loaded, opening.run, opening.home
    has_network = loaded.policy.network is not None
    async with AsyncExitStack() as stack:
        require_free(_RANGE_DESCRIPTORS if has_network else _CELL_DESCRIPTORS)
        with exhaustion_as_host_error():
            check_may_start(home, run=run.run_id)
            if loaded.policy.host:
                from belljar.cell.air_gap import hold_air_gap  # late: few policies require it

                await anyio.to_thread.run_sync(hold_air_gap, run, loaded)
            if has_network:
                from belljar.cell.ranges import open_with_network

                opened = await open_with_network(stack, opening, partial(ready_cell, opening))
            else:
                parts = await prepare(loaded, recorder=run.recorder, home=home)
                describe(run, loaded, parts)
                rules = stack.enter_context(stop_rules(run, loaded.policy, home))
                recorder = await stack.enter_async_context(guarded_recorder(rules, loaded))
                since = FileClock.now()
                made = ready_cell(opening, loaded, parts, recorder=recorder, snapshot=snapshot)
                opened = Range(cell=await stack.enter_async_context(made), rules=rules)
                again = partial(_machine, replace(opening, ahead=False, on_target=None))

                def fork(snapshot: Snapshot) -> AbstractAsyncContextManager[Range]:
                    return revertible(again, first=partial(again, snapshot=snapshot))

                opened.cell.origin = CellOrigin(run, home, parts, since, again, fork)
            if loaded.policy.decoys and not opening.ahead:
                from belljar.cell.decoys import decoys_in

                await stack.enter_async_context(decoys_in(opened.cell, loaded, run))
        yield opened


@asynccontextmanager
async def ready_cell(
    opening: Opening,
    loaded: LoadedPolicy,
    parts: Parts,
    *,
    recorder: Recorder,
    port: GivenPort | None = None,
    place: Mapping[str, str] = MappingProxyType({}),
    part_of: str = "",
    snapshot: Snapshot | None = None,
) -> AsyncIterator[Cell]:
    """Open one cell of these parts, with the policy's files, or continued from `snapshot`.

    `place` is its `range` and `name`; `part_of` the range, or the first cell of one without
    network. Raise as `open_cell`.
    """
    run_id, home = opening.run.run_id, opening.home
    async with _sandbox(
        parts,
        snapshot,
        home=home,
        recorder=recorder,
        planned={**place, **planned(loaded, parts, ahead=opening.ahead)},
        port=port,
        part_of=part_of,
        weights=parts.weights,
    ) as live:
        cell = Cell(
            live,
            parts.plan,
            recorder,
            actor=opening.actor,
            has_port=port is not None,
            image=parts.image.config,
        )
        try:
            _write_whose(cell, loaded, home=home, run_id=run_id, place=place)
            # A kill before this did not know whose cell it is
            check_may_start(home, run=run_id, is_held=False)
            if snapshot is None:
                await copy_in(cell, loaded)
            else:
                from belljar.cell.snapshot import resume

                await resume(snapshot, cell)
            yield cell
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                destruction = await cell.destroy()
            destruction.raise_if_unclean("destruction", where=f"cell {cell.id}", beside=error)
            raise
        with anyio.CancelScope(shield=True):
            destruction = await cell.destroy()
    destruction.raise_if_unclean("destruction", where=f"cell {cell.id}")


def _sandbox(
    parts: Parts,
    snapshot: Snapshot | None,
    **options: Any,  # noqa: ANN401 - as `open_vm` and `open_container` have them
) -> AbstractAsyncContextManager[Sandbox]:
    if not isinstance(parts, MachineParts):
        from belljar.isolation.oci.container import open_container

        return open_container(parts.plan, parts.image, **options)
    from belljar.isolation.microvm.clone import open_vm

    if snapshot is not None:
        options["saved"] = snapshot.machine
    return open_vm(parts.plan, parts.image, parts.kernel, **options)


def _write_whose(
    cell: Cell, loaded: LoadedPolicy, *, home: Path, run_id: str, place: Mapping[str, str]
) -> None:
    about = CellAbout(
        run_id=run_id,
        tier=cell.tier,
        risk=loaded.policy.risk.value,
        policy=loaded.policy.name,
        range_id=place.get("range", ""),
        name=place.get("name", ""),
        memory_limit_bytes=cell.plan.limits.memory_bytes,
    )

    def describe(**fields: Any) -> None:  # noqa: ANN401 - the fields of `CellAbout`
        with suppress(OSError):  # its list has less of it
            Journal(home).describe(cell.id, replace(about, **fields))

    cell.describe = describe
    what = "whose cell it is can't be written"  # a kill of its run would not find it
    with host_errors(what, where=f"cell {cell.id}", hint=STORE_HINT):
        Journal(home).describe(cell.id, about)


def planned(loaded: LoadedPolicy, parts: Parts, *, ahead: bool = False) -> dict[str, object]:
    """Return the content of the event `cell.planned`."""
    early: dict[str, object] = {"ahead": True} if ahead else {}
    if loaded.weights is not None and (model := loaded.policy.model) is not None:
        about = {"name": loaded.policy.name, "weights": loaded.weights.name}
        early["model"] = {**about, "devices": list(model.devices)}
    return {
        **early,
        "policy_sha256": hashlib.sha256(loaded.text).hexdigest(),
        "tier": parts.plan.tier.value,
        "emulated": parts.plan.emulated,
        "layers": [layer.name for layer in parts.plan.layers],
        "risk": loaded.policy.risk.value,
        "image": parts.image.digest,
    }


async def copy_in(cell: Cell, loaded: LoadedPolicy) -> None:
    """Make the work directory; copy in all files."""
    policy = loaded.policy
    try:
        workdir = posixpath.normpath(policy.workdir or "/")
        if workdir.strip("/"):  # the root is always there
            await cell.make_directory(workdir)
        if loaded.data is not None:
            await put_in(cell, loaded.data)
        for copy in policy.files:
            contents = await anyio.to_thread.run_sync(loaded.read_file, copy)
            owner = copy.owner or cell.plan.user
            await cell.write_file(copy.target, contents, mode=copy.mode, user="0", owner=owner)
    except OSError as error:
        raise not_taken(cell, str(error)) from error
