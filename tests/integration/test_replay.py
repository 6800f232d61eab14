"""Terminal sessions of a real cell become recordings that others' players play."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.integration.processes import read_until, resize
from tests.machine import PATIENCE_S
from tests.real_packages import ASCIINEMA, npm_package
from tests.unit.report.test_page import data_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from tests.integration.conftest import Belljar

pytestmark = [pytest.mark.slow, pytest.mark.root]
RESIZED = b"until [ \"$(stty size)\" = '20 70' ]; do sleep 0.1; done; "
TYPED = (
    RESIZED + b"stty size; printf '\\033[31mred\\033[0m\\n'; printf 'wrong\\rright\\n'; exit 3\r"
)


@pytest.fixture
def session(belljar: Belljar) -> tuple[Path, str]:
    """The run of a `shell` whose terminal is made smaller, with a visitor by `attach`; its cell."""
    ours, theirs = pty.openpty()
    resize(ours, 27, 91)
    shell = subprocess.Popen(
        [sys.executable, "-m", "belljar", "shell", "low", "--tier", "container"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=belljar.environment(TERM="xterm"),
        start_new_session=True,
    )
    os.close(theirs)
    try:
        begun = read_until(ours, b"$ ")
        (cell,) = re.findall(rb"cell (c-[0-9a-f]+) ", begun)
        visit = belljar("attach", cell.decode(), "--", "sh", "-c", "echo hello; exit 5")
        assert visit.returncode == 5, visit.stderr
        resize(ours, 20, 70)
        shell.send_signal(signal.SIGWINCH)
        os.write(ours, TYPED)
        read_until(ours, b"recorded in")
        assert shell.wait(timeout=PATIENCE_S) == 3
    finally:
        shell.kill()
        shell.wait()
        os.close(ours)
    return belljar.runs()[-1], cell.decode()


def check_cast(belljar: Belljar, run: Path, cell: str, cast: bytes) -> None:
    """First size in the header, then events; no keystrokes; each end's code; `replay` plays it."""
    header, *events = map(json.loads, cast.splitlines())
    assert (header["version"], header["term"]) == (3, {"cols": 91, "rows": 27})
    assert {"3", "5"} <= {data for _, code, data in events if code == "x"}
    assert not [each for each in events if each[1] == "i"]
    assert "20 70\r\n" in "".join(data for _, code, data in events if code == "o")
    replayed = belljar("replay", str(run), "--cell", cell, "--idle", "0")
    assert b"\nred\n" in replayed.stdout  # in a pipe without colours
    assert b"[exit 3]" in replayed.stdout


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """The address of a server of these files on loopback."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(directory))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


PAGE = """<!doctype html><link rel="stylesheet" href="asciinema-player.css">
<div id="player"></div><script src="asciinema-player.min.js"></script>
<script>
const player = AsciinemaPlayer.create("session.cast", document.getElementById("player"),
  { speed: 10, idleTimeLimit: 0.2, autoPlay: true });
player.addEventListener("ended", () => { document.title = "ended"; });
</script>"""


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_asciinemas_player_shows_a_session(
    belljar: Belljar, session: tuple[Path, str], tmp_path: Path, browser: Browser
) -> None:
    """The recording has sizes, output and exit codes."""
    run, cell = session
    for each in ("asciinema-player.css", "asciinema-player.min.js"):
        shutil.copy(npm_package(ASCIINEMA) / "dist" / "bundle" / each, tmp_path)
    (tmp_path / "index.html").write_text(PAGE)
    exported = ("export", str(run), "--format", "cast", "--cell", cell)
    belljar(*exported, "-o", str(tmp_path / "session.cast"))
    check_cast(belljar, run, cell, (tmp_path / "session.cast").read_bytes())
    page = browser.new_page()
    with served(tmp_path) as address:
        page.goto(address)
        page.wait_for_function("document.title === 'ended'")
        text = page.locator(".ap-term").inner_text()
    for said in ("20 70", "red", "right", "hello"):
        assert said in text
    assert "wrong\n" not in text
    target = tmp_path / "report.html"
    belljar("report", str(run), "-o", str(target))
    (entries,) = data_of(target.read_bytes())
    commands = [entry[-1] for entry in entries if entry[2] == "command"]
    assert {name for found in commands for name, *_ in found} == {"stdout"}
