"""Streams to servers in a cell."""

from __future__ import annotations

import errno
from contextlib import suppress

import anyio
import pytest
from tests.fakes import guest as g
from tests.fakes.guest import FakeGuest, GuestOp
from tests.fakes.vm import staged

from belljar.errors import CellError
from belljar.events import Kind

pytestmark = [pytest.mark.anyio, pytest.mark.thorough_in("trio")]


async def relay(guest: FakeGuest, op: GuestOp) -> None:
    """Connected; a greeting together with the first byte; then it ends when it is signalled."""
    await guest.started(op)
    await guest.output(op, 1, b"\0hello")
    assert await guest.stdin(op) == b"you"
    while not op.signals:
        await op.news.wait()
    await guest.output(op, 1, b"late")
    await guest.finish(op, g.EXITED, 0)


@pytest.mark.promise("5.3")
async def test_a_stream_is_on_record() -> None:
    """Its target before, its bytes both ways afterwards."""
    counts = {"sent_bytes": 3, "received_bytes": 2}
    async with staged({b"connect": relay}) as stage:
        async with stage.cell.connect(8080) as stream:
            assert await stream.receive(2) == b"he"
            await stream.send(b"you")
        assert stage.kinds() == [Kind.CONNECT_STARTED, Kind.CONNECT_COMPLETED]
        assert stage.recorder.events[0].data["name"] == "8080"
        ended = stage.last(Kind.CONNECT_COMPLETED)
        assert {key: ended.data[key] for key in counts} == counts
        bodies = {body.name: body.content for body in ended.bodies}
        assert bodies == {"sent": b"you", "received": b"he"}


@pytest.mark.promise("5.3")
async def test_nothing_is_received_after_the_record() -> None:
    """Also when the block failed: what had come and was not taken by then is never given out."""

    async def greet(guest: FakeGuest, op: GuestOp) -> None:
        await guest.started(op)
        await guest.output(op, 1, b"\0hello")
        while not op.signals:
            await op.news.wait()
        await guest.finish(op, g.SIGNALED, 9)

    async with staged({b"connect": greet}) as stage:
        with suppress(LookupError):
            async with stage.cell.connect(8080) as stream:
                raise LookupError
        assert stage.last(Kind.CONNECT_FAILED).bodies == ()
        with pytest.raises(anyio.ClosedResourceError):
            await stream.receive()
    async with staged({b"sh": greet}) as stage:
        with suppress(LookupError):
            async with stage.cell.open_exec(["sh"]) as running:
                await stage.cell.ping()  # it has come by then
                raise LookupError
        assert not any(body.content for body in stage.last(Kind.EXEC_FAILED).bodies)
        assert [chunk async for chunk in running] == []


@pytest.mark.promise("5.3")
async def test_no_connection_is_on_record() -> None:
    """With the reason's number; a relay that says nothing at all is an error too."""

    async def refuse(guest: FakeGuest, op: GuestOp) -> None:
        await guest.started(op)
        await guest.output(op, 1, bytes([errno.ECONNREFUSED]))
        await guest.finish(op, g.EXITED, 0)

    async def mute(guest: FakeGuest, op: GuestOp) -> None:
        await guest.started(op)
        await guest.finish(op, g.SIGNALED, 9)

    for script, kind in ((refuse, ConnectionRefusedError), (mute, OSError)):
        async with staged({b"connect": script}) as stage:
            with pytest.raises(kind):
                async with stage.cell.connect(8080):
                    pytest.fail("connected")
            assert stage.kinds() == [Kind.CONNECT_STARTED, Kind.CONNECT_FAILED]
            assert "errno" in stage.last(Kind.CONNECT_FAILED).data


@pytest.mark.promise("5.3")
async def test_a_cell_that_dies_ends_the_stream() -> None:
    """With the cause, for who waits for bytes; what went by is on record."""

    async def greet(guest: FakeGuest, op: GuestOp) -> None:
        await guest.started(op)
        await guest.output(op, 1, b"\0hello")

    async with staged({b"connect": greet}) as stage:
        stage.vm.cause = "the host killed it"

        async def listen() -> None:
            async with stage.cell.connect("/run/s.sock") as stream:
                assert await stream.receive() == b"hello"
                stage.guest.close()
                await stream.receive()

        with pytest.raises(CellError, match="the host killed it"):
            await listen()
        assert set(stage.kinds()) == {Kind.CONNECT_STARTED, Kind.CONNECT_FAILED, Kind.CELL_FAILED}
        assert stage.last(Kind.CONNECT_FAILED).bodies[0].content == b"hello"
