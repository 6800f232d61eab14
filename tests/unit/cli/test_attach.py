"""The client's side of an attached terminal."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import pytest
from anyio.abc import UNIXSocketStream

from belljar.cli.sessions import relay
from belljar.harness.attach import FrameKind, frame, frames

OPENING = frame(FrameKind.OPEN, b"{}")


def relayed(ours: socket.socket) -> str:
    async def go() -> str:
        async with await UNIXSocketStream.from_socket(ours) as owner:
            return await relay(owner, OPENING)

    return anyio.run(go)


async def kinds_in(data: bytes) -> list[FrameKind]:
    sending, receiving = anyio.create_memory_object_stream[bytes](1)
    with sending:
        sending.send_nowait(data)
    return [kind async for kind, _ in frames(receiving)]


@contextmanager
def standard_input(path: str) -> Iterator[None]:
    kept, file = os.dup(0), os.open(path, os.O_RDONLY)
    os.dup2(file, 0)
    try:
        yield
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(file)


@pytest.mark.parametrize("unread", [b"", b"what its owner never read"])
@pytest.mark.parametrize("ends", [True, False])
def test_an_owner_that_closed_first_is_heard_whole(
    unread: bytes, capfd: pytest.CaptureFixture[str], *, ends: bool
) -> None:
    """Output and exit code arrive, though not all was sent; without a code: status 1, and why."""
    ours, theirs = socket.socketpair()
    with ours, standard_input(os.devnull):
        ours.sendall(unread)
        theirs.sendall(frame(FrameKind.OUTPUT, b"user\n"))
        if ends:
            theirs.sendall(frame(FrameKind.EXIT, b"5"))
        theirs.close()
        code, _, why = relayed(ours).partition(" ")
    assert (code, bool(why)) == (("5", False) if ends else ("1", True))
    assert capfd.readouterr().out == "user\n"


def test_keys_that_nobody_reads_hold_no_output_up(capfd: pytest.CaptureFixture[str]) -> None:
    """A command that never reads is heard to its end; what it is sent comes in whole frames."""
    ours, theirs = socket.socketpair()
    opened = threading.Event()

    def own() -> None:
        for _ in range(64):
            theirs.sendall(frame(FrameKind.OUTPUT, b"x" * 65536))
        kinds = anyio.run(kinds_in, theirs.recv(1 << 20))
        if kinds[0] is FrameKind.OPEN and {*kinds[1:]} == {FrameKind.INPUT}:
            opened.set()
        theirs.sendall(frame(FrameKind.EXIT, b"5"))
        theirs.close()

    owning = threading.Thread(target=own)
    owning.start()
    with ours, standard_input("/dev/zero"):
        assert relayed(ours) == "5"
    owning.join()
    assert opened.is_set()
    assert len(capfd.readouterr().out) == 64 * 65536
