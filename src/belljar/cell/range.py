"""What holds cells: a range of one sample, and a snapshot with what its forks are made from."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, overload

from belljar.dataclass import dataclass, field

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.cell.parts import Parts
    from belljar.cell.snapshot import SavedFiles
    from belljar.cell.stop_rules import StopRulesRecorder
    from belljar.isolation.hold import KillOrder
    from belljar.isolation.microvm.saved import SavedMachine
    from belljar.ledger import RunDirectory
    from belljar.network.owner.range import NetworkRange as Network
    from belljar.probe.judge import Router
    from belljar.signals.decoys import Minted

_COARSE: Final = 5
"""CLOCK_REALTIME_COARSE, which Python doesn't name: the kernel takes files' times from it."""
Handler: TypeAlias = Callable[[str, bytes], bytes]
"""Kind and body of a request to its answer; called in a thread of the range.

Raises `ValueError` to refuse.
"""


class ModelRequests:
    """Passes requests to `handler`; refuses them without one, and after the range's end.

    The handler may be set later. `on_close` is called at the range's end, in the event loop that
    ends it: open requests are no longer wanted.
    """

    def __init__(self) -> None:
        self.handler: Handler | None = None
        self.on_close: Callable[[], None] | None = None
        self._closed = False

    def __call__(self, kind: str, body: bytes) -> bytes:
        """The answer. Raises `ValueError`."""
        if self._closed:
            raise ValueError("the range has ended")
        if self.handler is None:
            raise ValueError("no model answers here: run the cell under `belljar run`")
        return self.handler(kind, body)

    def close(self) -> None:
        """The range ends."""
        self._closed = True
        if self.on_close is not None:
            self.on_close()


@dataclass(frozen=True, slots=True)
class FileClock:
    """A moment by the clock of files' times; `offset_ns` changes only when that clock is set."""

    ns: int
    offset_ns: int

    @staticmethod
    def now() -> FileClock:
        """Just before what is written from here on."""
        # The largest of a few: a pause between the two readings makes it smaller
        boottime = time.CLOCK_BOOTTIME
        offset_ns = max(time.time_ns() - time.clock_gettime_ns(boottime) for _ in range(5))
        return FileClock(time.clock_gettime_ns(_COARSE) - 1, offset_ns)


@dataclass(frozen=True, slots=True)
class CellOrigin:
    """What another machine for a cell without a network is made from.

    Attributes:
        since: nothing of this machine's own was written before.
        machine: makes another in the policy's clean state, or that goes on from `snapshot`.
        fork: opens a cell that goes on from a snapshot, and can itself be reverted.
    """

    run: RunDirectory
    home: Path
    parts: Parts
    since: FileClock
    machine: Callable[..., AbstractAsyncContextManager[Range]]
    fork: Callable[[Snapshot], AbstractAsyncContextManager[Range]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A cell at one moment. Made by `Cell.snapshot`; deleted, with proof, at the end of its run.

    Attributes:
        state: `machine`: memory, processes and files; `files`: files alone (container, gvisor).
        digest: of all of it, in hex.
        key: of what it goes on with alone: VMM, processor, kernel, image and limits, as a digest.
        cell: the id of the cell that was saved.
        size_bytes: on this host's disk.
        kept_decoys: ids of its decoys, whose values of then a fork may still hold besides its own:
            in memory, or in copies.
    """

    id: str
    name: str
    state: Literal["machine", "files"]
    digest: str
    key: str
    cell: str
    size_bytes: int
    kept_decoys: tuple[str, ...]
    saved: SavedMachine | SavedFiles = field(repr=False)
    origin: CellOrigin = field(repr=False)
    hooks: tuple[str, ...] = field(repr=False)
    ancestors: tuple[str, ...] = field(repr=False)
    lineage: set[str] = field(repr=False)
    placed_decoys: tuple[Minted, ...] = field(repr=False)

    @overload
    def fork(self) -> AbstractAsyncContextManager[Cell]: ...

    @overload
    def fork(self, count: int) -> AbstractAsyncContextManager[tuple[Cell, ...]]: ...

    def fork(
        self, count: int | None = None
    ) -> AbstractAsyncContextManager[Cell] | AbstractAsyncContextManager[tuple[Cell, ...]]:
        """Open a cell, or `count` of them, that goes on from here with what was kept, and with an
        identity, randomness, clock and decoys of its own.

        As `open_cell` makes one; destroyed when the block is left. Reverted, it is in the policy's
        clean state. The image's hooks in `/etc/resume.d` have run. Raises as `open_cell`, and
        `CellError` when the snapshot was changed or deleted, or a hook failed, `HostError` when it
        was taken with another VMM, processor, kernel or image.
        """
        if count is None:
            return self._one()
        return self._several(count)

    @asynccontextmanager
    async def _one(self) -> AsyncIterator[Cell]:
        async with self.origin.fork(self) as opened:
            yield opened.cell

    @asynccontextmanager
    async def _several(self, count: int) -> AsyncIterator[tuple[Cell, ...]]:
        async with AsyncExitStack() as stack:
            yield tuple([await stack.enter_async_context(self._one()) for _ in range(count)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The cells of one sample; they end together.

    Attributes:
        cell: the one that a sample works in.
        targets: the others, by name.
        network: None when no cell is on one.
        routers: what each cell's port leads to, by cell id; `probe_cell` demands it.
        model_requests: what the gateway asks of the evaluated model; None without a network.
        from_pool: it was made ahead of use.
        rules: what records it under its policy's `on`, of a cell without a network.
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
        """All of them, by name, its own first."""
        from belljar.policy.guarding import OWN_CELL

        return {OWN_CELL: self.cell, **self.targets}

    def killed(self) -> KillOrder | None:
        """The order that its own cell is killed by, also one that came too late for it."""
        late = None if self.rules is None else self.rules.stopper.order
        return self.cell._live.killed() or late

    def disconnect(self) -> None:
        """End all operations in its cells, in any event loop. From any thread."""
        for cell in self.cells.values():
            cell.disconnect()

    def raise_if_dead(self) -> None:
        """Raise what the network died of, if it has."""
        if self.network is not None and self.network.error is not None:
            raise self.network.error
