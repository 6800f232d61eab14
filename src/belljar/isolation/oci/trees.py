"""Unpacked images: `trees/<image digest>/{root/…,tree.json}`, read-only to cells.

They are unpacked in a jail whose ids own only trees, so setuid files never become root's.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from belljar.dataclass import dataclass
from belljar.descriptors import open_fd
from belljar.errors import BelljarError, CellError, HostError, host_errors
from belljar.image.store import Image, verify
from belljar.isolation.identity import tree_identity
from belljar.isolation.jail import start_jail
from belljar.isolation.program_root import STORE_HINT, ensure_unpacker_root
from belljar.libc import sync_file_system
from belljar.plan.jail import JailLimits, JailMount, JailSpec
from belljar.store.home import make_store_dir, need_space
from belljar.store.journal import new_cell_id
from belljar.store.locks import claimed, claimed_for_cell, in_use, locked_meanwhile
from belljar.store.scratch import MAKING, is_owned, owned_name, retire_unclaimed

# Of a tree's description; one of another number is unpacked again.
_FORMAT: Final = 1
_UNPACK_DEADLINE_S: Final = 600.0
_REMOVE_DEADLINE_S: Final = 120.0
# unsquashfs holds a queue of blocks for each processor.
_MEMORY_BYTES: Final = 2 << 30
# Estimated unpacked size.
_EXPANSION: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTree:
    """`first_uid` and `first_gid` are the host ids of 0."""

    root: Path
    first_uid: int
    first_gid: int


@contextmanager
def hold_tree(home: Path, image: Image) -> Iterator[ImageTree | None]:
    """Yield the image's locked tree, or None."""
    directory, tree = home / "trees" / image.digest, None
    with ExitStack() as held:
        with suppress(FileNotFoundError):
            held.enter_context(claimed(directory))
            tree = _read(directory)
        if tree is None:
            held.close()  # a damaged one must be free, to be removed
        yield tree


async def ensure_tree(image: Image, *, home: Path, held: ExitStack | None = None) -> ImageTree:
    """Make it if missing; keep it while `held` is open. Raises `HostError`."""
    with ExitStack() as briefly:
        hold = (briefly if held is None else held).enter_context
        if (tree := hold(hold_tree(home, image))) is not None:
            return tree
        async with locked_meanwhile(home, "trees"):
            tree = hold(hold_tree(home, image))  # another process may have been quicker
            if tree is None:
                await _sweep(home)
                await _make(image, home)
                tree = hold(hold_tree(home, image))
    if tree is None:
        what = "the unpacked image vanished while it was made"
        raise CellError(what, where=str(home / "trees"))
    return tree


async def sweep_trees(home: Path) -> None:
    """Remove half-made trees and those of removed images."""
    with suppress(HostError):
        tree_identity()
        if _rubbish(home):
            async with locked_meanwhile(home, "trees"):
                await _sweep(home)


