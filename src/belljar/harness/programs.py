"""The program of the cell that a sample works in: as in a container, it is there before the
sample's files and tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from belljar.compose.values import is_idle

if TYPE_CHECKING:
    from belljar.cell import Cell


async def start_program(cell: Cell, service: str, program: str) -> None:
    """Start what the service runs, behind the image's entrypoint where that stays, and wait until
    it is ready.

    Nothing is started where that only waits or is a shell alone. Ready is healthy, where the
    service or its image has a check; else `SETTLE_S` of running, or an end with status 0.

    Args:
        service: the service's name, for errors.
        program: JSON, a target cell's words; "": what the image says (Belljar's own has a shell
            only).

    Raises:
        CellError: it can't be started, ends with another status, or does not become healthy in its
            time.
    """
    from belljar.cell.targets import serve, words_to_run
    from belljar.plan.network import StandInPlan
    from belljar.policy.stand_ins import CellStandIn

    words = json.loads(program or "{}")
    written = CellStandIn.model_validate(
        {"kind": "cell", "names": ["own"], "ports": ["all"], **words}, strict=False
    )
    settings = written.settings()
    plan = StandInPlan(id=service, kind="cell", names=(), ports=(), settings=settings)
    if (
        settings.get("health")
        or settings.get("directories")
        or not is_idle(words_to_run(settings, cell))
    ):
        await serve(cell, plan)
