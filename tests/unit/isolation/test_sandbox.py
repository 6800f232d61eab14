"""A cell's end, as far as it is the same for every engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from tests.fakes.recorder import MemoryRecorder
from tests.unit.isolation.test_cgroup import LIMITS
from tests.unit.isolation.test_survivors import process

from belljar.errors import CellError
from belljar.events import Kind
from belljar.isolation import sandbox as sandboxes
from belljar.isolation.hold import give_order, new_order
from belljar.isolation.identity import HeldIdentity
from belljar.isolation.microvm.vmm import Vmm
from belljar.isolation.oci.container import Container
from belljar.isolation.sandbox import Sandbox, SandboxSpec, owned, recorded_lifetime
from belljar.isolation.survivors import Destruction
from belljar.plan.jail import JailIdentity
from belljar.store.journal import Journal, new_cell_id


class Counted(Sandbox):
    """A sandbox without a jail that counts how often it is destroyed."""

    def __init__(self, home: Path, recorder: MemoryRecorder | None = None) -> None:
        identity = JailIdentity(host_uid=1, host_gid=1, privileged=False)
        held = nullcontext(HeldIdentity(jail=identity, lock_fd=None))
        spec = SandboxSpec(cell_id=new_cell_id(), kind="cell", limits=LIMITS)
        super().__init__(spec, identity=held, home=home, recorder=recorder)
        self.destroyed = 0

    async def unmake(self) -> Destruction:
        self.destroyed += 1
        await anyio.lowlevel.checkpoint()
        return await super().unmake()


async def live(sandbox: Counted, recorder: MemoryRecorder, end: str) -> None:
    """From its start to its end, which comes as `end` says."""

    async def make(owner: AsyncExitStack, _held: ExitStack) -> Counted:
        async with owned(sandbox, owner):
            if end == "start fails":
                raise CellError("no")
            if end == "start is cancelled":
                await anyio.sleep_forever()
        if end == "record fails":
            raise CellError("no")
        return sandbox

    async with recorded_lifetime(recorder, sandbox.cell_id, {}, make) as cell:
        if end == "destroyed early":
            async with anyio.create_task_group() as both:
                both.start_soon(cell.destroy)
                both.start_soon(cell.destroy)
            assert await cell.destroy() is cell.destruction
        if end == "destroyed from another loop":
            elsewhere = partial(anyio.run, cell.destroy, backend="trio")
            async with anyio.create_task_group() as both:
                both.start_soon(anyio.to_thread.run_sync, elsewhere)
                both.start_soon(cell.destroy)
        if end == "block fails":
            raise CellError("no")
        if end == "block is cancelled":
            await anyio.sleep_forever()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "end",
    [
        *("normal", "destroyed early", "destroyed from another loop", "start fails"),
        *("start is cancelled", "record fails", "block fails", "block is cancelled"),
    ],
)
async def test_a_sandbox_is_destroyed_once(end: str, tmp_path: Path) -> None:
    """By its owner, however it ends; its proof is on record once, and why only if it had started."""
    recorder = MemoryRecorder()
    sandbox = Counted(tmp_path, recorder)
    with anyio.move_on_after(0.05), pytest.raises(CellError) if "fails" in end else nullcontext():
        await live(sandbox, recorder, end)
    assert sandbox.destroyed == 1
    assert sandbox.destruction is not None
    destroying = [] if end.startswith("start") else [Kind.CELL_DESTROYING]
    failed = [Kind.CELL_FAILED] if end.startswith(("start", "record")) else []
    assert recorder.kinds() == [Kind.CELL_PLANNED, *destroying, Kind.CELL_DESTROYED, *failed]


class Interrupted(Counted):
    """One whose first destruction is interrupted, while its look goes on."""

    looks = 0

    async def unmake(self) -> Destruction:
        destruction = await super().unmake()
        if self.destroyed == 1:
            raise OSError("interrupted")
        return destruction

    def look_once(self, started: float) -> Destruction:
        self.looks += 1
        return super().look_once(started)


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["normal", "destroyed early", "start fails", "record fails"])
async def test_an_interrupted_destruction_is_finished(end: str, tmp_path: Path) -> None:
    """It is destroyed and on record all the same, and looked for once: ids may be another's."""
    recorder = MemoryRecorder()
    sandbox = Interrupted(tmp_path, recorder)
    with pytest.raises((OSError, CellError, ExceptionGroup)):
        await live(sandbox, recorder, end)
    assert (sandbox.destroyed, sandbox.looks) == (2, 1)
    assert sandbox.destruction is not None
    assert recorder.kinds().count(Kind.CELL_DESTROYED) == 1
    assert recorder.kinds().count(Kind.CELL_FAILED) == end.endswith("fails")


