"""A microVM's read-only disk of a directory, made once beside it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from belljar.image.tools import run_tool, tool
from belljar.isolation.program_root import file_stamp
from belljar.store.home import need_space
from belljar.store.locks import locked

# Nothing is compressed: weights gain nothing by it, and an emulated guest would pay for inflating.
# Owners and times are neutral, so that one directory gives one disk.
_OPTIONS: Final = [
    "-noI",
    "-noD",
    "-noF",
    "-noX",
    "-no-xattrs",
    "-all-root",
    "-all-time",
    "0",
    "-mkfs-time",
    "0",
    "-b",
    "131072",
    "-no-progress",
    "-quiet",
]
_TIMEOUT_S: Final = 4 * 3600.0


def ensure_data_disk(home: Path, directory: Path, disk: Path) -> None:
    """Made if it is missing, or not as it was made. Blocking.

    Raises `HostError`: no space, or no mksquashfs.
    """
    made = disk.with_suffix(".json")
    with locked(home, f"disk-{disk.parent.name[:16]}"):
        if _is_as_made(disk, made):
            return
        total_bytes = sum(each.stat().st_size for each in directory.rglob("*") if each.is_file())
        need_space(home, total_bytes, "a disk of the weights for microVMs")
        draft = disk.with_name(f".{disk.name}.{os.getpid()}")
        try:
            argv = [tool("mksquashfs"), str(directory), str(draft), "-noappend", *_OPTIONS]
            run_tool(argv, timeout_s=_TIMEOUT_S)
            draft.chmod(0o444)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.rename(disk)
            made.write_text(json.dumps(file_stamp(disk)))
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def _is_as_made(disk: Path, made: Path) -> bool:
    try:
        return bool(json.loads(made.read_text()) == file_stamp(disk))
    except (OSError, ValueError):
        return False
