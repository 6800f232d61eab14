"""Named locks, and claims: shared locks on parts that cells use. They end with their owner. A
part's modification time is its last use.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from belljar.descriptors import open_fd
from belljar.errors import HostError
from belljar.store.home import make_store_dir

# Enough for `in_use`, which has the lock for an instant.
_CLAIM_TIMEOUT_S: Final = 0.5
_RETRY_S: Final = 0.001
_POLL_S: Final = 0.05
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def locked(home: Path, name: str, *, wait: bool = True) -> Iterator[None]:
    """Hold `home/locks/<name>`. Raises `BlockingIOError` without `wait`."""
    make_store_dir(home)
    make_store_dir(home / "locks")
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    with open_fd(os.open(home / "locks" / name, flags, 0o600)) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@asynccontextmanager
async def locked_meanwhile(home: Path, name: str) -> AsyncIterator[None]:
    """Wait without blocking."""
    import anyio

    with ExitStack() as lock:
        while True:
            try:
                lock.enter_context(locked(home, name, wait=False))
                break
            except BlockingIOError:
                await anyio.sleep(_POLL_S)
        yield


@contextmanager
def claimed(directory: Path) -> Iterator[None]:
    """Use a part, which no removal or sweep touches meanwhile. Blocks for half a second at most.

    Raise `FileNotFoundError`, and `HostError` if another program keeps it locked.
    """
    with open_fd(os.open(directory, _DIRECTORY)) as fd:
        give_up = time.monotonic() + _CLAIM_TIMEOUT_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    what = "a part of the store can't be used: another program keeps a lock on it"
                    hint = "look who has it (`lslocks`), end that, and try again"
                    raise HostError(what, where=str(directory), hint=hint) from None
            time.sleep(_RETRY_S)
        _check_same(fd, directory)
        with suppress(OSError):  # another user's, or read-only: the time is a hint
            os.utime(fd)
        yield


@contextmanager
def claimed_for_cell(directory: Path) -> Iterator[None]:
    with ExitStack() as held:
        try:
            held.enter_context(claimed(directory))
        except FileNotFoundError as exc:
            what = "a part of the store was removed while a cell was to be started"
            hint = "start it again: the part is made anew"
            raise HostError(what, where=str(directory), hint=hint) from exc
        yield


def in_use(directory: Path) -> bool:
    # A directory that can't be opened is missing, or nothing that this user could claim.
    with suppress(OSError), alone(directory) as free:
        return not free
    return False


@contextmanager
def alone(directory: Path) -> Iterator[bool]:
    """Yield true if it stays unclaimed in the block."""
    with open_fd(os.open(directory, _DIRECTORY)) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        _check_same(fd, directory)
        yield True


def _check_same(fd: int, directory: Path) -> None:
    if not os.path.samestat(os.fstat(fd), directory.lstat()):
        raise FileNotFoundError(f"{directory} was replaced")
