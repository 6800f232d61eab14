"""Working directories inside the store that no crash leaves behind.

A scratch directory's name says who owns it (`<pid>-<start time>-<random>`): whoever starts next removes those whose owner is gone. The start time
guards against a pid that was used again.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from belljar.errors import HostError
from belljar.image.tools import run_tool, tool
from belljar.units import format_size

_REMOVE_TIMEOUT_S: Final = 600.0
_NAME: Final = re.compile(r"(\d{1,10})-(\d{1,20})-[a-z0-9_-]+", re.ASCII)
MAKING: Final = ".making-"
"""What a part of the store is called while it is made: this, and whose it is."""


@contextmanager
def scratch_dir(home: Path) -> Iterator[Path]:
    """A private (0700) directory under `home/tmp`, on the same file system as the store; removed at the end, whatever happened.

    Also removes what owners that died left there. Raises `HostError` when the store can't be written.
    """
    parent = home / "tmp"
    make_store_dir(home)
    make_store_dir(parent)
    with owned_dir(parent) as path:
        yield path


@contextmanager
def owned_dir(parent: Path, *, prefix: str = "") -> Iterator[Path]:
    """A private directory under `parent` whose name says who owns it; sweeps `parent` for those of owners that died first."""
    sweep(parent, prefix=prefix)
    try:
        path = Path(tempfile.mkdtemp(prefix=owned_name(prefix), dir=parent))
    except OSError as error:
        raise _unwritable(parent, error) from error
    try:
        yield path
    finally:
        remove_tree(path)


def owned_name(prefix: str = "", what: str = "") -> str:
    """A name that says that this process owns what bears it, for `sweep`; `what` makes it unlike any other."""
    return f"{prefix}{os.getpid()}-{start_time(os.getpid())}-{what}"


def is_owned(name: str, *, prefix: str = "") -> bool:
    """Whether what bears the name belongs to a process that lives."""
    rest = name.removeprefix(prefix)
    return _NAME.fullmatch(rest) is not None and not _is_orphan(rest)


def sweep(parent: Path, *, prefix: str = "") -> list[Path]:
    """Remove this user's scratch directories under `parent` whose owner is gone; the removed paths."""
    removed = orphans(parent, prefix=prefix)
    for path in removed:
        remove_tree(path)
    return removed


def orphans(parent: Path, *, prefix: str = "") -> list[Path]:
    """This user's scratch directories under `parent` whose owner is gone."""
    candidates = [path for path in parent.glob(f"{prefix}*") if _is_orphan(path.name.removeprefix(prefix))]
    return [path for path in candidates if _is_mine(path)]


def _is_mine(path: Path) -> bool:
    """Not what another sweep has just removed."""
    try:
        return path.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return False


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot; None if there is no such process."""
    try:
        # The command name is in parentheses and may hold anything: count fields from the last ')'.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[19])


def remove_tree(path: Path) -> None:
    """Remove a directory tree, also one whose directories forbid it (mode 0). Missing is fine. Never follows a link."""
    with suppress(RecursionError):
        shutil.rmtree(path, onerror=_allow_and_retry)
    if os.path.lexists(path):  # `shutil` holds a descriptor and a frame for each level, `rm` neither
        with suppress(HostError):
            run_tool([tool("rm"), "-rf", "--", str(path)], timeout_s=_REMOVE_TIMEOUT_S)


def make_store_dir(path: Path, *, mode: int = 0o711) -> None:
    """Make a directory of the store (traversable, not listable, by others). Raises `HostError` when that's not possible."""
    try:
        if not path.is_dir():
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(mode)
    except OSError as error:
        raise _unwritable(path, error) from error


@contextmanager
def locked(home: Path, name: str) -> Iterator[None]:
    """Hold the store's lock `name` (`home/locks/<name>`) exclusively; waits for whoever holds it."""
    make_store_dir(home)
    make_store_dir(home / "locks")
    descriptor = os.open(home / "locks" / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def need_space(home: Path, wanted_bytes: int, what: str) -> None:
    """Raise `HostError` unless the store's file system has `wanted_bytes` free (and the store exists or can be made)."""
    make_store_dir(home)
    free = shutil.disk_usage(home).free
    if free < wanted_bytes:
        raise HostError(
            f"{what} needs about {format_size(wanted_bytes)} of disk, {format_size(free)} is free",
            where=str(home),
            hint="free some space there, or set BELLJAR_HOME to a directory on a larger disk",
        )


def _is_orphan(name: str) -> bool:
    match = _NAME.fullmatch(name)
    return match is not None and start_time(int(match[1])) != int(match[2])


def _allow_and_retry(_function: object, name: str, _info: object) -> None:
    path = Path(name)
    try:
        parent = path.parent
        parent.chmod(stat.S_IMODE(parent.lstat().st_mode) | 0o700)
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    except OSError:
        return


def _unwritable(path: Path, error: OSError) -> HostError:
    return HostError(
        f"the store can't be written: {error.strerror}",
        where=str(path),
        hint="run as the user who owns it, free some space, or set BELLJAR_HOME to a directory that you can write",
    )
