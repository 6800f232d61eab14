"""An image's program in a cell of every tier: when it is ready, and what is said when it is not."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.machine import PATIENCE_S

from belljar.cell import targets
from belljar.cell.cell import Cell
from belljar.cell.targets import serve
from belljar.compose.values import SETTLE_S
from belljar.errors import CellError
from belljar.plan.network import StandInPlan

pytestmark = pytest.mark.anyio


async def run(cell: Cell, script: str, **settings: Any) -> None:  # noqa: ANN401 - a plan's settings
    words = {"command": ["sh", "-c", script, "program-of-the-image"], **settings}
    await serve(cell, StandInPlan(id="agent", kind="cell", names=(), ports=(), settings=words))


async def running(cell: Cell, pattern: str) -> list[bytes]:
    return (
        await cell.exec(["sh", "-c", f"grep -la '{pattern}' /proc/[0-9]*/cmdline"])
    ).stdout.split()


@pytest.mark.promise("1.6")
async def test_it_is_ready_when_it_has_run_for_a_while(cell: Cell) -> None:
    """Then it goes on, and nothing of what started it is left beside it."""
    began = time.monotonic()
    program = "trap 'exit 0' TERM; echo set up > /tmp/set-up; n=5432; sleep ${n}1 & wait"
    await run(cell, program)
    assert time.monotonic() - began >= SETTLE_S
    assert (await cell.exec(["cat", "/tmp/set-up"])).stdout == b"set up\n"
    assert len(await running(cell, "[5]4321")) == 1
    assert await running(cell, "[k]ill -0") == []
    assert (await cell.exec(["sh", "-c", "kill 1; sleep 60"])).signalled


@pytest.mark.promise("1.6")
@pytest.mark.parametrize(
    "health", [{}, {"command": ["true"], "interval": 0.1, "timeout": PATIENCE_S, "retries": 2}]
)
async def test_another_end_is_an_error_that_quotes_it(
    cell: Cell, health: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its status, whether it has a health check or not."""
    for name in ("SETTLE_S", "_EARLY_END_S"):
        monkeypatch.setattr(targets, name, PATIENCE_S)
    with pytest.raises(
        CellError, match=r"ended with status 3; its output ends with: no such \\x1b table"
    ):
        await run(
            cell,
            "printf 'no such \\033 table' >&2; exit 3",
            **({"health": health} if health else {}),
        )


@pytest.mark.promise("1.6")
async def test_it_is_ready_when_it_is_healthy(cell: Cell) -> None:
    """With a check, that alone counts: it may take longer than a while to become so."""
    health: dict[str, Any] = {"command": ["test", "-e", "/tmp/healthy"], "interval": 0.1}
    health |= {"timeout": PATIENCE_S, "retries": 10_000}
    await run(cell, "sleep 1.5; touch /tmp/healthy; exec sleep 4321", health=health)
    assert (await cell.exec(["test", "-e", "/tmp/healthy"])).success