def _read(directory: Path) -> ImageTree | None:
    try:
        data = json.loads((directory / "tree.json").read_text())
        tree = ImageTree(
            root=directory / "root",
            first_uid=int(data["first_uid"]),
            first_gid=int(data["first_gid"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_ours = _first_ids() == (tree.first_uid, tree.first_gid)
    return tree if is_ours and data.get("format") == _FORMAT and tree.root.is_dir() else None


def _first_ids() -> tuple[int, int]:
    _, ids = tree_identity()
    return ids.uid_map[0][1], ids.gid_map[0][1]


async def _make(image: Image, home: Path) -> None:
    if image.high_owner:
        what = f"the image's {image.high_owner} has an owner beyond 65,535, this tier's last id"
        hint = "run it in tier microvm (`tier: microvm`), or give the file another owner"
        raise HostError(what, where=f"image {image.digest[:12]}", hint=hint)
    # Too late a lack of space would also take that of runs, whose records then fail
    what = "unpacking an image for containers"
    await anyio.to_thread.run_sync(need_space, home, _EXPANSION * image.size_bytes, what)
    # Its squashfs has no checksums: what is damaged would be unpacked as it is.
    await anyio.to_thread.run_sync(verify, image)
    cell_id = new_cell_id()
    partial_tree = home / "trees" / owned_name(MAKING, cell_id)
    first_uid, first_gid = _first_ids()

    def publish() -> None:
        description = {"format": _FORMAT, "first_uid": first_uid, "first_gid": first_gid}
        (partial_tree / "tree.json").write_text(json.dumps(description))
        with open_fd(os.open(partial_tree, os.O_RDONLY | os.O_DIRECTORY)) as fd:
            sync_file_system(fd)
        partial_tree.rename(home / "trees" / image.digest)

    try:
        with host_errors("an image could not be unpacked", where=partial_tree, hint=STORE_HINT):
            root = partial_tree / "root"
            make_store_dir(partial_tree.parent, mode=0o700)
            partial_tree.mkdir(mode=0o700)
            root.mkdir(mode=0o755)
            if os.geteuid() == 0:
                os.chown(root, first_uid, first_gid)
            with claimed(partial_tree):
                await _unpack(image, root, home, cell_id)
                await anyio.to_thread.run_sync(publish)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await _remove(partial_tree, home)
        raise


async def _unpack(image: Image, root: Path, home: Path, cell_id: str) -> None:
    program = (
        *("/usr/bin/unsquashfs", "-no-progress", "-quiet", "-no-xattrs", "-strict-errors"),
        *("-processors", "2", "-data-queue", "64", "-frag-queue", "64"),
        *("-force", "-dest", "/out", "/image"),
    )
    mounts = (
        JailMount(kind="bind", source=image.rootfs, target="/image"),
        JailMount(kind="bind", source=root, target="/out", writable=True),
    )
    output = await _run(program, mounts, home, cell_id, deadline_s=_UNPACK_DEADLINE_S)
    if output is None:
        return
    what = f"the image {image.digest[:12]} could not be unpacked for containers: {output}"
    hint = "make room, or remove the image (`belljar image rm`) and build or import it again"
    raise HostError(what, where=str(image.rootfs), hint=hint)


async def _run(
    program: tuple[str, ...],
    mounts: tuple[JailMount, ...],
    home: Path,
    cell_id: str,
    *,
    deadline_s: float,
) -> str | None:
    root = await anyio.to_thread.run_sync(ensure_unpacker_root, home)
    identity, ids = tree_identity()
    spec = JailSpec(
        cell_id=cell_id,
        owner_pid=os.getpid(),
        root=root.root,
        identity=identity,
        limits=JailLimits(
            memory_max_bytes=_MEMORY_BYTES,
            cpu_quota_percent=None,
            processes=64,
            lifetime_s=deadline_s,
            address_space_bytes=_MEMORY_BYTES,
        ),
        memory_by_rlimit=True,
        ids=ids,
        mounts=mounts,
        keep_capabilities=True,
    )
    with claimed_for_cell(root.root.parent):
        jail = start_jail(spec, program)
        try:
            end = await jail.wait_run()
            if end is not None and end.cause == "itself" and end.status == 0:
                return None
            return jail.diagnosis() or f"it ended early: {end}"
        finally:
            with anyio.CancelScope(shield=True):
                await jail.end()
                jail.release_namespaces()


async def remove_unpacked(home: Path, directory: Path) -> None:
    tree_identity()
    async with locked_meanwhile(home, "trees"):
        if (retired := retire_unclaimed(directory)) is not None:
            await _remove(retired, home)


async def _sweep(home: Path) -> None:
    """Call it under the writers' lock: partial trees are orphans."""
    for directory in await anyio.to_thread.run_sync(_rubbish, home):
        await _remove(directory, home)


def _rubbish(home: Path) -> list[Path]:
    def is_rubbish(tree: Path) -> bool:
        has_image = (home / "images" / tree.name / "image.json").exists()
        is_kept = (has_image and _read(tree)) or is_owned(tree.name, prefix=MAKING) or in_use(tree)
        return not is_kept

    return list(filter(is_rubbish, (home / "trees").glob("*")))


async def _remove(directory: Path, home: Path) -> None:
    """An ordinary user's needs a jail with its ids."""
    root = directory / "root"
    if os.geteuid() != 0 and root.is_dir():
        mounts = (JailMount(kind="bind", source=directory, target="/out", writable=True),)
        program = ("/usr/bin/rm", "-rf", "--", "/out/root")
        with suppress(BelljarError):
            await _run(program, mounts, home, new_cell_id(), deadline_s=_REMOVE_DEADLINE_S)
    await anyio.to_thread.run_sync(partial(shutil.rmtree, directory, ignore_errors=True))


def inner_tmp(tree: Path, root: str) -> str:
    """Return the image's /tmp in the jail, or "". Follows no link."""
    try:
        is_own = stat.S_ISDIR((tree / "tmp").lstat().st_mode)
    except OSError:
        return ""
    return str(Path(root, "tmp")) if is_own else ""
