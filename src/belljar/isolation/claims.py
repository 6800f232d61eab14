"""Who uses a part of the store (a template, an unpacked image): a shared lock on its directory while a cell lives. And how an unused one is taken out.

The kernel lets go of a lock when its owner dies, so nothing has to be reaped. The directory's modification time is when it was last used.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from belljar.errors import HostError
from belljar.image.scratch import MAKING, owned_name

_PATIENCE_S: Final = 0.5
_RETRY_S: Final = 0.001


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Nobody takes it out meanwhile; it counts as used now. Blocking, for half a second at the very most.

    Raises:
        FileNotFoundError: it isn't there, or was just taken out.
        HostError: something else has locked it, and keeps it locked. It stands: it is not to be made again.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        _share(fd, directory)
        _refuse_another(fd, directory)
        with suppress(OSError):  # another's, or read-only: the time is a hint
            os.utime(fd)
        yield
    finally:
        os.close(fd)


def _share(fd: int, directory: Path) -> None:
    """Who only looks whether it is in use has the lock alone too, for an instant: a refusal counts when it lasts."""
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise _locked_out(directory) from None
            time.sleep(_RETRY_S)
        else:
            return


def _locked_out(directory: Path) -> HostError:
    return HostError(
        "a part of the store can't be used: another program keeps a lock on it",
        where=str(directory),
        hint="look who has it (`lslocks`), end that, and try again",
    )


def in_use(directory: Path) -> bool:
    """Whether a living cell claims it. False when it isn't there."""
    with suppress(OSError), _alone(directory) as free:
        return not free
    return False


def retire(directory: Path) -> Path | None:
    """Take an unclaimed directory out of the store in one step; the path at which it is to be removed, or None when it is claimed or gone.

    Its new name says that this process owns it: should that die, the next start removes it.
    """
    with suppress(FileNotFoundError), _alone(directory) as free:
        if free:
            retired = directory.with_name(owned_name(MAKING, f"retired-{directory.name[:12]}"))
            directory.rename(retired)
            return retired
    return None


@contextmanager
def _alone(directory: Path) -> Iterator[bool]:
    """Whether nobody claims it; if so, nobody can while the block runs."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        _refuse_another(fd, directory)
        yield True
    finally:
        os.close(fd)


def _refuse_another(fd: int, directory: Path) -> None:
    """Between opening and locking it may have been taken out, and another put in its place."""
    if not os.path.samestat(os.fstat(fd), directory.lstat()):
        raise FileNotFoundError(f"{directory} was replaced")
