"""The read-only disk by which a microVM gets a model's weights, made once beside them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Final

from belljar.errors import HostError, host_errors
from belljar.image.tools import run_tool, tool
from belljar.isolation.program_root import file_stamp
from belljar.store.home import need_space
from belljar.store.locks import claimed, locked
from belljar.store.scratch import MAKING, owned_dir

DATA_DISK: Final = "disk.sqfs"
# Says of which bytes the disk was made: a disk without it, or of others, is made again.
_MADE: Final = "disk.json"
# Nothing is compressed: weights gain nothing by it, and an emulated guest would pay for inflating.
_OPTIONS: Final = "-noappend -noI -noD -noF -noX -no-xattrs -all-root -all-time 0 -mkfs-time 0"
_TIMEOUT_S: Final = 4 * 3600.0  # weights may be hundreds of GB


def ensure_data_disk(home: Path, weights: Path) -> None:
    """Make the disk if it is missing, or not as it was made. Blocking.

    Raises `HostError`: no space, no mksquashfs, or the weights are not those that were verified.
    """
    hint = "look if `belljar model ls` has them and the disk has room, then try again"
    with (
        host_errors("the disk of the weights can't be made", where=weights, hint=hint),
        claimed(weights),
        locked(home, f"disk-{weights.name[:16]}"),
    ):
        if not is_as_made(weights):
            _make(home, weights)


def _make(home: Path, weights: Path) -> None:
    directory, disk = weights / "data", weights / DATA_DISK
    total_bytes = sum(each.stat().st_size for each in directory.rglob("*") if each.is_file())
    need_space(home, total_bytes, "a disk of the weights for microVMs")
    with owned_dir(weights.parent, prefix=MAKING) as scratch:
        argv = [tool("mksquashfs"), str(directory), str(scratch / DATA_DISK)]
        argv += [*_OPTIONS.split(), "-no-progress", "-quiet"]
        run_tool(argv, timeout_s=_TIMEOUT_S)
        found = {
            each.relative_to(directory).as_posix(): file_stamp(each)
            for each in directory.rglob("*")
            if not each.is_dir()
        }
        # Else it would hold other bytes than the digest's for good
        if found != json.loads((weights / "weights.json").read_text())["stamps"]:
            raise HostError("the weights changed while their disk was made", where=str(weights))
        (scratch / DATA_DISK).chmod(0o444)
        (scratch / DATA_DISK).rename(disk)
    (weights / _MADE).write_text(json.dumps(file_stamp(disk)))


def is_as_made(weights: Path) -> bool:
    """Return whether the disk is there, and nobody has touched it since it was made."""
    with suppress(OSError, ValueError):
        return bool(json.loads((weights / _MADE).read_text()) == file_stamp(weights / DATA_DISK))
    return False
