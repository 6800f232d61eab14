"""Removes unneeded parts of the store.

All are made again when wanted, except unnamed images (`everything` only). Parts in use stay. What
is half made is not its business: each start, and `belljar reap`, sweep it.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import anyio.to_thread

from belljar.errors import BelljarError
from belljar.image.kernel import current_digest, remove_kernel
from belljar.image.storage import BASES, LAYERS, remove_kept
from belljar.image.store import Store
from belljar.isolation.microvm.template import lock_name
from belljar.isolation.oci.trees import remove_trees
from belljar.isolation.program_root import outdated_roots, remove_root
from belljar.store.journal import Journal
from belljar.store.locks import in_use, locked
from belljar.store.scratch import remove_tree, retire_unclaimed
from belljar.units import format_duration

PartKind: TypeAlias = Literal["image", "template", "tree", "build", "root", "kernel"]
PartState: TypeAlias = Literal["unneeded", "removed", "in use", "failed"]
_KEY: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_ROOTS: Final = ("vmm", "runtimes", "unpackers", "wires")
_BLOCK_BYTES: Final = 512
_UNCLAIMED: Final = frozenset({"root", "kernel", "image"})
"""Used without a claim, which the others have: stays while any cell lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedPart:
    """A removable part and its outcome; `note`: why kept."""

    kind: PartKind
    path: Path
    why: str
    size_bytes: int = 0
    state: PartState = "unneeded"
    note: str = ""


async def prune(
    home: Path, *, unused_for_s: float, everything: bool = False, dry_run: bool = False
) -> tuple[PrunedPart, ...]:
    """Remove what is unneeded; each part that was found, and what became of it.

    Args:
        unused_for_s: how long a part that could still be used was not.
        everything: however short ago it was used, and images without a name too.

    Raises:
        HostError: the store is damaged. PermissionError: it is another user's.
    """
    wanted = 0.0 if everything else unused_for_s
    found = await anyio.to_thread.run_sync(unneeded, home, wanted, everything)
    return found if dry_run else tuple([await remove_part(part, home) for part in found])


def unneeded(
    home: Path,
    unused_for_s: float,
    everything: bool,  # noqa: FBT001
) -> tuple[PrunedPart, ...]:
    """Everything removable, with sizes; parts in use are marked."""
    before = time.time() - unused_for_s
    images = [
        PrunedPart(kind="image", path=image.rootfs.parent, why="it has no name")
        for image in (Store(home).list() if everything else ())
        if not image.names
    ]
    gone = {part.path.name for part in images}
    parts = (
        *images,
        *_templates(home, gone, before),
        *_of_images(home, "trees", "tree", gone, before),
        *_of_images(home, BASES, "build", gone, before),
        *(
            PrunedPart(kind="build", path=layers, why=why)
            for layers in sorted((home / LAYERS).glob("*"))
            if (why := _unused(layers, before))
        ),
        *(
            PrunedPart(kind="root", path=root, why="its program is another version now, or gone")
            for name in _ROOTS
            for root in outdated_roots(home / name)
        ),
        *_kernels(home, before),
    )
    busy = _cells_live(home)
    return tuple(_measured(part, busy=busy) for part in parts)


def _cells_live(home: Path) -> bool:
    return any(entry.owner_lives() for entry in Journal(home).entries())


def _templates(home: Path, gone: set[str], before: float) -> Iterator[PrunedPart]:
    for directory in _keyed(home / "templates"):
        inputs = _inputs(directory)
        if not _has(home, "images", inputs.get("image_digest"), gone):
            why = "its image is gone"
        elif not _has(home, "kernels", inputs.get("kernel_digest"), set()):
            why = "its guest kernel is gone"
        else:
            why = _unused(directory, before)
        if why:
            yield PrunedPart(kind="template", path=directory, why=why)


