"""Who a jailed program is on the host.

Started by root, each cell has a host uid of its own, held by a lock that the jail's supervisor inherits: it is free again only when the jail is empty, even if
the owner was killed. Started by an ordinary user, there is no uid but that user's; the walls are then the namespaces, the read-only mounts and the filter.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from belljar.errors import HostError
from belljar.plan.jail import SLOTS_PER_HOME, UID_RANGE_START, JailIdentity

_HOMES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldIdentity:
    """An identity and the descriptor of its lock (None for an ordinary user's), to hand to the supervisor."""

    jail: JailIdentity
    lock_fd: int | None

    @property
    def own_uid(self) -> int | None:
        """The uid that only this cell has, or None."""
        return self.jail.host_uid if self.jail.privileged else None


@contextmanager
def hold_identity(home: Path) -> Iterator[HeldIdentity]:
    """An identity that no other living cell has. Raises `HostError` when all are taken."""
    if os.geteuid() != 0:
        yield HeldIdentity(
            jail=JailIdentity(host_uid=os.geteuid(), host_gid=os.getegid(), privileged=False), lock_fd=None
        )
        return
    slot, fd = _take_slot(home / "locks" / "uids")
    try:
        uid = _range_of(home) + slot
        yield HeldIdentity(jail=JailIdentity(host_uid=uid, host_gid=uid, privileged=True), lock_fd=fd)
    finally:
        os.close(fd)


@contextmanager
def hold_uid(home: Path, uid: int | None) -> Iterator[bool]:
    """Keep a dead cell's uid from being given to another while the block runs. False: it has been, or its own supervisor still lives."""
    slot = -1 if uid is None else uid - _range_of(home)
    if os.geteuid() != 0 or not 0 <= slot < SLOTS_PER_HOME:
        yield False
        return
    fd = _lock_slot(home / "locks" / "uids", slot)
    try:
        yield fd is not None
    finally:
        if fd is not None:
            os.close(fd)


def _range_of(home: Path) -> int:
    """Two stores on one host use different uids, since neither sees the other's locks."""
    number = int.from_bytes(hashlib.sha256(os.fsencode(home.resolve())).digest()[:2], "big") % _HOMES
    return UID_RANGE_START + number * SLOTS_PER_HOME


def _take_slot(directory: Path) -> tuple[int, int]:
    for slot in range(SLOTS_PER_HOME):
        fd = _lock_slot(directory, slot)
        if fd is not None:
            return slot, fd
    raise HostError(
        f"all {SLOTS_PER_HOME} uids for cells are taken",
        where=str(directory),
        mend="end some cells; `belljar ps` lists them",
    )


def _lock_slot(directory: Path, slot: int) -> int | None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    fd = os.open(directory / str(slot), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
