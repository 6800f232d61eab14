"""The checks of one cell's health while it is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import anyio

from belljar.cell.health import Damage, Health, damage
from belljar.events import Actor, Event, JsonValue, Kind, Trust

if TYPE_CHECKING:
    from belljar.cell.cell import Cell


class HealthWatch:
    """Checks one cell in use, and records each check.

    `degraded`: its first damage, for people; `op`: the latest operation then.
    """

    def __init__(self, cell: Cell, record: Callable[[Event], object]) -> None:
        self.degraded: dict[str, JsonValue] = {}
        self._cell = cell
        self._record = record
        self._baseline: Health | None = None

    async def take_baseline(self) -> None:
        """What later checks are compared with."""
        self._baseline, _ = await self._check("baseline")

    async def look(self, phase: Literal["call", "end"]) -> None:
        """Check, unless idle or already degraded."""
        if self._baseline is None or self.degraded:
            return
        _, found = await self._check(phase)
        if found is not None and not self.degraded:
            self.degraded = {"cell": self._cell.id, "cause": found.cause.value, "phase": phase}
            self.degraded["op"] = self._cell.last_op

    async def _check(self, phase: str) -> tuple[Health, Damage | None]:
        self._record_check(Kind.CELL_CHECKING, phase=phase)
        began = anyio.current_time()
        health = await self._cell.check_health()
        found = damage(self._baseline, health) if self._baseline is not None else None
        self._record_check(
            Kind.CELL_CHECKED,
            phase=phase,
            op=self._cell.last_op,
            cause=found.cause.value if found is not None else "",
            detail=found.detail if found is not None else "",
            duration_ms=round((anyio.current_time() - began) * 1000, 3),
        )
        return health, found

    def _record_check(self, kind: Kind, **data: JsonValue) -> None:
        trust = Trust.GUEST_REPORTED if kind is Kind.CELL_CHECKED else Trust.HOST_OBSERVED
        self._record(
            Event(kind=kind, data=data, cell_id=self._cell.id, actor=Actor.BELLJAR, trust=trust)
        )
