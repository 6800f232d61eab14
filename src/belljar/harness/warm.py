"""`belljar run --warm N`: pools of cells made ahead, one per plan; capacity.

A pool starts with its plan's first cell; samples left and memory bound it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio

from belljar.errors import BelljarError
from belljar.harness.config import BelljarConfig, as_config
from belljar.host.cgroups import available_memory_bytes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from inspect_ai import Task
    from pydantic import BaseModel

    from belljar.cell.pool import Pool
    from belljar.cell.range import Range
    from belljar.harness.options import Selection
    from belljar.harness.session import Session
    from belljar.policy.limits import Resources
    from belljar.policy.loaded import LoadedPolicy


RESERVED_BYTES: Final = 1 << 30
"""Left to the host itself."""
# A VMM's own memory and the guest kernel's, beside what the policy gives the workload.
OVERHEAD_BYTES: Final = 192 << 20


def cell_bytes(resources: Resources) -> int:
    """Return the host's memory that a cell of these limits takes when it is fully used."""
    return resources.memory_bytes + resources.disk_bytes + OVERHEAD_BYTES


def free_bytes() -> int:
    """Return the host's memory that cells may take now."""
    return available_memory_bytes() - RESERVED_BYTES


def cells_in_memory(resources: Resources) -> int:
    """How many cells of these limits fit in the host's memory now, each fully used."""
    return free_bytes() // cell_bytes(resources)


class WarmCells:
    """The pools of one run: `size` cells ready per plan, for `expected` samples of each.

    Attributes:
        troubles: errors of destroying unused cells.
    """

    def __init__(
        self, session: Session, *, size: int, expected: Mapping[BelljarConfig, int]
    ) -> None:
        self.troubles: list[Exception] = []
        self._session = session
        self._size = size
        self._left = Counter(expected)
        self._in_use = 0
        self._turn = anyio.Lock()
        self._pools: dict[BelljarConfig, tuple[LoadedPolicy, Pool]] = {}

    @asynccontextmanager
    async def range(
        self, config: BaseModel | str | None, policy: LoadedPolicy
    ) -> AsyncIterator[Range]:
        """A sample's cells, pooled if its policy is unchanged."""
        ours = as_config(config)
        if ours not in self._pools:
            self._pools[ours] = (policy, self._pool(ours, policy))
        pooled, pool = self._pools[ours]
        self._left[ours] -= 1
        self._in_use += 1
        try:
            async with pool.range() if pooled == policy else self._open(policy) as opened:
                yield opened
        finally:
            self._in_use -= 1

    @property
    def is_open(self) -> bool:
        """Whether it may hold cells."""
        return bool(self._pools)

    async def close(self) -> None:
        """Destroy what no sample took. A later sample begins new pools."""
        while self._pools:
            config, (_, pool) = next(iter(self._pools.items()))
            await pool.aclose()  # once more if it is broken off
            self.troubles += pool.troubles
            self._pools.pop(config, None)

    def _open(
        self, policy: LoadedPolicy, *, ahead: bool = False
    ) -> AbstractAsyncContextManager[Range]:
        session = self._session
        return session.source.open_range(
            policy, run=session.ensure_run(), home=session.home, ahead=ahead
        )

    def _pool(self, config: BelljarConfig, policy: LoadedPolicy) -> Pool:
        from belljar.cell.pool import make_pool
        from belljar.probe.run import WARM_UP
        from belljar.store.home import belljar_home

        run, probe = self._session.ensure_run(), self._session.source.probe
        return make_pool(
            policy,
            run,
            self._session.home or belljar_home(),
            open_one=partial(self._open, policy),
            warm_up=lambda opened: probe(
                opened.cell, opened.routers.get(opened.cell.id), run=run, phase=WARM_UP
            ),
            size=self._size,
            admit=partial(self._admit, config, policy),
            on_breach=self._session.breached,
            turn=self._turn,
        )

    def _admit(self, config: BelljarConfig, policy: LoadedPolicy, ready: int) -> bool:
        fitting = cells_in_memory(policy.policy.resources)
        return self._left[config] > ready and fitting > self._in_use + ready


def expected_samples(
    tasks: Sequence[Task], *, epochs: int | None, selection: Selection
) -> Counter[BelljarConfig]:
    """Each configuration's most samples, for replaced sandboxes."""
    expected: Counter[BelljarConfig] = Counter()
    names = [task.name for task in tasks]
    for task in tasks:
        for position in selection.positions(task, names):
            spec = task.dataset[position].sandbox or task.sandbox
            if spec is not None:
                expected[as_config(spec.config)] += epochs or task.epochs or 1
    return expected


@contextmanager
def warm_cells(
    session: Session, *, size: int, expected: Mapping[BelljarConfig, int]
) -> Iterator[WarmCells | None]:
    """Use pools of `size` inside the block."""
    if not size:
        yield None
        return
    warm = WarmCells(session, size=size, expected=expected)
    session.warm_range, session.close_warm = warm.range, warm.close
    try:
        yield warm
    finally:
        session.warm_range = session.close_warm = None
        if warm.is_open:  # Inspect ended without its clean-up
            anyio.run(warm.close)
        for trouble in warm.troubles:
            session.breaches.append(
                trouble
                if isinstance(trouble, BelljarError)
                else BelljarError(f"the end of a cell made ahead: {trouble!r}")
            )
