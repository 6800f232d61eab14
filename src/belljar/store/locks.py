"""Named locks of the store, and claims: shared locks on parts that cells use.

They end with their owner. A part's modification time is its last use.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from belljar.errors import HostError
from belljar.store.home import make_store_dir

# Enough for `in_use`, which has the lock for an instant.
_CLAIM_TIMEOUT_S: Final = 0.5
_RETRY_S: Final = 0.001
_POLL_S: Final = 0.05


@contextmanager
def locked(home: Path, name: str, *, wait: bool = True) -> Iterator[None]:
    """Hold `home/locks/<name>`. Raises `BlockingIOError` without `wait`."""
    make_store_dir(home)
    make_store_dir(home / "locks")
    descriptor = os.open(home / "locks" / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


@asynccontextmanager
async def locked_meanwhile(home: Path, name: str) -> AsyncIterator[None]:
    """Wait for `locked` without blocking: it can be cancelled."""
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

    Raises `FileNotFoundError`; `HostError`: another program keeps it locked.
    """
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        give_up = time.monotonic() + _CLAIM_TIMEOUT_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    raise HostError(
                        "a part of the store can't be used: another program keeps a lock on it",
                        where=str(directory),
                        hint="look who has it (`lslocks`), end that, and try again",
                    ) from None
            time.sleep(_RETRY_S)
        _check_same(fd, directory)
        with suppress(OSError):  # another user's, or read-only: the time is a hint
            os.utime(fd)
        yield
    finally:
        os.close(fd)


@contextmanager
def claimed_for_cell(directory: Path) -> Iterator[None]:
    with ExitStack() as held:
        try:
            held.enter_context(claimed(directory))
        except FileNotFoundError as exc:
            raise HostError(
                "a part of the store was removed while a cell was to be started",
                where=str(directory),
                hint="start it again: the part is made anew",
            ) from exc
        yield


def in_use(directory: Path) -> bool:
    # A directory that can't be opened is missing, or nothing that this user could claim.
    with suppress(OSError), alone(directory) as free:
        return not free
    return False


@contextmanager
def alone(directory: Path) -> Iterator[bool]:
    """Yield true if it stays unclaimed in the block."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        _check_same(fd, directory)
        yield True
    finally:
        os.close(fd)


def _check_same(fd: int, directory: Path) -> None:
    if not os.path.samestat(os.fstat(fd), directory.lstat()):
        raise FileNotFoundError(f"{directory} was replaced")
