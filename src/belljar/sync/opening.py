"""`open_cell`, `open_pool` and `open_range` for callers that wait. Contracts: their namesakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from belljar.cell import open as cell_open
from belljar.cell.pool import Counts
from belljar.cell.pool import Pool as AsyncPool
from belljar.cell.pool import open_pool as open_async_pool
from belljar.cell.ranges import Range as AsyncRange
from belljar.cell.ranges import open_range as open_async_range
from belljar.cell.stock import DEFAULT_SIZE
from belljar.events import Actor
from belljar.host.settings import PolicyLike
from belljar.isolation.kill import KillReport, kill_now
from belljar.ledger import RunDirectory
from belljar.store.home import belljar_home
from belljar.sync.cells import Cell
from belljar.sync.loop import Loop, own_loop


class Pool:
    """Cells made ahead. Made only by `belljar.sync.open_pool`."""

    def __init__(self, pool: AsyncPool, loop: Loop) -> None:
        self._pool = pool
        self._loop = loop

    @property
    def counts(self) -> Counts:
        """What became of its cells."""
        return self._pool.counts

    @contextmanager
    def cell(self) -> Iterator[Cell]:
        """See `belljar.Pool.cell`."""
        with self._loop.entered(self._pool.cell()) as cell:
            yield Cell(cell, self._loop)

    def refill(self, *, after_s: float = 0.0) -> None:
        """See `belljar.Pool.refill`."""
        self._pool.refill(after_s=after_s)

    def filled(self) -> int:
        """See `belljar.Pool.filled`."""
        return self._loop.call(self._pool.filled)


class Range:
    """The cells of one sample and their network. Made only by `belljar.sync.open_range`."""

    def __init__(self, opened: AsyncRange, loop: Loop) -> None:
        self.cells: Mapping[str, Cell] = {
            name: Cell(cell, loop) for name, cell in opened.cells.items()
        }
        self.network = opened.network
        self._own = Cell(opened.cell, loop)

    @property
    def cell(self) -> Cell:
        """The one that a sample works in."""
        return self._own


@contextmanager
def open_cell(
    policy: PolicyLike = None,
    *,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
) -> Iterator[Cell]:
    """See `belljar.open_cell`. Ctrl-C destroys the cell before it is raised."""
    with own_loop() as loop:
        opened = cell_open.open_cell(policy, run=run, home=home, actor=actor)
        with loop.entered(opened) as cell:
            yield Cell(cell, loop)


@contextmanager
def open_range(
    policy: PolicyLike = None,
    *,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
) -> Iterator[Range]:
    """See `belljar.open_range`. Ctrl-C destroys the range before it is raised."""
    with own_loop() as loop:
        opening = open_async_range(policy, run=run, home=home, actor=actor)
        with loop.entered(opening) as opened:
            yield Range(opened, loop)


@contextmanager
def open_pool(
    policy: PolicyLike = None,
    *,
    size: int = DEFAULT_SIZE,
    run: RunDirectory | None = None,
    home: Path | None = None,
    actor: Actor = Actor.OPERATOR,
) -> Iterator[Pool]:
    """See `belljar.open_pool`. Ctrl-C destroys its cells before it is raised."""
    with own_loop() as loop:
        opening = open_async_pool(policy, size=size, run=run, home=home, actor=actor)
        with loop.entered(opening) as pool:
            yield Pool(pool, loop)


def kill(
    *names: str,
    everything: bool = False,
    hold: bool = False,
    reason: str = "",
    home: Path | None = None,
) -> KillReport:
    """See `belljar.kill`."""
    return kill_now(
        home or belljar_home(), names, everything=everything, hold_too=hold, reason=reason
    )
