"""A range: one sample's cells; and `Cell.revert`: another machine for a cell in use.

A *machine* is a cell with all its parts. The caller's handle forwards to the machine in use; a
call that began before a revert stays with the old one.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import anyio
import anyio.to_thread

from belljar.cell.base import spawn_task
from belljar.cell.canary import canary_in
from belljar.cell.cell import Cell, Snapshot
from belljar.dataclass import dataclass, field, replace
from belljar.errors import CellError, ContainmentBreach, HostError, first_of
from belljar.events import Actor, JsonValue, Kind
from belljar.host.cgroups import available_memory_bytes
from belljar.isolation.hold import KilledError, KillOrder, raise_if_killed
from belljar.policy.guarding import OWN_CELL
from belljar.policy.limits import Risk

if TYPE_CHECKING:
    from belljar.cell.parts import Parts
    from belljar.cell.stop_rules import StopRulesRecorder
    from belljar.ledger.rundir import RunDirectory
    from belljar.network.owner.range import NetworkRange as Network
    from belljar.policy.loaded import LoadedPolicy
    from belljar.probe.judge import Router

# CLOCK_REALTIME_COARSE, which Python doesn't name: the kernel takes files' times from it.
_COARSE: Final = 5
# Called with a running target cell and its router, if any, before its program is started.
OnTarget: TypeAlias = "Callable[[Cell, Router | None], Awaitable[object]]"


class ModelRequests:
    """Passes requests to the current `handler` until the range's end.

    The handler answers a kind and a body, in a thread; its `ValueError` refuses them.
    """

    def __init__(self) -> None:
        self.handler: Callable[[str, bytes], bytes] | None = None
        self.on_close: Callable[[], object] = lambda: None

    def __call__(self, kind: str, body: bytes) -> bytes:
        if self.handler is None:
            raise ValueError("no model answers here: run the cell under `belljar run`")
        return self.handler(kind, body)

    def close(self) -> None:
        self.handler = None
        self.on_close()


@dataclass(frozen=True, slots=True)
class FileClock:
    """A moment by the files' clock; setting the clock changes `offset_ns`."""

    ns: int
    offset_ns: int

    @staticmethod
    def now() -> FileClock:
        """Return the last moment before what is written now."""
        # The largest of a few: a pause between the two readings makes it smaller
        boottime = time.CLOCK_BOOTTIME
        offset_ns = max(time.time_ns() - time.clock_gettime_ns(boottime) for _ in range(5))
        return FileClock(time.clock_gettime_ns(_COARSE) - 1, offset_ns)


@dataclass(frozen=True, slots=True)
class Opening:
    loaded: LoadedPolicy
    run: RunDirectory
    home: Path
    actor: Actor
    ahead: bool = False
    on_target: OnTarget | None = None


