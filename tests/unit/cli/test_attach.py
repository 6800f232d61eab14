"""The client's side of an attached terminal."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from belljar.cli.sessions import relay
from belljar.harness.attach import FrameKind, FrameReader, frame


@pytest.fixture
def sizes() -> Iterator[int]:
    """A terminal whose size doesn't change."""
    reading, writing = os.pipe()
    yield reading
    os.close(reading)
    os.close(writing)


@pytest.fixture
def _no_keys() -> Iterator[None]:
    """Standard input is at its end."""
    kept, nothing = os.dup(0), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    yield
    os.dup2(kept, 0)
    os.close(kept)
    os.close(nothing)


@pytest.mark.usefixtures("_no_keys")
@pytest.mark.parametrize("unread", [b"", b"its opening"])
def test_a_command_that_ended_first_is_told_whole(
    sizes: int, unread: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its output and exit code arrive, though its owner has closed the connection before this side
    got to send what it had to, read or not."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(unread)
        theirs.sendall(frame(FrameKind.OUTPUT, b"user\n") + frame(FrameKind.EXIT, b"5"))
        theirs.close()
        assert relay(ours, FrameReader(), sizes) == "5"
    assert capfd.readouterr().out == "user\n"


@pytest.mark.usefixtures("_no_keys")
@pytest.mark.parametrize("unread", [b"", b"its opening"])
def test_an_owner_that_went_away_is_an_error(sizes: int, unread: bytes) -> None:
    """Status 1, and why."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.sendall(unread)
        theirs.close()
        code, _, why = relay(ours, FrameReader(), sizes).partition(" ")
    assert code == "1"
    assert why
