"""Host ids of a jailed program: one for a VMM, a range for a container.

Root's cells have their own, locked until the jail is empty. An ordinary user's share the user's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from belljar.dataclass import dataclass, replace
from belljar.descriptors import open_fd
from belljar.errors import HostError, host_errors
from belljar.host.tools import MAPPERS, SEARCH_PATH, ids_fact
from belljar.plan.jail import IdRange, JailIdentity, JailIds, cell_ids, nested_cell_ids
from belljar.process import close_all
from belljar.subids import NEEDED_IDS

# One place for all stores of a host: no two cells may have the same ids.
_HOST_LOCKS: Final = Path("/run/belljar/ids")
# Root's cells: a VMM's id is this one and its slot. (systemd's containers end at 0x6FFF_FFFF.)
_VMM_IDS_START: Final = 0x7000_0000
# A container's slot has so many: the first is its starter's, the next 65,536 are its workload's.
_RANGES_START: Final = 0x8000_0000
_RANGE_IDS: Final = 0x2_0000
# On one host, all stores together.
_SLOTS: Final = 1 << 13
_BLOCK_SLOTS: Final = 64
# A container's ids: 0 to 65535.
WORKLOAD_IDS: Final = NEEDED_IDS
# Owner of root's unpacked images; no cell's.
TREE_IDS_START: Final = 0xFFF0_0000
_errors = partial(
    host_errors,
    "the lock over a cell's ids can't be made",
    hint="let this user write there; that no two cells get the same ids hangs on it",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldIdentity:
    """An ordinary user has no `lock_fd`."""

    jail: JailIdentity
    lock_fd: int | None
    ids: JailIds | None = None

    @property
    def own_uid(self) -> int | None:
        """Return the first uid of only this cell, or None."""
        return self.jail.host_uid if self.jail.privileged else None

    @property
    def uid_count(self) -> int:
        return 1 if self.ids is None else 1 + WORKLOAD_IDS


@contextmanager
def hold_identity() -> Iterator[HeldIdentity]:
    if os.geteuid() != 0:
        jail = JailIdentity(host_uid=os.geteuid(), host_gid=os.getegid(), privileged=False)
        yield HeldIdentity(jail=jail, lock_fd=None)
        return
    with _held_slot() as (slot, fd):
        uid = _VMM_IDS_START + slot
        jail = JailIdentity(host_uid=uid, host_gid=uid, privileged=True)
        yield HeldIdentity(jail=jail, lock_fd=fd)


@contextmanager
def hold_range(*, is_nested: bool = False) -> Iterator[HeldIdentity]:
    """Yield ids of a container's starter and workload. Raises `HostError`."""
    if os.geteuid() != 0:
        held = user_range()
        yield replace(held, ids=nested_cell_ids()) if is_nested else held
        return
    if is_nested:
        raise ValueError("root's cells are below no user namespace")
    with _held_slot() as (slot, fd):
        stage = _RANGES_START + slot * _RANGE_IDS
        workload = IdRange(start=stage + 1, count=WORKLOAD_IDS)
        jail = JailIdentity(
            host_uid=stage, host_gid=stage, privileged=True, uids=workload, gids=workload
        )
        yield HeldIdentity(jail=jail, lock_fd=fd, ids=cell_ids(jail))


def user_range() -> HeldIdentity:
    given = ids_fact(is_root=False)
    if not given.available:
        what = f"a container needs ids of its own: {given.reason}"
        raise HostError(what, where="/etc/subuid and /etc/subgid", hint=given.hint)
    jail = JailIdentity(
        host_uid=os.geteuid(),
        host_gid=os.getegid(),
        privileged=False,
        uids=IdRange(start=given.uid_start, count=WORKLOAD_IDS),
        gids=IdRange(start=given.gid_start, count=WORKLOAD_IDS),
    )
    # `ids_fact` has just found both.
    mappers = [Path(shutil.which(name, path=SEARCH_PATH) or name) for name in MAPPERS]
    return HeldIdentity(jail=jail, lock_fd=None, ids=cell_ids(jail, *mappers))


def tree_identity() -> tuple[JailIdentity, JailIds]:
    """Return the owner of unpacked images. Raises `HostError`: too few."""
    if os.geteuid() == 0:
        line = (0, TREE_IDS_START, WORKLOAD_IDS)
        jail = JailIdentity(host_uid=TREE_IDS_START, host_gid=TREE_IDS_START, privileged=True)
        return jail, JailIds(uid_map=(line,), gid_map=(line,))
    held = user_range()
    if held.ids is None:
        raise RuntimeError("an ordinary user's identity without a range")
    # A cell's maps the other way round: the subordinate ids first, then the user's own
    (_, uid, _), (_, uids, count) = held.ids.uid_map
    (_, gid, _), (_, gids, _) = held.ids.gid_map
    uid_map, gid_map = ((0, uids, count), (count, uid, 1)), ((0, gids, count), (count, gid, 1))
    return held.jail, replace(held.ids, uid_map=uid_map, gid_map=gid_map)


@contextmanager
def hold_uids(first: int | None) -> Iterator[bool]:
    """Keep a dead cell's uids free; yield False if they are in use."""
    fd = None
    if first is not None and os.geteuid() == 0:
        slot, past = divmod(first - _RANGES_START, _RANGE_IDS)
        if first < _RANGES_START:
            slot, past = first - _VMM_IDS_START, 0
        if past == 0 and 0 <= slot < _SLOTS:
            fd = _lock_slot(slot)
    try:
        yield fd is not None
    finally:
        close_all((fd,))


@contextmanager
def _held_slot() -> Iterator[tuple[int, int]]:
    """Yield a free slot, and its lock.

    A Belljar with another /run has other locks, and begins at another of 128 blocks: a cell
    with the same ids would be killed as a survivor.
    """
    with _errors(where=_HOST_LOCKS):
        _HOST_LOCKS.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = _HOST_LOCKS.stat()
    digest = hashlib.sha256(f"{found.st_dev}:{found.st_ino}".encode()).digest()
    begin = int.from_bytes(digest[:2], "big") * _BLOCK_SLOTS
    for slot in ((begin + number) % _SLOTS for number in range(_SLOTS)):
        fd = _lock_slot(slot)
        if fd is not None:
            with open_fd(fd):
                yield slot, fd
            return
    raise HostError(
        f"all {_SLOTS:,} id slots for cells are taken",
        where=str(_HOST_LOCKS),
        hint="end some cells; `belljar ps` lists them",
    )


def _lock_slot(slot: int) -> int | None:
    with _errors(where=_HOST_LOCKS):
        _HOST_LOCKS.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(_HOST_LOCKS / str(slot), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        # The supervisor inherits the descriptor, and with it the lock: an owner that is killed
        # frees no ids of a jail that lives.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd
