"""What runs in the cell that a sample works in, when a compose file says so: as in a container, it is there before the sample's files and tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from belljar.cell import Cell

_WAITING: Final = frozenset({"tail -f /dev/null", "sleep infinity", "sleep inf"})
_SHELLS: Final = frozenset(f"{place}{shell}" for place in ("", "/bin/", "/usr/bin/") for shell in ("sh", "bash", "ash"))


def is_idle(command: Sequence[str]) -> bool:
    """Whether it does nothing but keep a container from ending: waiting, or a shell that nobody types into."""
    if not command:
        return True
    words = list(command)
    if words[0] in _SHELLS:
        if len(words) == 1:
            return True
        if words[1] in ("-c", "-lc") and len(words) == 3:
            words = words[2].removeprefix("exec ").split()
    return " ".join(words).strip() in _WAITING


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