def _inputs(directory: Path) -> dict[str, Any]:
    try:
        inputs = json.loads((directory / "template.json").read_text())["inputs"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return inputs if isinstance(inputs, dict) else {}


def _has(home: Path, kind: str, digest: object, gone: set[str]) -> bool:
    return (
        isinstance(digest, str)
        and _KEY.fullmatch(digest) is not None
        and digest not in gone
        and (home / kind / digest).is_dir()
    )


def _of_images(
    home: Path, name: str, kind: PartKind, gone: set[str], before: float
) -> Iterator[PrunedPart]:
    for directory in _keyed(home / name):
        why = (
            _unused(directory, before)
            if _has(home, "images", directory.name, gone)
            else "its image is gone"
        )
        if why:
            yield PrunedPart(kind=kind, path=directory, why=why)


def _kernels(home: Path, before: float) -> Iterator[PrunedPart]:
    current = current_digest(home)
    if current is None:  # then any of them may be it
        return
    for directory in _keyed(home / "kernels"):
        if directory.name != current and _unused(directory, before):
            yield PrunedPart(
                kind="kernel", path=directory, why="another guest kernel is the current one"
            )


def _keyed(directory: Path) -> list[Path]:
    return [
        path for path in sorted(directory.glob("*")) if _KEY.fullmatch(path.name) and path.is_dir()
    ]


def _unused(directory: Path, before: float) -> str:
    """Why it may go; "": used since, or already gone."""
    try:
        used = directory.stat().st_mtime
    except FileNotFoundError:
        return ""
    return f"not used for {format_duration(max(0.0, time.time() - used))}" if used <= before else ""


def _measured(part: PrunedPart, *, busy: bool) -> PrunedPart:
    note = _claimed_by(part, busy=busy)
    state: PartState = "in use" if note else "unneeded"
    return replace(part, size_bytes=disk_bytes(part.path), state=state, note=note)


def _claimed_by(part: PrunedPart, *, busy: bool) -> str:
    """Return who may have it, "" for nobody. `busy`: cells live."""
    if part.kind in _UNCLAIMED:
        return "cells live, and may have it" if busy else ""
    return "a cell or a build has it" if in_use(part.path) else ""


def disk_bytes(path: Path) -> int:
    """Disk use; hard links count each, unreadable files not."""
    total = 0
    for directory, _, files in os.walk(path):
        for name in (".", *files):
            try:
                file = os.path.join(directory, name)  # noqa: PTH118 - thousands of files
                total += os.lstat(file).st_blocks * _BLOCK_BYTES
            except OSError:
                continue
    return total


async def remove_part(part: PrunedPart, home: Path) -> PrunedPart:
    """Remove it if still unneeded; returns the outcome."""
    if part.state == "in use":
        return part
    try:
        if part.path.parent == home / "trees":
            await remove_trees(home, [part.path.name])
        else:
            await anyio.to_thread.run_sync(_remove, part, home)
    except BlockingIOError:
        return replace(part, state="in use", note="it is being made anew")
    except (BelljarError, OSError) as exc:
        if part.path.exists():
            why = exc.what if isinstance(exc, BelljarError) else f"{exc.strerror}"
            return replace(part, state="failed", note=why)
    if not part.path.exists():
        return replace(part, state="removed")
    note = _claimed_by(part, busy=_cells_live(home))
    if note or part.kind in _UNCLAIMED:
        return replace(part, state="in use", note=note or "it is needed again")
    return replace(part, state="failed", note="it could not be removed")


def _remove(part: PrunedPart, home: Path) -> None:
    """Asks its rule again under its lock."""
    if part.kind in _UNCLAIMED and _cells_live(home):
        return
    match part.kind:
        case "template":
            with locked(home, lock_name(part.path.name), wait=False):
                if (retired := retire_unclaimed(part.path)) is not None:
                    remove_tree(retired)
        case "image":
            Store(home).remove(part.path.name, only_unnamed=True)
        case "build":
            remove_kept(home, part.path)
        case "root":
            remove_root(home, part.path)
        case "kernel":
            remove_kernel(home, part.path.name)
