"""An author's ASGI app: it serves by what is packed alone, and a bad directory is the author's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import AsyncMock

import pytest

from belljar.cell import targets
from belljar.cell.cell import Cell
from belljar.cell.local_tree import list_source
from belljar.errors import PolicyError
from belljar.plan.network import PortPlan, StandInPlan

MAIN = """
async def app(scope, receive, send):
    if scope['type'] == 'http':
        await send({'type': 'http.response.start', 'status': 200, 'headers': []})
        await send({'type': 'http.response.body', 'body': b'here'})
"""


def plan_of(directory: Path | None, *ports: int) -> StandInPlan:
    """A stand-in with this directory."""
    return StandInPlan(
        id="app",
        kind="python",
        names=("app.example",),
        ports=tuple(PortPlan(number=number, protocol="http") for number in ports),
        settings={"app": "inner.main:app"},
        directory=directory,
    )


@pytest.mark.anyio
async def test_a_directory_that_can_not_be_copied_is_the_authors(tmp_path: Path) -> None:
    """None, too much, and a link that leads out: with the place of its `files`."""
    (tmp_path / "above").symlink_to("..")

    async def upload(local_path: Path, _target: str, **bounds: int) -> None:
        list_source(local_path, **bounds)

    cell = SimpleNamespace(upload=upload, write_file=AsyncMock(), plan=SimpleNamespace(user="0"))
    for directory, why in ((None, "no directory"), (tmp_path, "leads out")):
        with pytest.raises(PolicyError, match=rf"network\.stand_ins\.app\.files.*{why}"):
            await targets.start_serving(cast("Cell", cell), plan_of(directory))
