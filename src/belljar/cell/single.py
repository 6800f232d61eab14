"""One cell of parts that were prepared: opened, described, filled, and destroyed with proof."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from belljar.cell.parts import MachineParts, Parts
from belljar.errors import HostError
from belljar.events import Actor, Recorder
from belljar.image import image_health
from belljar.isolation.hold import refuse_if_stopped
from belljar.isolation.program_root import STORE_HINT
from belljar.isolation.sandbox import do_while_starting
from belljar.policy import LoadedPolicy
from belljar.store.journal import CellAbout, Journal

if TYPE_CHECKING:
    from belljar.cell.cell import Cell, Snapshot
    from belljar.isolation.renewal import Port
    from belljar.isolation.sandbox import Sandbox


def import_what_runs_later() -> None:
    """What a cell's operations and the first checkpoint need."""
    import_module("belljar.cell.cell")
    import_module("cryptography.hazmat.primitives.asymmetric.ed25519")


do_while_starting(import_what_runs_later)


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
    place: Mapping[str, str] = MappingProxyType({}),
    part_of: str = "",
    snapshot: Snapshot | None = None,
) -> AsyncIterator[Cell]:
    """One cell of these parts, with the policy's files in it.

    `port`: its port on its range's network; `place`: that place, for the record (`range`, `name`).
    `part_of`: the range, or the first of a range's cells that has no network.
    `snapshot`: the cell goes on from there; the policy's files are in it.
    Raises as `open_cell`.
    """
    data = {**place, **planned(loaded, parts, ahead=ahead)}
    opening = open_live(
        parts,
        home=home,
        recorder=recorder,
        planned=data,
        port=port,
        part_of=part_of,
        snapshot=snapshot,
    )
    async with opening as live:
        from belljar.cell.cell import Cell

        image = parts.image
        cell = Cell(
            live,
            parts.plan,
            recorder,
            actor=actor,
            has_port=port is not None,
            image_command=(*image.entrypoint, *image.cmd),
            image_entrypoint=image.entrypoint,
            image_health=partial(image_health, image.config),
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

        def describe(**fields: Any) -> None:  # noqa: ANN401 - the fields of `CellAbout`
            with suppress(OSError):  # its list has less of it
                Journal(home).describe(cell.id, replace(about, **fields))

        cell.describe = describe
        try:
            try:
                Journal(home).describe(cell.id, about)
            except OSError as error:  # a kill of its run would not find it
                what = f"whose cell it is can't be written: {error.strerror}"
                raise HostError(what, where=f"cell {cell.id}", hint=STORE_HINT) from error
            # A kill before this did not know whose cell it is
            refuse_if_stopped(home, run_id)
            if snapshot is None:
                await copy_in(cell, loaded)
            else:
                from belljar.cell.snapshot import resume

                await resume(snapshot, cell)
            yield cell
        finally:
            with anyio.CancelScope(shield=True):
                destruction = await cell.destroy()
    destruction.raise_if_unclean("destruction", where=f"cell {cell.id}")


def open_live(
    parts: Parts,
    *,
    home: Path,
    recorder: Recorder,
    planned: dict[str, object],
    port: Port | None = None,
    part_of: str = "",
    snapshot: Snapshot | None = None,
) -> AbstractAsyncContextManager[Sandbox]:
    """By the plan's tier. `port`: its place on its range's network. `snapshot`: its beginning."""
    if isinstance(parts, MachineParts):
        from belljar.isolation.microvm import open_vm
        from belljar.isolation.microvm.saved import SavedMachine

        saved = None if snapshot is None else snapshot.saved
        return open_vm(
            parts.plan,
            parts.image,
            parts.kernel,
            home=home,
            recorder=recorder,
            planned=planned,
            port=port,
            part_of=part_of,
            weights=parts.weights,
            saved=saved if isinstance(saved, SavedMachine) else None,
        )
    from belljar.isolation.oci import open_container

    return open_container(
        parts.plan,
        parts.image,
        home=home,
        recorder=recorder,
        planned=planned,
        port=port,
        part_of=part_of,
        weights=parts.weights,
    )


def planned(loaded: LoadedPolicy, parts: Parts, *, ahead: bool = False) -> dict[str, object]:
    """What the event `cell.planned` says of a cell to come."""
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
    """Make the policy's work directory, as Docker does, then copy the files of its task and its own
    into the cell; a host path is never shared. Raises `CellError` where the cell can't take one.
    """
    policy = loaded.policy
    try:
        workdir = posixpath.normpath(policy.workdir or "/")
        if workdir.strip("/"):  # the root is always there
            await cell.make_directory(workdir)
        if loaded.data is not None:
            from belljar.cell.task_data import put_in

            await put_in(cell, loaded.data)
        for copy in policy.files:
            contents = await anyio.to_thread.run_sync(loaded.read_file, copy)
            owner = copy.owner or cell.plan.user
            await cell.write_file(copy.target, contents, mode=copy.mode, user="0", owner=owner)
    except OSError as error:
        from belljar.cell.task_data import not_taken

        raise not_taken(cell, str(error)) from error
