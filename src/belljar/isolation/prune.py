"""Removes parts of the store unused for long and not in use.

Users of a part claim it, which sets its modification time. All parts can be made again.
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

import anyio.to_thread

from belljar.errors import BelljarError
from belljar.image.buildah import BASES, remove_kept
from belljar.isolation.microvm.template import lock_name
from belljar.isolation.oci.trees import remove_unpacked
from belljar.store.locks import in_use, locked
from belljar.store.scratch import remove_tree, retire_unclaimed

PartKind: TypeAlias = Literal["template", "tree", "build", "root"]
# Names of what was made by its contents' digest; nothing else is removed.
_KEY: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
# By the directory of the store.
_KINDS: Final[dict[str, PartKind]] = {
    "templates": "template",
    "trees": "tree",
    BASES: "build",
    "vmm": "root",
    "runtimes": "root",
    "unpackers": "root",
    "wires": "root",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedPart:
    """A part unused for long; `problem`: why it is still there."""

    kind: PartKind
    path: Path
    problem: str = ""


async def prune(home: Path, *, unused_for_s: float) -> tuple[PrunedPart, ...]:
    """Remove what was unused so long; each part's outcome."""
    found = await anyio.to_thread.run_sync(unneeded, home, unused_for_s)
    return tuple([done for part in found if (done := await remove_part(part, home)) is not None])


def unneeded(home: Path, unused_for_s: float) -> list[PrunedPart]:
    """Everything unused so long that nobody has now."""
    parts = []
    for name, kind in _KINDS.items():
        for path in filter(lambda each: _KEY.fullmatch(each.name), sorted((home / name).glob("*"))):
            with suppress(FileNotFoundError):  # another prune was quicker
                is_unused = time.time() - path.stat().st_mtime >= unused_for_s
                if is_unused and not in_use(path):
                    parts.append(PrunedPart(kind=kind, path=path))
    return parts


async def remove_part(part: PrunedPart, home: Path) -> PrunedPart | None:
    """Remove it; None: somebody has it."""
    problem = "it could not be removed"
    try:
        if part.kind == "tree":
            await remove_unpacked(home, part.path)
        elif part.kind == "build":
            await anyio.to_thread.run_sync(remove_kept, home, part.path)
        else:
            # Under its makers' lock, as new parts are briefly unclaimed
            name = lock_name(part.path.name) if part.kind == "template" else part.path.parent.name
            with locked(home, name, wait=False):
                if (retired := retire_unclaimed(part.path)) is not None:
                    await anyio.to_thread.run_sync(remove_tree, retired)
    except BlockingIOError:  # it is being made anew
        return None
    except (BelljarError, OSError) as exc:
        problem = exc.what if isinstance(exc, BelljarError) else f"{exc.strerror}"
    if not part.path.exists():
        return part
    return None if in_use(part.path) else replace(part, problem=problem)
