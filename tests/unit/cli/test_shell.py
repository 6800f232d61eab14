"""`belljar shell`: this terminal joined to the guest's, and given back as it was."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.processes import read_until, resize

import belljar
from belljar.events import Kind
from belljar.ledger.listing import read_events
from belljar.ledger.verification import Status, verify

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
import belljar.cell.open
from tests.fakes.guest import SIGNALED
from tests.fakes.vm import opening

async def shell(guest, op):
    await guest.started(op)
    await guest.output(op, 1, b"ready ")
    while (keys := await guest.stdin(op)) not in (b"\\x04", b""):
        await guest.output(op, 1, b"<" + keys + b">")
        while (keys == b"size" and (33, 101) not in op.sizes) or (keys == b"now" and not op.sizes):
            await op.news.wait()
        await guest.output(op, 1, b"%d,%d" % op.sizes.pop() if op.sizes else b"")
    if op.killed:
        await guest.finish(op, SIGNALED, 9, flags=2)
    else:
        await guest.finish(op, code=7)

belljar.cell.open.open_cell = opening({b"/bin/sh": shell})
from belljar.cli.main import main
main(["shell"])
"""


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    ends = pty.openpty()
    resize(ends[1], 24, 80)
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@pytest.fixture
def shell(terminal: tuple[int, int], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    path = os.pathsep.join([str(Path(belljar.__file__).parents[1]), str(ROOT)])
    env = {**os.environ, "BELLJAR_HOME": str(tmp_path), "PYTHONPATH": path}
    streams = {"stdin": terminal[1], "stdout": terminal[1], "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], env=env, cwd=tmp_path, **streams
    ) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("is_terminated", [False, True])
def test_keys_go_in_raw_and_the_terminal_is_given_back(
    terminal: tuple[int, int],
    shell: subprocess.Popen[bytes],
    tmp_path: Path,
    *,
    is_terminated: bool,
) -> None:
    """^C and ^Z are the guest's; a new size is told."""
    keyboard, screen = terminal
    before = termios.tcgetattr(screen)
    read_until(keyboard, b"ready ")
    if is_terminated:
        assert termios.tcgetattr(screen) != before
        shell.send_signal(signal.SIGTERM)
        assert shell.wait(timeout=60) == 130
        assert termios.tcgetattr(screen) == before
        return
    os.write(keyboard, b"\x03\x1a")
    assert b"<\x03\x1a>" in read_until(keyboard, b">")
    resize(screen, 33, 101)
    os.write(keyboard, b"size")
    read_until(keyboard, b"<size>")
    shell.send_signal(signal.SIGWINCH)
    read_until(keyboard, b"33,101")
    os.write(keyboard, b"\x04")
    said = shell.stderr.read() if shell.stderr else b""
    assert shell.wait(timeout=60) == 7
    assert termios.tcgetattr(screen) == before
    (made,) = (tmp_path / "runs").iterdir()
    assert str(made).encode() in said
    assert verify(made).status is Status.VERIFIED
    assert [event.kind for event in read_events(made)] == [Kind.RUN_STARTED, Kind.RUN_FINISHED]
