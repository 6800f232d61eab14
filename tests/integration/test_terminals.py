"""`belljar` in pipes, in the background and on terminals of other widths."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.conftest import Belljar
from tests.machine import PATIENCE_S

pytestmark = [pytest.mark.vm, pytest.mark.slow]


def on_terminal(belljar: Belljar, *words: str, **environment: str) -> bytes:
    """What a command prints on a terminal of its own."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "belljar", *words],
        stdin=subprocess.DEVNULL,
        stdout=follower,
        stderr=follower,
        env={**belljar.environment(TERM="xterm-256color"), **environment},
    )
    os.close(follower)
    said = b""
    try:
        while piece := os.read(leader, 4096):
            said += piece
    except OSError:  # the last writer is gone
        pass
    finally:
        os.close(leader)
        process.wait(timeout=PATIENCE_S)
    return said


POLICY = """belljar: 1
risk: low
network:
  upstreams:
    - host: api.example.com
      ports: [443]
      methods: [GET]
      budget: 1MiB
      reason: to show a line in red in this test
"""


def test_colour_is_for_terminals_that_want_it(belljar: Belljar, tmp_path: Path) -> None:
    """What is real is red on a terminal; `NO_COLOR` leaves no escape sequence."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    assert b"\x1b[" not in on_terminal(belljar, "plan", str(policy), NO_COLOR="1")
    assert b"\x1b[" in on_terminal(belljar, "plan", str(policy), NO_COLOR="")


def test_a_reader_that_stops_ends_the_command_quietly(belljar: Belljar) -> None:
    """No traceback, whatever was still to be printed."""
    command = f"{sys.executable} -m belljar policy schema | head -c 10"
    done = subprocess.run(
        ["sh", "-c", command],
        env=belljar.environment(),
        capture_output=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (len(done.stdout), done.stderr) == (10, b"")


def test_a_command_in_the_background(belljar: Belljar, tmp_path: Path) -> None:
    """`nohup`, a closed standard input and a file for its output: the same result."""
    output = tmp_path / "out"
    command = f"nohup {sys.executable} -m belljar exec low -- echo hello >{output} 2>&1 <&-"
    environment = belljar.environment()
    done = subprocess.run(["sh", "-c", command], env=environment, check=False, timeout=PATIENCE_S)
    assert (done.returncode, output.read_text().splitlines()[-1]) == (0, "hello")
