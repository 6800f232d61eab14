"""`open_cell`: policy in, a recorded cell out, and nothing left afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio.to_thread

from belljar.cell.guarded import guarded_recorder
from belljar.cell.parts import MachineParts, Parts, describe, gather_parts, start_run
from belljar.cell.trips import tripping
from belljar.descriptors import exhaustion_as_host_error, require_free
from belljar.errors import BelljarError, ContainmentBreach, HostError
from belljar.events import Actor, Event, Kind, Recorder
from belljar.host.settings import PolicyLike, resolve_here
from belljar.image import image_health
from belljar.isolation.hold import refuse_if_held, refuse_if_stopped
from belljar.isolation.reap import reap, reaped_event
from belljar.isolation.sandbox import do_while_starting
from belljar.ledger import RunDirectory
from belljar.policy import LoadedPolicy
from belljar.store.home import belljar_home
from belljar.store.journal import CellAbout, Journal

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.isolation.renewal import Port
    from belljar.isolation.sandbox import Sandbox
    from belljar.probe.judge import Router


async def prepare(
    policy: LoadedPolicy, *, recorder: Recorder, home: Path | None = None, has_port: bool = False
) -> Parts:
    """Do what cells of this policy share and what may take long or fail: the plan, and the template
    or the unpacked image. What crashed owners left is removed first, and what that was is on
    record.

    Refusals are recorded and raised.
    """
    home = home or belljar_home()
    try:
        if reaped := await reap(home):
            recorder.record(reaped_event(reaped))
        parts = await anyio.to_thread.run_sync(gather_parts, policy, home, has_port)
        if isinstance(parts, MachineParts):
            from belljar.isolation.microvm import ensure_template

            await ensure_template(
                parts.plan, parts.image, parts.kernel, home=home, recorder=recorder
            )
        else:
            from belljar.isolation.oci import ensure_tree

            await ensure_tree(parts.image, home=home)
    except BelljarError as error:
        recorder.record(refused(policy, error))
        raise
    return parts


def import_what_runs_later() -> None:
    """What a cell's operations and the first checkpoint need."""
    import_module("belljar.cell.cell")
    import_module("cryptography.hazmat.primitives.asymmetric.ed25519")


do_while_starting(import_what_runs_later)

_CELL_DESCRIPTORS: Final = 32
"""A cell keeps a dozen open; making and destroying one takes some more for moments."""
OnTarget: TypeAlias = "Callable[[Cell], Awaitable[object]]"
NOWHERE: Final[Mapping[str, str]] = MappingProxyType({})


@asynccontextmanager
async def open_cell(
    policy: PolicyLike = None,
    *,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
    ahead: bool = False,
    on_target: OnTarget | None = None,
) -> AsyncIterator[Cell]:
    """A fresh cell of the plan's tier, destroyed when the block is left, however it is left.

    With a network in its policy it is the range's own cell: its stand-ins, target cells and network
    are made with it and end with it (see `open_range`).

    Args:
        policy: a preset's name (default `high`), a policy file's path, a `Policy`, a dict with a
            policy file's fields, or a loaded policy.
        run: the run directory that records it; default one of its own, closed with the cell.
        home: Belljar's store; default `belljar_home()`.
        actor: who works in it, for the record.
        ahead: nobody asked for it yet, for the record: see `open_pool`.
        on_target: called with each target cell of its range when it stands, before its program is
            started; what it raises ends the range.

    Raises:
        PolicyError, HostError: refused before anything was made; also while the store is held.
        CellError: it could not be made, or died while a call waited.
        ContainmentBreach: its destruction found something left, or its range's rules were changed.
            Recorded and removed, but nothing of this run may count as contained.

    No task group or cancel scope stays open between entry and exit: they may happen in different
    tasks, under asyncio or trio.
    """
    home = home or belljar_home()
    refuse_if_held(home)
    loaded = resolve_here(policy)
    async with AsyncExitStack() as stack:
        require_free(_CELL_DESCRIPTORS)
        with exhaustion_as_host_error():
            if run is None:
                run = stack.enter_context(start_run("cell", loaded.source, [], home=home))
            refuse_if_stopped(home, run.run_id)
            if loaded.policy.network is not None:
                from belljar.cell.ranges import open_range

                opened = await stack.enter_async_context(
                    open_range(
                        loaded, run=run, home=home, actor=actor, ahead=ahead, on_target=on_target
                    )
                )
                cell = opened.cell
            else:
                parts = await prepare(loaded, recorder=run.recorder, home=home)
                describe(run, loaded, parts)
                rules = stack.enter_context(tripping(run, loaded.policy, home))
                recorder = stack.enter_context(guarded_recorder(rules, loaded))
                made = ready_cell(
                    loaded,
                    parts,
                    recorder=recorder,
                    run_id=run.run_id,
                    home=home,
                    actor=actor,
                    ahead=ahead,
                )
                cell = await stack.enter_async_context(made)
                if loaded.policy.decoys and not ahead:
                    await stack.enter_async_context(decoys_in(cell, loaded, run))
        yield cell