@pytest.mark.anyio
@pytest.mark.parametrize("engine", [Container, Vmm])
async def test_a_connection_that_does_not_close_keeps_nothing_alive(
    engine: type[Sandbox], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is behind it is destroyed all the same."""
    destroyed = []

    async def fail() -> None:
        raise OSError("interrupted")

    async def unmake(sandbox: Sandbox) -> None:
        destroyed.append(sandbox)

    monkeypatch.setattr(Sandbox, "unmake", unmake)
    sandbox: Any = engine.__new__(engine)
    sandbox.client = SimpleNamespace(aclose=fail)
    with pytest.raises(OSError, match="interrupted"):
        await sandbox.unmake()
    assert destroyed == [sandbox]


async def has_ended() -> None:
    """A jail whose supervisor is gone already."""


def jailed(sandbox: Sandbox, child: object, released: Callable[[], None]) -> None:
    jail: Any = SimpleNamespace(child=child, end=has_ended, release_namespaces=released)
    sandbox.make()
    sandbox.jail = jail


def test_a_child_that_ends_with_its_supervisor_is_no_survivor(tmp_path: Path) -> None:
    """One whose supervisor died before it could name it, however slow it is to end."""
    sandbox, released = Counted(tmp_path), list[bool]()
    jailed(sandbox, None, lambda: released.append(True))
    with process("--cell", sandbox.cell_id) as child:
        ending = threading.Timer(0.1, child.stdin.close if child.stdin else child.kill)
        ending.start()
        destruction = anyio.run(sandbox.unmake)
        ending.join()
    assert destruction.clean, destruction
    assert released == [True]


@pytest.mark.promise("6.2")
@pytest.mark.parametrize("resists", [True, False])
def test_what_resists_its_removal_stays_in_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, resists: bool
) -> None:
    """So that a reaping looks again; its namespaces are the cell's until two looks are over."""
    sandbox, steps = Counted(tmp_path), list[str]()

    def look(_: object) -> Any:  # noqa: ANN401
        steps.append("look")
        return SimpleNamespace(remaining=("process 7",) if resists else ())

    jailed(sandbox, object(), partial(steps.append, "released"))
    found = Destruction(survivors=("process 7",), looked_for=(), duration_ms=1.0)
    monkeypatch.setattr(sandboxes, "destroy_remains", lambda *_: found)
    monkeypatch.setattr("belljar.isolation.survivors.look", look)
    assert not anyio.run(sandbox.unmake).clean
    assert steps == ["look", "released"]
    assert (Journal(tmp_path).read(sandbox.cell_id) is not None) is resists
    Journal(tmp_path).remove(sandbox.cell_id)


class Unclean(Counted):
    async def unmake(self) -> Destruction:
        return replace(await super().unmake(), survivors=("process 1",))


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("sandbox_type", "is_killed", "is_retried"),
    [
        *((Counted, False, True), (Counted, True, False)),
        *((Unclean, False, False), (Interrupted, False, False)),
    ],
)
async def test_a_start_that_is_retried_is_not_on_record(
    sandbox_type: type[Counted], *, is_killed: bool, is_retried: bool, tmp_path: Path
) -> None:
    """One that was killed, left something or was interrupted is not retried, and is on record."""
    recorder = MemoryRecorder()
    sandbox = sandbox_type(tmp_path, recorder)
    if is_killed:
        give_order(tmp_path, [sandbox.cell_id], new_order("cells", "stop"))
    sandbox.may_retry = True
    with pytest.raises((CellError, OSError)):
        await live(sandbox, MemoryRecorder(), "start fails")
    assert sandbox.is_retried == is_retried
    assert recorder.kinds() == ([] if is_retried else [Kind.CELL_DESTROYED])


@pytest.mark.anyio
@pytest.mark.parametrize("is_ours", [True, False])
async def test_a_kill_is_on_record_around_its_end(*, is_ours: bool, tmp_path: Path) -> None:
    """An order of this process has been recorded before it acted."""
    recorder = MemoryRecorder()
    sandbox = Counted(tmp_path, recorder)
    async with AsyncExitStack() as owner:
        async with owned(sandbox, owner):
            pass
        order = new_order("cells", "stop")
        order = order if is_ours else replace(order, by="somebody else")
        give_order(tmp_path, [sandbox.cell_id], order)
    ends = [Kind.CELL_DESTROYING, Kind.CELL_DESTROYED, Kind.KILL_COMPLETED]
    assert recorder.kinds() == ([] if is_ours else [Kind.KILL_TRIGGERED]) + ends
    assert "stop" in str(recorder.events[-3].data["reason"])
