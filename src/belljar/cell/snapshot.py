"""`Cell.snapshot`: a cell in use as it is at one moment, and other cells that go on from there."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from belljar.cell.cell import Cell, Snapshot
from belljar.cell.decoys import find_changed
from belljar.cell.parts import MachineParts
from belljar.cell.saved_files import SavedFiles, save_files
from belljar.errors import CellError, HostError, PolicyError
from belljar.events import Event, JsonValue, Kind
from belljar.isolation.microvm.saved import MachineLostError, SavedMachine, save_machine
from belljar.isolation.microvm.template import find_key
from belljar.isolation.microvm.vmm import Vmm
from belljar.store.scratch import scratch_dir
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.cell.range import Origin

HOOKS: Final = "/etc/resume.d"
"""Executables there run as root in a fork before anything else, in the order of their names."""
MAX_HOOKS: Final = 16
_HOOKS_TIMEOUT_S: Final = 10.0
_MAX_HOOK_OUTPUT_BYTES: Final = 64 << 10


async def resume(snapshot: Snapshot, cell: Cell) -> None:
    """Record where a fork comes from, and give it its files. Raises `CellError`."""
    data: dict[str, JsonValue] = {"snapshot": snapshot.id, "from": snapshot.cell}
    if snapshot.placed_decoys:
        data["kept_decoys"] = [*snapshot.kept_decoys]
    cell.note(Kind.CELL_FORKED, data)
    if isinstance(snapshot.saved, SavedFiles):
        await snapshot.saved.put_into(cell)


async def run_hooks(snapshot: Snapshot, cell: Cell) -> None:
    """Run the image's hooks in a fork, before anything else. Raises `CellError`."""
    give_up = time.monotonic() + _HOOKS_TIMEOUT_S
    for hook in snapshot.hooks:
        output = await cell.exec(
            [hook],
            cwd="/",
            user="0:0",
            timeout_s=max(0.1, give_up - time.monotonic()),
            max_output_bytes=_MAX_HOOK_OUTPUT_BYTES,
        )
        if output.returncode:
            raise CellError(
                f"{printable(hook)} failed in a fork with status {output.returncode}",
                where=f"cell {cell.id}",
                hint="run it in a cell by hand; all hooks together have 10 seconds",
            )


async def take_snapshot(cell: Cell, name: str | None) -> Snapshot:
    """See `Cell.snapshot`."""
    origin: Origin = cell.origin
    await _check(cell, origin)
    began, id_ = time.monotonic(), f"s-{secrets.token_hex(6)}"
    name = id_ if name is None else name
    hooks = await _find_hooks(cell)
    cell.note(Kind.CELL_SNAPSHOTTING, {"snapshot": id_, "name": name})
    with ExitStack() as undo:
        directory = undo.enter_context(_kept(origin, id_))
        saved = await _save(cell, origin, directory)
        snapshot = Snapshot(
            id=id_,
            name=name,
            state="files" if isinstance(saved, SavedFiles) else "machine",
            digest=saved.digest,
            key=saved.key,
            cell=cell.id,
            size_bytes=saved.size_bytes,
            kept_decoys=_kept_decoys(cell, saved),
            saved=saved,
            origin=origin,
            hooks=hooks,
            ancestors=(*(() if cell.guard is None else cell.guard.ancestors), cell.id),
            placed_decoys=cell.decoys,
        )
        data: dict[str, JsonValue] = {
            "snapshot": id_,
            **{each: getattr(snapshot, each) for each in ("name", "state", "digest", "key")},
            "bytes": saved.size_bytes,
            "duration_ms": round((time.monotonic() - began) * 1000, 3),
        }
        cell.note(Kind.CELL_SNAPSHOT, data)
        origin.run.enter_once(f"snapshot {id_}", undo.pop_all, ends_on_record=True)
    return snapshot


async def _save(cell: Cell, origin: Origin, directory: Path) -> SavedMachine | SavedFiles:
    live, parts = cell._live, origin.parts
    try:
        if not isinstance(live, Vmm) or not isinstance(parts, MachineParts):
            return await save_files(cell, directory, since=origin.since)
        key, _root = await anyio.to_thread.run_sync(
            find_key, parts.plan, parts.image, parts.kernel, origin.home
        )
        return await save_machine(live, directory, key)
    except CellError as error:
        live.raise_if_killed(error)
        if isinstance(error, MachineLostError) or live.client.failure is not None:
            cell._end_if_dead(error)
        raise


def _kept_decoys(cell: Cell, saved: SavedMachine | SavedFiles) -> tuple[str, ...]:
    """Of a machine all: its memory holds their files, and pages of them that are free by now."""
    ids = {decoy.id for decoy in cell.decoys}
    return tuple(sorted(ids if isinstance(saved, SavedMachine) else cell.seen_decoys))


async def _check(cell: Cell, origin: Origin) -> None:
    policy, why, hint = cell.plan.policy, "", ""
    has_secret = any(file.secret for file in policy.files)
    if not policy.snapshots:
        why = "its policy doesn't allow it"
        hint = "write `snapshots: true` into the policy, and into the operator's if there is one"
    elif policy.snapshots != "with_secrets" and (has_secret or policy.decoys):
        why = "it has a file that the policy marks as `secret`" if has_secret else "it holds decoys"
        hint = "write `snapshots: with_secrets`, or leave them out of a cell that is forked"
    elif origin.parts.weights is not None:
        why = "it serves a model"
    elif (changed := await find_changed(cell, cell.decoys)) is not None:
        why = f"its decoy {changed.id} was changed or moved, so that no fork could get another"
        hint = "revert the cell, and save that"
    if why:
        raise PolicyError(f"the cell can't be saved: {why}", where=f"cell {cell.id}", hint=hint)


async def _find_hooks(cell: Cell) -> tuple[str, ...]:
    try:
        found = await cell.list_dir(HOOKS, user="0:0", max_entries=MAX_HOOKS)
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise CellError(
            f"{HOOKS} can't be read, or has more than {MAX_HOOKS} entries",
            where=f"cell {cell.id}",
        ) from error
    return tuple(
        f"{HOOKS}/{each.name}" for each in found if each.kind == "file" and each.mode & 0o111
    )


@contextmanager
def _kept(origin: Origin, id_: str) -> Iterator[Path]:
    """A directory for a snapshot, whose removal is on record. Raises `HostError` if it stays."""
    with ExitStack() as after:
        directory = after.enter_context(scratch_dir(origin.home))
        try:
            yield directory
        finally:
            after.close()
            is_gone = not os.path.lexists(directory)
            data: dict[str, JsonValue] = {"snapshot": id_, "clean": is_gone}
            origin.run.recorder.record(Event(kind=Kind.SNAPSHOT_DELETED, data=data))
    if not is_gone:
        raise HostError(
            "a snapshot could not be deleted", where=str(directory), hint="remove it by hand"
        )
