"""Watches whether a sample's cell can still run commands, and says so in Inspect's sample and in
the ledger.

A baseline is taken when the sample's own work begins. Afterwards the cell is checked when an
operation failed as it would in a broken cell, and once when the sample ends. The first damage is
kept: a cell that was repaired afterwards stays degraded. An operation that succeeds costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import anyio

from belljar.cell.health import damage
from belljar.events import Actor, Event, JsonValue, Kind, Trust

if TYPE_CHECKING:
    from belljar.cell import Cell
    from belljar.cell.health import Damage, Health
    from belljar.harness.identity import SampleIdentity

KEY: Final = "sandbox_degraded"
"""Key of the sample's metadata in Inspect's log (a list of objects) and of each score's (causes).
"""

Phase = Literal["baseline", "call", "end"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded:
    """The first damage of one cell; `op` is the operation begun last when it was noticed."""

    cell_id: str
    damage: Damage
    phase: Phase
    op: int

    def data(self) -> dict[str, JsonValue]:
        """As JSON values, for Inspect's log. The ledger has the detail."""
        cause = self.damage.cause.value
        return {"cell": self.cell_id, "cause": cause, "phase": self.phase, "op": self.op}


class HealthWatch:
    """The health of one cell during its sample."""

    def __init__(self, cell: Cell, record: Callable[[Event], None]) -> None:
        self.degraded: Degraded | None = None
        self._cell = cell
        self._record = record
        self._baseline: Health | None = None

    async def take_baseline(self) -> None:
        """What later checks are compared with."""
        self._baseline, _ = await self._check("baseline")

    async def look(self, phase: Literal["call", "end"]) -> None:
        """Check, unless nothing of the sample ran here, or the cell is known to be degraded."""
        if self._baseline is None or self.degraded is not None:
            return
        _, found = await self._check(phase)
        if found is not None and self.degraded is None:
            self.degraded = Degraded(
                cell_id=self._cell.id, damage=found, phase=phase, op=self._cell.last_op
            )

    async def _check(self, phase: Phase) -> tuple[Health, Damage | None]:
        self._tell(Kind.CELL_CHECKING, phase=phase)
        began = anyio.current_time()
        health = await self._cell.check_health()
        found = damage(self._baseline, health) if self._baseline is not None else None
        self._tell(
            Kind.CELL_CHECKED,
            phase=phase,
            op=self._cell.last_op,
            cause=found.cause.value if found is not None else "",
            detail=found.detail if found is not None else "",
            duration_ms=round((anyio.current_time() - began) * 1000, 3),
        )
        return health, found

    def _tell(self, kind: Kind, **data: JsonValue) -> None:
        trust = Trust.GUEST_REPORTED if kind is Kind.CELL_CHECKED else Trust.HOST_OBSERVED
        self._record(
            Event(kind=kind, data=data, cell_id=self._cell.id, actor=Actor.BELLJAR, trust=trust)
        )


def bind_degraded(degraded: Iterable[Degraded], who: SampleIdentity) -> None:
    """Mark the sample that Inspect is ending in this context: its metadata, and each score's."""
    from inspect_ai.solver._task_state import sample_state

    found, state = list(degraded), sample_state()
    if not found or state is None or not who.uuid or state.uuid != who.uuid:
        return
    state.metadata[KEY] = [each.data() for each in found]
    causes = ", ".join(dict.fromkeys(each.damage.cause.value for each in found))
    for score in (state.scores or {}).values():
        score.metadata = {**(score.metadata or {}), KEY: causes}
