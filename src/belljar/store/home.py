"""The place of the store."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from belljar.errors import HostError, host_errors

HINT_SPACE: Final = "free some space there, or set BELLJAR_HOME to a directory on a larger disk"
_HINT_OWNER: Final = (
    "run as the user who owns it, free some space, or set BELLJAR_HOME to a directory that you "
    "can write"
)


def belljar_home() -> Path:
    """Return the store: for root /var/lib/belljar, else below `$XDG_DATA_HOME`."""
    if chosen := os.environ.get("BELLJAR_HOME"):
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/belljar")
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    # The XDG Base Directory Specification has relative paths ignored.
    if not data.is_absolute():
        data = Path.home() / ".local" / "share"
    return data / "belljar"


def make_store_dir(path: Path, *, mode: int = 0o711) -> None:
    """Others may enter, not list. Raises `HostError`."""
    with store_errors(path):
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            # The umask has cut mkdir's mode.
            path.chmod(mode)


def need_space(home: Path, wanted_bytes: int, what: str, *, hint: str = HINT_SPACE) -> None:
    """Make the store. Raises `HostError` below `wanted_bytes` free."""
    import shutil  # late, with what it takes: many commands only ask where the store is

    from belljar.units import format_size

    make_store_dir(home)
    free = shutil.disk_usage(home).free
    if free < wanted_bytes:
        raise HostError(
            f"{what} needs about {format_size(wanted_bytes)} of disk, {format_size(free)} is free",
            where=str(home),
            hint=hint,
        )


def store_errors(path: Path) -> AbstractContextManager[None]:
    return host_errors("the store can't be written", where=path, hint=_HINT_OWNER)


def sync_file(path: Path) -> None:
    """Flush a file or a directory's entries."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
