"""The live page in a real browser, with a real cell."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.machine import PATIENCE_S

from belljar.cell.parts import start_run
from belljar.events import Event, Kind
from belljar.isolation.hold import release
from belljar.ledger.listing import read_events

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("uvicorn", reason="the extra `web` is not installed")
EVIL = "<img src=x onerror=document.title='owned'>\x1b[31m\u202e"


@contextmanager
def serving(
    *words: str, port: str = "0", program: Sequence[str] = ("-m", "belljar")
) -> Iterator[tuple[str, int]]:
    """The address that `belljar serve` prints, and its process; SIGTERM ends it well."""
    argv = [sys.executable, *program, "serve", "--port", port, *words]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()
        assert process.wait(timeout=PATIENCE_S) in (0, -15)


@contextmanager
def served(*words: str, port: str = "0") -> Iterator[str]:
    with serving(*words, port=port) as (address, _):
        yield address


def told(number: int) -> Event:
    return Event(kind=Kind.PROTOCOL_VIOLATION, data={"reason": f"{EVIL} number {number}"})


@pytest.mark.slow
def test_a_browser_follows_filters_and_stops(browser: Browser, home: Path) -> None:
    """The page shows a run as it happens, hostile text as text, and finds it by a filter."""
    argv = [sys.executable, "-m", "belljar", "exec", "low", "--tier", "container", "--"]
    sleeper = subprocess.Popen(
        [*argv, "sleep", "600"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_S * 1000)
    try:
        with start_run("exec", "shown", ["test"], home=home) as run:
            with served("--operator") as address:
                page.goto(address)
                port = address.split(":")[2].partition("/")[0]
                page.wait_for_url("**/")
                assert page.context.cookies() == []
                run.recorder.record(told(1))
                page.get_by_text("number 1").first.wait_for()
                assert page.get_by_text("<img src=x").count()
                assert page.locator("img").count() == 0
                page.locator("#memory canvas").wait_for()
                page.fill("#search", '"sleep"')
                page.locator("#lines tr").first.wait_for()
                assert page.get_by_text("number 1").count() == 0
                page.fill("#search", "")
                page.select_option("#kind", "exec")
                assert page.get_by_text("number 1").count() == 0
                page.select_option("#kind", "")
                cell = page.locator("details", has_text="sleep 600")
                cell.get_by_role("button", name="Stop this run").click()
                page.get_by_role("button", name="Yes, stop").click()
                page.get_by_text("done, with proof").wait_for()
                assert sleeper.wait(timeout=PATIENCE_S) != 0
                assert page.title() == "Belljar live"
            page.get_by_text("disconnected").wait_for()
            with served("--operator", port=port):
                page.get_by_text("live", exact=True).wait_for()
                run.recorder.record(told(2))
                page.get_by_text("number 2").first.wait_for()
                for width in (390, 1600):
                    page.set_viewport_size({"width": width, "height": 800})
                    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
                page.get_by_role("button", name="Stop everything and hold").click()
                page.get_by_role("button", name="Yes, stop").click()
                page.locator("#held", has_text="stopped from the live page").wait_for()
                page.get_by_role("button", name="Release the hold").click()
                page.locator("#held").wait_for(state="hidden")
    finally:
        release(home)
        if sleeper.poll() is None:
            sleeper.kill()
        sleeper.wait()
    kinds = {event.kind for path in (home / "runs").iterdir() for event in read_events(path)}
    assert Kind.CELL_DESTROYED in kinds


def test_a_socket_is_this_users(tmp_path: Path, home: Path) -> None:
    """With --unix nobody else can connect, and the path is gone when the server ends."""
    path = tmp_path / "live"
    with served("--unix", str(path)) as address:
        assert address.startswith(f"{path}#")
        assert home.exists()
        assert path.stat().st_mode & 0o077 == 0
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert client.recv(15) == b"HTTP/1.1 200 OK"
    assert not path.exists()
