"""A supervisor whose owner is late."""

from __future__ import annotations

import socket
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from belljar.network import ipc
from belljar.network.supervisor import main as supervisor


@pytest.mark.promise("5.4")
def test_frames_are_recorded_while_the_owner_is_late() -> None:
    """It reads nothing until the last frame is on record: the report waits, the frames don't."""
    owner, ours = ipc.pair()
    with suppress(BlockingIOError):
        while True:
            ours.send(b"{}", socket.MSG_DONTWAIT)
    frames, tap = socket.socketpair()
    for _ in range(5):
        frames.send(b"x")
    recorded = []

    def read_into(_file: object) -> None:
        recorded.append(tap.recv(1))
        with suppress(BlockingIOError):
            while len(recorded) == 5:
                owner.recv(9, socket.MSG_DONTWAIT)

    made: Any = object.__new__(supervisor._Supervisor)
    made._owner, made._file, made._task = ours, None, SimpleNamespace(timeout_s=60.0)
    made._tap = SimpleNamespace(socket=tap, read_into=read_into)
    made._report(done=1)
    assert len(recorded) == 5
    assert ipc.receive(owner)[0] == {"done": 1}
    for end in (owner, ours, frames, tap):
        end.close()
