"""`Cell.snapshot`: a cell in use at one moment, and other cells that go on from there.

A microVM is saved whole; of a container the files, as tar packed in the cell and never read here.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, cast

import anyio
import anyio.to_thread

from belljar.cell.cell import Cell, Snapshot
from belljar.cell.parts import MachineParts
from belljar.cell.range import CellOrigin, FileClock
from belljar.channel import ExecOutput, ExecRequest, Stream
from belljar.errors import CellError, HostError, PolicyError, host_errors
from belljar.events import Event, JsonValue, Kind
from belljar.isolation.microvm.stream import MachineLostError, save_machine
from belljar.isolation.microvm.template import find_job
from belljar.isolation.microvm.vmm import Vmm
from belljar.policy.limits import Tier
from belljar.store.home import HINT_SPACE
from belljar.store.scratch import scratch_dir
from belljar.units import printable

# Each cell has its own of these, and a fork keeps them.
_OWN: Final = frozenset(
    b"./" + name
    for name in b"proc dev sys etc/hostname etc/hosts etc/machine-id etc/resolv.conf".split()
)
_FIND: Final = ("find", ".", "./tmp", "-xdev", "-ignore_readdir_race")  # gVisor's /tmp is a mount
_MAX_NAMES_BYTES: Final = 64 << 20
_MAX_NAMES: Final = 1_000_000
_PACKING: Final = 2  # a file of no bytes takes a kilobyte in an archive
_CHUNK_BYTES: Final = 1 << 20
_STEP_NS: Final = 1_000_000


async def resume(snapshot: Snapshot, cell: Cell) -> None:
    """Give a fork its files. Raise `CellError`, `HostError`."""
    cell.note(Kind.CELL_FORKED, {"snapshot": snapshot.id, "from": snapshot.cell})
    is_machine, directory = snapshot.machine is not None, snapshot.directory
    if not (cell.plan.tier is Tier.MICROVM if is_machine else snapshot.key == _key_of(cell)):
        what = "the snapshot was taken with another image or tier"
        raise HostError(what, where=f"cell {cell.id}", hint="take another snapshot")
    if is_machine:
        return
    try:
        digest, names = await anyio.to_thread.run_sync(_read, directory)
    except OSError as error:
        what = f"the snapshot can't be read: {error.strerror}"
        raise CellError(what, where=str(directory)) from error
    if digest != snapshot.digest:
        what = "the snapshot was changed on disk: nothing is made of it"
        raise CellError(what, where=str(directory))
    if gone := await _names(cell) - names - _OWN:
        await _run(cell, "xargs", "-0", "rm", "-rf", "--", given=b"\0".join(gone))
    packed = _pieces(directory / "files")
    await _run(cell, "tar", "-xpf", "-", "--numeric-owner", given=packed)


async def take_snapshot(cell: Cell, name: str | None) -> Snapshot:
    origin = _checked_origin(cell)
    began, id_ = time.monotonic(), f"s-{secrets.token_hex(6)}"
    name = id_ if name is None else name
    cell.note(Kind.CELL_SNAPSHOTTING, {"snapshot": id_, "name": name})
    with ExitStack() as undo:
        directory = undo.enter_context(_kept(origin, id_))
        what, where = "a snapshot can't be written", directory.parent
        try:
            machine, live, parts = None, cell._live, origin.parts
            with host_errors(what, where=where, hint=HINT_SPACE):
                if isinstance(live, Vmm) and isinstance(parts, MachineParts):
                    find = partial(find_job, parts.plan, parts.image, parts.kernel, origin.home)
                    job = await anyio.to_thread.run_sync(find)
                    machine = await save_machine(live, directory, job.key)
                else:
                    digest, size_bytes = await _save_files(cell, directory, origin.since)
        except CellError as error:
            cell._live.raise_if_killed(error)
            if isinstance(error, MachineLostError) or cell._live.client.failure is not None:
                cell._end_if_dead(error)
            raise
        snapshot = Snapshot(
            id=id_,
            name=name,
            state="files" if machine is None else "machine",
            digest=digest if machine is None else machine.digest,
            key=_key_of(cell) if machine is None else machine.key,
            cell=cell.id,
            size_bytes=size_bytes if machine is None else machine.size_bytes,
            directory=directory,
            machine=machine,
            origin=origin,
        )
        data: dict[str, JsonValue] = {
            "snapshot": id_,
            **{each: getattr(snapshot, each) for each in ("name", "state", "digest", "key")},
            "bytes": snapshot.size_bytes,
            "duration_ms": round((time.monotonic() - began) * 1000, 3),
        }
        cell.note(Kind.CELL_SNAPSHOT, data)
        origin.run.enter_once(f"snapshot {id_}", undo.pop_all, ends_on_record=True)
    return snapshot


def _checked_origin(cell: Cell) -> CellOrigin:
    """Return what a machine is made from. Raise `PolicyError`."""
    policy, origin = cell.plan.policy, cell.origin
    reasons = (
        (origin is None, "it is on a network, or a target cell: its range has state"),
        (not policy.snapshots, "its policy, or the operator's, has no `snapshots: true`"),
        (policy.decoys, "it holds decoys: two cells with one secret can't be told apart"),
        (any(file.secret for file in policy.files), "it has a file that is marked as `secret`"),
        (policy.model is not None, "it serves a model"),
    )
    if why := next((why for is_so, why in reasons if is_so), ""):
        hint = "use another policy for what is saved"
        raise PolicyError(f"the cell can't be saved: {why}", where=f"cell {cell.id}", hint=hint)
    return cast(CellOrigin, origin)


@contextmanager
def _kept(origin: CellOrigin, id_: str) -> Iterator[Path]:
    """Make a directory; record its removal. Raise `HostError`."""
    with ExitStack() as after:
        directory = after.enter_context(scratch_dir(origin.home))
        try:
            yield directory
        finally:
            after.close()
            is_gone = not os.path.lexists(directory)
            data: dict[str, JsonValue] = {"snapshot": id_, "clean": is_gone}
            origin.run.recorder.record(Event(kind=Kind.SNAPSHOT_DELETED, data=data))
    if not is_gone:
        what = "a snapshot could not be deleted"
        raise HostError(what, where=str(directory), hint="remove it by hand")


def _key_of(cell: Cell) -> str:
    image = "" if cell.plan.image is None else cell.plan.image.digest
    return hashlib.sha256(f"{cell.tier} {image}".encode()).hexdigest()


async def _save_files(cell: Cell, directory: Path, since: FileClock) -> tuple[str, int]:
    """Pack what the kernel says has changed since."""
    cell._live.client.check_idle()
    if FileClock.now().offset_ns < since.offset_ns - _STEP_NS:
        what = "this host's clock was set back, so that it is unknown which files were changed"
        raise HostError(what, where=f"cell {cell.id}", hint="revert the cell, and save that")
    moment = f"@{since.ns // 10**9}.{since.ns % 10**9:09}"
    found = await _names(cell, *f"( -newerct {moment} -printf + -o -true )".split())
    names = frozenset(name.removeprefix(b"+") for name in found)
    changed = {name[1:] for name in found if name.startswith(b"+")} - _OWN
    packing = ("tar", "--no-recursion", "--numeric-owner", "--null", "-cf", "-", "-T", "-")
    most = _PACKING * cell.plan.limits.disk_bytes + _MAX_NAMES_BYTES
    (directory / "names").write_bytes(b"\0".join(sorted(names)))
    with (directory / "files").open("xb") as file:
        given = b"\0".join(sorted(changed))
        # 1: a file changed while it was read
        await _run(cell, *packing, given=given, taken=file.write, max_bytes=most, allowed=(0, 1))
    digest, _ = await anyio.to_thread.run_sync(_read, directory)
    return digest, (directory / "files").stat().st_size


async def _names(cell: Cell, *tests: str) -> frozenset[bytes]:
    found = await _run(cell, *_FIND, *tests, "-print0", max_bytes=_MAX_NAMES_BYTES)
    if found.stdout.count(b"\0") > _MAX_NAMES:  # as objects they take much more than as bytes
        raise CellError(f"the cell has more than {_MAX_NAMES} files", where=f"cell {cell.id}")
    return frozenset(found.stdout.split(b"\0")) - {b""}


async def _run(
    cell: Cell,
    *argv: str,
    given: bytes | AsyncIterable[bytes] = b"",
    taken: Callable[[bytes], object] | None = None,
    max_bytes: int = 0,
    allowed: tuple[int, ...] = (0,),
) -> ExecOutput:
    request = ExecRequest(
        argv=argv,
        cwd="/",
        user="0:0",
        timeout_s=cell.plan.limits.exec_timeout_s,
        max_stdout_bytes=max_bytes,
        max_stderr_bytes=64 << 10,
    )

    left_bytes, what = max_bytes, f"the cell's files can't be moved: {argv[0]}"
    where = f"cell {cell.id}"
    hint = "the image needs GNU find, xargs and tar; the files must fit the policy's disk"

    def see(stream: Stream, chunk: bytes) -> None:
        nonlocal left_bytes
        if stream is Stream.STDOUT and taken is not None:
            taken(chunk)
            if (left_bytes := left_bytes - len(chunk)) <= 0:  # it might go on for its whole time
                raise CellError(f"{what}: too much to keep", where=where, hint=hint)

    outcome = await cell._live.client.exec(
        request, input=given, keep_bytes=4096 if taken else max(max_bytes, 4096), on_output=see
    )
    is_cut = taken is None and outcome.stdout_dropped_bytes
    if outcome.returncode not in allowed or outcome.output_cap_reached or is_cut:
        said = printable(outcome.stderr, max_chars=200) or outcome.detail or "too much to keep"
        raise CellError(f"{what}: {said}", where=where, hint=hint)
    return outcome


def _read(directory: Path) -> tuple[str, frozenset[bytes]]:
    names, hasher = (directory / "names").read_bytes(), hashlib.sha256()
    hasher.update(len(names).to_bytes(8, "little") + names)
    with (directory / "files").open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            hasher.update(chunk)
    return hasher.hexdigest(), frozenset(names.split(b"\0"))


async def _pieces(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await anyio.to_thread.run_sync(file.read, _CHUNK_BYTES):
            yield chunk
