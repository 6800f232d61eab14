"""An author's ASGI app, packed: it serves by what is packed alone, and nothing of the host goes
in."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from tests.integration.processes import wait_for

from belljar.cell import targets
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


def names(archive: bytes) -> list[str]:
    """What is in it."""
    return zipfile.ZipFile(BytesIO(archive)).namelist()


def test_every_port_is_bound() -> None:
    """Those of the policy, for all of the cell's addresses, by the app's name."""
    command = targets.serving_command(plan_of(None, 80, 8000))
    assert command[3:] == ["inner.main:app", "80", "8000"]


def test_it_serves_by_what_is_packed(tmp_path: Path) -> None:
    """With no package of this machine: an interpreter without any site runs the very command, in
    another place."""
    (tmp_path / "app" / "inner").mkdir(parents=True)
    (tmp_path / "app" / "inner" / "main.py").write_text(MAIN)
    plan = plan_of(tmp_path / "app", 0)
    (tmp_path / "server.zip").write_bytes(targets.server_archive())
    (tmp_path / "app.zip").write_bytes(targets.app_archive(plan))
    argv = targets.serving_command(plan)
    places = {targets.SERVER: "server.zip", targets.APP: "app.zip", targets.APP_DIRECTORY: "srv"}
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
    packed = names(targets.server_archive())
    assert "uvicorn/main.py" in packed
    assert all(name.endswith(".py") and not name.startswith(("/", "..")) for name in packed)


def test_links_stay_out(tmp_path: Path) -> None:
    """Neither a link to a file nor one to a directory takes anything of the host's in; equal files
    give equal bytes."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "main.py").write_text("x = 1")
    (tmp_path / "app" / "link").symlink_to("/etc/passwd")
    (tmp_path / "app" / "above").symlink_to("..")
    archive = targets.app_archive(plan_of(tmp_path / "app"))
    assert names(archive) == ["main.py"]
    assert archive == targets.app_archive(plan_of(tmp_path / "app"))


def test_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes and by number, with the place; and so is what names no directory."""
    (tmp_path / "main.py").write_text("x" * 100)
    monkeypatch.setattr(targets, "MAX_APP_BYTES", 99)
    with pytest.raises(PolicyError, match=r"network\.stand_ins\.app\.files.*100 B.*at most"):
        targets.app_archive(plan_of(tmp_path))
    monkeypatch.setattr(targets, "MAX_APP_BYTES", 1000)
    monkeypatch.setattr(targets, "MAX_APP_FILES", 0)
    with pytest.raises(PolicyError, match="1 files"):
        targets.app_archive(plan_of(tmp_path))
    with pytest.raises(PolicyError, match="no directory"):
        targets.app_archive(plan_of(None))
