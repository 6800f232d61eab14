"""A range: one sample's cells, their network, and its gateway's model requests."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from belljar.dataclass import dataclass, field

if TYPE_CHECKING:
    from belljar.cell.cell import Cell, Snapshot
    from belljar.cell.parts import Parts
    from belljar.cell.stop_rules import StopRulesRecorder
    from belljar.events import Actor
    from belljar.isolation.hold import KillOrder
    from belljar.ledger.rundir import RunDirectory
    from belljar.network.owner.range import NetworkRange as Network
    from belljar.policy.loaded import LoadedPolicy
    from belljar.probe.judge import Router

# CLOCK_REALTIME_COARSE, which Python doesn't name: the kernel takes files' times from it.
_COARSE: Final = 5
# Kind and body of a request to its answer; called in a thread of the range. Raises `ValueError`
# to refuse.
Handler: TypeAlias = Callable[[str, bytes], bytes]
# Called with a running target cell and its router, if any, before its program is started.
OnTarget: TypeAlias = "Callable[[Cell, Router | None], Awaitable[object]]"


class ModelRequests:
    """Passes requests to the current `handler` until the range's end."""

    def __init__(self) -> None:
        self.handler: Handler | None = None
        self.on_close: Callable[[], None] | None = None
        self._closed = False

    def __call__(self, kind: str, body: bytes) -> bytes:
        if self._closed:
            raise ValueError("the range has ended")
        if self.handler is None:
            raise ValueError("no model answers here: run the cell under `belljar run`")
        return self.handler(kind, body)

    def close(self) -> None:
        self._closed = True
        if self.on_close is not None:
            self.on_close()


@dataclass(frozen=True, slots=True)
class FileClock:
    """A moment by the files' clock; `offset_ns` changes only when it is set."""

    ns: int
    offset_ns: int

    @staticmethod
    def now() -> FileClock:
        """Return the last moment before what is written from here on."""
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
    """It makes another machine for a cell without a network.

    Nothing of this one's own is older than `since`. `machine` may go on from `snapshot`;
    `fork` makes a separate range.
    """

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
        from belljar.policy.guarding import OWN_CELL

        return {OWN_CELL: self.cell, **self.targets}

    def killed(self) -> KillOrder | None:
        """Return the order that its own cell is killed by, even a late one."""
        late = None if self.rules is None else self.rules.order
        return self.cell._live.killed() or late

    def disconnect(self) -> None:
        """End all its cells' operations. Any thread may call it."""
        for cell in self.cells.values():
            cell.disconnect()
