"""Removes parts of the store unused for long and not in use.

Users of a part claim it, which sets its modification time. All parts can be made again.
"""

from __future__ import annotations

import re
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, TypeAlias

import anyio.to_thread

from belljar.errors import BelljarError
from belljar.image.storage import BASES, remove_kept
from belljar.isolation.microvm.template import lock_name
from belljar.isolation.oci.trees import remove_unpacked
from belljar.store.locks import in_use, locked
from belljar.store.scratch import remove_tree, retire_unclaimed
from belljar.units import format_duration

PartKind: TypeAlias = Literal["template", "tree", "build", "root"]
PartState: TypeAlias = Literal["unneeded", "removed", "in use", "failed"]
# Names of what was made by its contents' digest; nothing else is removed.
_KEY: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_DU_TIMEOUT_S: Final = 600.0  # a tree of millions of files on a slow disk
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
    """A part unused for long, and its outcome; `why` it goes or stays."""

    kind: PartKind
    path: Path
    why: str
    size_bytes: int = 0
    state: PartState = "unneeded"


async def prune(
    home: Path, *, unused_for_s: float, dry_run: bool = False
) -> tuple[PrunedPart, ...]:
    """Remove what was unused so long; each part found, with its outcome."""
    found = await anyio.to_thread.run_sync(unneeded, home, unused_for_s)
    return found if dry_run else tuple([await remove_part(part, home) for part in found])


def unneeded(home: Path, unused_for_s: float) -> tuple[PrunedPart, ...]:
    """Everything unused so long, with sizes; parts in use are marked."""
    parts = []
    for name, kind in _KINDS.items():
        for path in sorted((home / name).glob("*")):
            if not _KEY.fullmatch(path.name):
                continue
            with suppress(FileNotFoundError):  # another prune was quicker
                unused_s = max(0.0, time.time() - path.stat().st_mtime)
                if unused_s >= unused_for_s:
                    why = f"not used for {format_duration(unused_s)}"
                    part = PrunedPart(kind=kind, path=path, why=why, size_bytes=disk_bytes(path))
                    parts.append(_as_used(part) if in_use(path) else part)
    return tuple(parts)


def _as_used(part: PrunedPart) -> PrunedPart:
    return replace(part, state="in use", why="a cell or a build has it")


def disk_bytes(path: Path) -> int:
    """A tree's disk use at any depth, without unreadable files."""
    argv = ["/usr/bin/du", "--summarize", "--block-size=1", "--", str(path)]
    with suppress(OSError, subprocess.SubprocessError, ValueError, IndexError):
        done = subprocess.run(argv, capture_output=True, timeout=_DU_TIMEOUT_S, check=False)
        return int(done.stdout.split()[0])
    return 0


async def remove_part(part: PrunedPart, home: Path) -> PrunedPart:
    """Remove it unless somebody has it; returns the outcome."""
    if part.state == "in use":
        return part
    why = "it could not be removed"
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
        return _as_used(part)
    except (BelljarError, OSError) as exc:
        why = exc.what if isinstance(exc, BelljarError) else f"{exc.strerror}"
    if not part.path.exists():
        return replace(part, state="removed")
    return _as_used(part) if in_use(part.path) else replace(part, state="failed", why=why)
