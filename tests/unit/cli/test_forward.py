"""`belljar forward`: what it may listen on and lead to."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from belljar.cli.sessions import parse_forward
from belljar.harness.attach import FrameKind, attach_directory, frame, short_path

CELL = "c-0123456789ab"
ANSWER = b"too large\n" * 6000
ANSWERS = 20


@pytest.mark.parametrize(
    "text",
    [
        "0.0.0.0:80:80",
        "host:80:80",
        "80",
        "80:",
        "x:y",
        "80:0",
        "70000:80",
        "80:run/s.sock",
    ],
)
def test_nothing_but_loopback_is_listened_on(text: str) -> None:
    """Another address, a name, and what is no port or path are refused."""
    with pytest.raises(ValueError):  # noqa: PT011 - the wording is for people
        parse_forward(text)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Forwarded to a cell's owner who answers at once, and closes without reading on."""
    directory = attach_directory(tmp_path)
    directory.mkdir(mode=0o700)
    listening = socket.socket(socket.AF_UNIX)
    with short_path(directory / CELL) as name:
        listening.bind(name)
    listening.listen()
    whole = frame(FrameKind.OUTPUT, ANSWER) * ANSWERS
    whole += frame(FrameKind.OUTPUT_END) + frame(FrameKind.EXIT, b"0")

    def own() -> None:
        with suppress(OSError):  # it is closed
            while True:
                owner, _ = listening.accept()
                with owner:
                    if owner.recv(100):  # else only whether somebody is there
                        owner.sendall(whole)

    argv = [sys.executable, "-m", "belljar", "forward", CELL, "0:80", "--json"]
    env = {**os.environ, "BELLJAR_HOME": str(tmp_path)}
    owning = threading.Thread(target=own, daemon=True)
    owning.start()
    with listening, subprocess.Popen(argv, env=env, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(json.loads(process.stdout.readline())["port"])
        finally:
            process.terminate()
            listening.shutdown(socket.SHUT_RDWR)
            owning.join()


def test_an_answer_before_the_end_of_its_question_is_whole(port: int) -> None:
    """As a server's that refuses an upload: it arrives before the end of the connection."""

    def ask(connection: socket.socket) -> None:
        with suppress(ConnectionError):
            connection.sendall(b"x" * 2_000_000)

    for _ in range(6):
        with closing(socket.create_connection(("127.0.0.1", port), timeout=60)) as connection:
            asking = threading.Thread(target=ask, args=(connection,))
            asking.start()
            heard = b""
            while chunk := connection.recv(1 << 16):
                heard += chunk
            asking.join()
        assert heard == ANSWER * ANSWERS
