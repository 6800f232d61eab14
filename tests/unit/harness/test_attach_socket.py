"""A cell's attach socket."""

from __future__ import annotations

import socket

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.harness.runs import close, opened

from belljar.harness.attach import (
    MAX_PAYLOAD_BYTES,
    AttachError,
    FrameKind,
    FrameReader,
    frame,
    release_cells,
    remove_dead_sockets,
)
from belljar.harness.session import Session


@given(st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=300))), st.integers(1, 64))
def test_frames_survive_any_chopping(sent: list[tuple[FrameKind, bytes]], step: int) -> None:
    """What is sent is read, whatever the chunks."""
    wire = b"".join(frame(kind, payload) for kind, payload in sent)
    reader = FrameReader()
    received = [
        got
        for start in range(0, len(wire), step)
        for got in reader.feed(wire[start : start + step])
    ]
    assert received == sent


@given(st.binary(max_size=4096))
def test_garbage_is_an_error_or_frames_never_more_memory(garbage: bytes) -> None:
    """A broken peer can't make the reader hold more than a frame."""
    reader = FrameReader()
    try:
        for _, payload in reader.feed(garbage):
            assert len(payload) <= MAX_PAYLOAD_BYTES
    except AttachError:
        pass


@pytest.mark.anyio
async def test_a_door_without_an_owner_is_removed(session: Session) -> None:
    """What a crashed owner left is cleaned up by the next who looks; nobody else may open one."""
    environment, other = await opened(), await opened()
    path = environment.attach_socket.path
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.unlink()
    with socket.socket(socket.AF_UNIX) as crashed:
        crashed.bind(str(path))
    removed = await anyio.to_thread.run_sync(remove_dead_sockets, session.home)
    assert removed == [environment.cell.id]
    assert (path.exists(), other.attach_socket.path.exists()) == (False, True)
    assert await anyio.to_thread.run_sync(release_cells, environment.cell.id, session.home) == []
    await close(other)
    await close(environment)
