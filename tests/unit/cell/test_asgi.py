"""An author's ASGI app: it serves by what is packed alone, and a bad directory is the author's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
import zipfile
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import AsyncMock

import pytest
from tests.integration.processes import wait_for

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


def test_every_port_is_bound() -> None:
    """Those of the policy, for all of the cell's addresses, by the app's name."""
    command = targets.serving_command(plan_of(None, 80, 8000))
    assert command[3:] == ["inner.main:app", "80", "8000"]


def test_it_serves_by_what_is_packed(tmp_path: Path) -> None:
    """With no package of this machine: an interpreter without any site runs the very command, in
    another place."""
    (tmp_path / "app" / "inner").mkdir(parents=True)
    (tmp_path / "app" / "inner" / "main.py").write_text(MAIN)
    (tmp_path / "server.zip").write_bytes(targets.server_archive())
    argv = targets.serving_command(plan_of(None, 0))
    places = {targets.SERVER: "server.zip", targets.APP_DIRECTORY: "app"}
    for cell, here in places.items():
        argv = [word.replace(cell, str(tmp_path / here)) for word in argv]
    argv = [sys.executable, "-I", "-S", *argv[1:]]
    log = tmp_path / "log"
    with (
        log.open("wb") as said,
        subprocess.Popen(
            argv, cwd=tmp_path, stdout=said, stderr=said, start_new_session=True
        ) as server,
    ):
        try:
            wait_for(
                lambda: "startup complete" in log.read_text() or server.poll() is not None,
                "a server",
            )
            port = log.read_text().partition("serving at port ")[2].split()[0]
            assert urllib.request.urlopen(f"http://127.0.0.1:{port}/").read() == b"here"
        finally:
            os.killpg(
                server.pid, signal.SIGKILL
            )  # it has a process that serves, and one that looks after it


def test_what_is_packed() -> None:
    """Only Python's sources, and none of a directory above."""
    packed = zipfile.ZipFile(BytesIO(targets.server_archive())).namelist()
    assert "uvicorn/main.py" in packed
    assert all(name.endswith(".py") and not name.startswith(("/", "..")) for name in packed)


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