def decoys_in(
    cell: Cell, loaded: LoadedPolicy, run: RunDirectory
) -> AbstractAsyncContextManager[object]:
    """The policy's decoys, placed and watched; for whoever takes the cell."""
    from belljar.cell import decoys

    return decoys.decoys_in(cell, loaded, run)


@asynccontextmanager
async def ready_cell(
    loaded: LoadedPolicy,
    parts: Parts,
    *,
    recorder: Recorder,
    run_id: str,
    home: Path,
    actor: Actor,
    ahead: bool = False,
    port: Port | None = None,
    router: Router | None = None,
    place: Mapping[str, str] = NOWHERE,
) -> AsyncIterator[Cell]:
    """One cell of these parts, with the policy's files in it.

    `port` and `router`: its place on its range's network, both or neither; `place`: that place, for
    the record (`range`, `name`). Raises as `open_cell`.
    """
    told = {**place, **planned(loaded, parts, ahead=ahead)}
    async with open_live(parts, home=home, recorder=recorder, planned=told, port=port) as live:
        from belljar.cell.cell import Cell

        image = parts.image
        cell = Cell(
            live,
            parts.plan,
            recorder,
            actor=actor,
            image_command=(*image.entrypoint, *image.cmd),
            image_entrypoint=image.entrypoint,
            image_health=image_health(image.config),
            router=router,
        )
        about = CellAbout(
            run_id=run_id,
            tier=cell.tier,
            risk=loaded.policy.risk.value,
            policy=loaded.policy.name,
            range_id=place.get("range", ""),
            name=place.get("name", ""),
            memory_limit_bytes=parts.plan.limits.memory_bytes,
        )
        cell.describe = partial(_describe_cell, Journal(home), cell.id, about)
        try:
            cell.describe()
            # Whoever read the journal before did not know whose it is
            refuse_if_stopped(home, run_id)
            await copy_in(cell, loaded)
            yield cell
        finally:
            with anyio.CancelScope(shield=True):
                destruction = await cell.destroy()
    if destruction.survivors:
        raise breach(cell, destruction.survivors)
    if destruction.unproven:
        raise unproven(cell, destruction.unproven)


def _describe_cell(
    journal: Journal,
    cell_id: str,
    about: CellAbout,
    **said: Any,  # noqa: ANN401 - its fields
) -> None:
    """Say what a cell is for; one that nobody can list is a cell all the same."""
    with suppress(OSError):
        journal.describe(cell_id, replace(about, **said))


def open_live(
    parts: Parts,
    *,
    home: Path,
    recorder: Recorder,
    planned: dict[str, object],
    port: Port | None = None,
) -> AbstractAsyncContextManager[Sandbox]:
    """By the plan's tier. `port`: its place on its range's network."""
    if isinstance(parts, MachineParts):
        from belljar.isolation.microvm import open_vm

        return open_vm(
            parts.plan,
            parts.image,
            parts.kernel,
            home=home,
            recorder=recorder,
            planned=planned,
            port=port,
        )
    from belljar.isolation.oci import open_container

    return open_container(
        parts.plan, parts.image, home=home, recorder=recorder, planned=planned, port=port
    )


def planned(loaded: LoadedPolicy, parts: Parts, *, ahead: bool = False) -> dict[str, object]:
    """What the event `cell.planned` says of a cell to come."""
    early = {"ahead": True} if ahead else {}
    return {
        **early,
        "policy_sha256": hashlib.sha256(loaded.text).hexdigest(),
        "tier": parts.plan.tier.value,
        "emulated": parts.plan.emulated,
        "layers": [layer.name for layer in parts.plan.layers],
        "risk": loaded.policy.risk.value,
        "image": parts.image.digest,
    }


def refused(loaded: LoadedPolicy, error: BelljarError) -> Event:
    """A refusal is on record too."""
    digest = hashlib.sha256(loaded.text).hexdigest()
    data = {"reason": error.what, "where": error.where, "hint": error.hint, "policy_sha256": digest}
    return Event(kind=Kind.POLICY_REFUSED, data=data)


def breach(cell: Cell, survivors: tuple[str, ...]) -> ContainmentBreach:
    """The error for a cell that left something behind."""
    return ContainmentBreach(
        f"destruction left: {', '.join(survivors)}",
        where=f"cell {cell.id}",
        hint="it was removed and recorded; do not count this sample as contained, and look at "
        "the ledger before the next run",
    )


def unproven(cell: Cell, missed: tuple[str, ...]) -> HostError:
    """The error for a cell of which this host lets us not see whether anything is left."""
    return HostError(
        f"its destruction could not be proven; not looked for: {'; '.join(missed)}",
        where=f"cell {cell.id}",
        hint="do not count this sample as contained; let this user see what is named, then "
        "`belljar reap` looks again",
    )


async def copy_in(cell: Cell, loaded: LoadedPolicy) -> None:
    """Copy what a task's compose file names, then the policy's files, into the cell; a host path is
    never shared.
    """
    if loaded.data is not None:
        from belljar.cell.task_data import put_in

        await put_in(cell, loaded.data)
    for copy in loaded.policy.files:
        contents = await anyio.to_thread.run_sync(loaded.read_file, copy)
        await cell.write_file(
            copy.target, contents, mode=copy.mode, user="0", owner=copy.owner or cell.plan.user
        )
