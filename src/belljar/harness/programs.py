"""What runs in the cell that a sample works in, when a compose file says so: as in a container, it is there before the sample's files and tools."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from belljar.compose.words import is_idle

if TYPE_CHECKING:
    from belljar.cell import Cell


async def start_program(cell: Cell, service: str, program: str) -> None:
    """Start what the service runs, behind the image's entrypoint where that stays, and wait until it is healthy.

    Args:
        service: the service's name, for errors.
        program: JSON, a target cell's words; "": nothing.

    Raises:
        CellError: it can't be started, or does not become healthy in its time.
    """
    if not program:
        return
    from belljar.cell.targets import serve, words_to_run
    from belljar.plan.network import StandInPlan
    from belljar.policy.stand_ins import CellStandIn

    written = CellStandIn.model_validate(
        {"kind": "cell", "names": ["own"], "ports": ["all"], **json.loads(program)}, strict=False
    )
    settings = written.settings()
    plan = StandInPlan(id=service, kind="cell", names=(), ports=(), settings=settings)
    if settings.get("health") or settings.get("directories") or not is_idle(words_to_run(settings, cell)):
        await serve(cell, plan)