@dataclass(frozen=True, slots=True)
class CellOrigin:
    """It makes another machine for a cell without a network."""

    run: RunDirectory
    home: Path
    parts: Parts
    since: FileClock
    machine: Callable[..., AbstractAsyncContextManager[Range]]
    fork: Callable[[Snapshot], AbstractAsyncContextManager[Range]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The cells of one sample; they end together. It works in `cell`.

    `routers` has what each cell's port leads to, by cell id; `probe_cell` demands it.
    `rules` applies the policy's `on` to a cell without a network.
    """

    cell: Cell
    targets: Mapping[str, Cell] = field(default_factory=dict)
    network: Network | None = None
    routers: Mapping[str, Router] = field(default_factory=dict)
    model_requests: ModelRequests | None = None
    from_pool: bool = False
    rules: StopRulesRecorder | None = None

    @property
    def cells(self) -> Mapping[str, Cell]:
        """Return all of them, by name, its own first."""
        return {OWN_CELL: self.cell, **self.targets}

    def killed(self) -> KillOrder | None:
        """Return the order that its own cell is killed by."""
        late = None if self.rules is None else self.rules.order
        return self.cell._live.killed() or late


# Old machines whose destruction a revert doesn't wait for: their memory adds up.
MAX_RETIRING: Final = 2
MakeMachine: TypeAlias = Callable[[], AbstractAsyncContextManager[Range]]
OnMachine: TypeAlias = Callable[[Range], Awaitable[object]]


class Machines:
    """One handle's machine, and the old ones being destroyed."""

    def __init__(self, make: MakeMachine, current: Range, owner: AsyncExitStack) -> None:
        self.current = current
        self._make, self._owner = make, owner
        self._turn = anyio.Lock()
        self._is_closed = False
        self._retiring: list[anyio.Event] = []
        self._breach: ContainmentBreach | None = None
        self._error: BaseException | None = None

    async def revert(
        self,
        *,
        verify: bool | None = None,
        to: Snapshot | None = None,
        on_ready: OnMachine | None = None,
        on_end: OnMachine | None = None,
    ) -> None:
        """Exchange the machine in use for a new one. Raise as `Cell.revert`.

        `on_ready` is called with the new machine before anything else runs in it; its error ends
        that machine and the revert. `on_end` gets the old one before it is destroyed.
        """
        async with self._turn:
            self._refuse_if_ended()
            began, old, owner = time.monotonic(), self.current, self._owner
            await self._wait_for_room(old.cell)
            where, make = f"cell {old.cell.id}", self._make
            if to is not None:
                if old.cell.origin is None or old.cell.origin.run is not to.origin.run:
                    raise CellError("the snapshot is another run's", where=where)
                # Else a sample would go on with another one's rights, files and rules
                if to.origin.parts.plan.policy != old.cell.plan.policy:
                    raise CellError("the snapshot's cell has another policy", where=where)
                make = partial(to.origin.machine, snapshot=to)
            is_verified = old.cell.plan.risk >= Risk.HIGH if verify is None else verify
            old.cell.note(Kind.CELL_REVERTING, {"verify": is_verified})
            made: Range | None = None
            try:
                async with AsyncExitStack() as stack:
                    async with canary_in(old.cell) if is_verified else nullcontext() as canary:
                        made = opened = await stack.enter_async_context(make())
                        _adopt(old.cell, opened.cell)
                        if canary is not None:
                            await canary.search(opened.cell)
                        if on_ready is not None:
                            await on_ready(opened)
                        await _flush(old.cell)  # a finding may have the sample stopped
                        raise_if_killed(old.killed() or opened.killed(), where=where)
                    old.cell.record_death()
                    data: dict[str, JsonValue] = {
                        "from": old.cell.id,
                        "to": opened.cell.id,
                        "from_pool": opened.from_pool,
                        "duration_ms": round((time.monotonic() - began) * 1000, 3),
                    }
                    if to is not None:
                        data["snapshot"] = to.id
                    opened.cell.note(Kind.CELL_REVERTED, data)
                    # Nothing from here on waits or fails: the cell is never between two machines
                    self.current, self._owner = opened, stack.pop_all()
            except BaseException as error:
                if (breach := first_of(error, ContainmentBreach)) is not None:
                    old.cell.mark_failed(breach)  # what it has left may still do something
                    raise
                # An order may also come while `make` runs
                order = error.order if isinstance(error, KilledError) else None
                self._pass_on(order if made is None else made.killed())
                raise
            self._retire(old, owner, on_end)

    async def flush(self) -> None:
        """Wait for old machines' ends and all scans."""
        while self._retiring:
            await self._retiring[0].wait()
        await _flush(self.current.cell)

    async def snapshot(self, name: str | None = None) -> Snapshot:
        async with self._turn:
            self._refuse_if_ended()
            return await self.current.cell.snapshot(name)

    def _refuse_if_ended(self) -> None:
        if self._is_closed:
            raise CellError("the cell's block was left")
        current = self.current
        raise_if_killed(current.killed(), where=f"cell {current.cell.id}")

    async def _wait_for_room(self, old: Cell) -> None:
        limits, retiring = old.plan.limits, self._retiring
        needs_bytes = limits.memory_bytes + limits.disk_bytes
        # A revert holds two machines for a moment: without memory for both it waits for an old
        # one's end.
        while len(retiring) >= MAX_RETIRING or (
            retiring and available_memory_bytes() < needs_bytes
        ):
            await retiring[0].wait()

    def _retire(self, old: Range, owner: AsyncExitStack, on_end: OnMachine | None) -> None:
        cell, done = old.cell, anyio.Event()
        cell._reverted = CellError("the cell was reverted while this ran", where=f"cell {cell.id}")
        self._retiring.append(done)
        # Flushed, else the end of its block would hold up the event loop
        steps: list[Callable[[], Awaitable[object]]] = [partial(_flush, cell)]
        steps += [] if on_end is None else [partial(on_end, old)]

        async def end() -> None:
            with anyio.CancelScope(shield=True):
                for step in (*steps, owner.aclose):
                    try:
                        try:
                            await step()
                        finally:
                            self._pass_on(old.killed())
                    except BaseException as error:  # noqa: BLE001 - raised at the end of the block
                        if (breach := first_of(error, ContainmentBreach)) is not None:
                            self._breach = self._breach or breach
                        else:
                            self._error = self._error or error
            self._retiring.remove(done)
            done.set()

        spawn_task(end)

    def _pass_on(self, order: KillOrder | None) -> None:
        """Have another machine's kill order end the one in use."""
        if order is not None and not self._is_closed:
            self.current.cell._live.kill(order)
            self.current.cell.mark_failed(CellError(str(order)))

    async def close(self, *exc_info: Any) -> None:  # noqa: ANN401 - as `__aexit__` has them
        """End all machines; raise what was found."""
        raised = error = exc_info[1]
        with anyio.CancelScope(shield=True):
            async with self._turn:
                self._is_closed = True
                try:
                    await self._owner.__aexit__(*exc_info)
                except BaseException as own:  # noqa: BLE001 - raised below
                    raised = own
                while self._retiring:
                    await self._retiring[0].wait()
        raised = raised or self._error
        if raised is not None and self._error is not None and raised is not self._error:
            raised.add_note(str(self._error))
        if self._breach is not None and first_of(raised, ContainmentBreach) is None:
            raise self._breach from raised
        if raised is not None and raised is not error:
            raise raised


class RevertibleCell:
    """The caller's handle, which forwards to the machine in use."""

    machines: Machines

    def __init__(self, machines: Machines) -> None:
        # This class's own forwards to the cell of `machines`, which isn't set yet.
        object.__setattr__(self, "machines", machines)

    def __repr__(self) -> str:
        return repr(self.machines.current.cell)

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of a cell
        machines: Machines = object.__getattribute__(self, "machines")
        if name == "machines":
            return machines
        return getattr(machines if name in ("revert", "snapshot") else machines.current.cell, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.machines.current.cell, name, value)


def _adopt(old: Cell, new: Cell) -> None:
    """Have the new guard know the old decoys. Raise `HostError`."""
    if (old.tier, old.plan.image) != (new.tier, new.plan.image):
        what = "the image was replaced in the store, or the tier is no longer possible"
        hint = "open another cell for another image"
        raise HostError(what, where=f"cell {old.id}", hint=hint)
    if old.guard is not None and new.guard is not None:
        new.guard.adopt((*old.guard.ancestors, old.id))


async def _flush(cell: Cell) -> None:
    if cell.guard is not None:
        await anyio.to_thread.run_sync(cell.guard.flush)


@asynccontextmanager
async def revertible(
    make: MakeMachine, *, first: MakeMachine | None = None
) -> AsyncIterator[Range]:
    """Open a range; without a network or targets its cell can be reverted."""
    async with AsyncExitStack() as stack:
        opened = await stack.enter_async_context((first or make)())
        machines = Machines(make, opened, stack.pop_all())
        stack.push_async_exit(machines.close)
        has_more = opened.network is not None or opened.targets
        yield opened if has_more else replace(opened, cell=cast(Cell, RevertibleCell(machines)))
