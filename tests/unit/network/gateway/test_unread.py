"""Pieces of a body that their application has not read, when no more come or none are wanted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

from belljar.network.gateway.http1 import keep_unread, make_room


async def full() -> tuple[asyncio.Queue[str], SimpleNamespace]:
    """A queue without room, and a stream of hypercorn's that has it."""
    queue: asyncio.Queue[str] = asyncio.Queue(2)
    for piece in ("first", "second"):
        await queue.put(piece)
    return queue, SimpleNamespace(app_put=queue.put)


def test_the_end_is_told_behind_what_is_unread() -> None:
    """Nothing is dropped and nobody waits."""

    async def scene() -> None:
        queue, stream = await full()
        keep_unread(stream)
        make_room(stream)
        await asyncio.wait_for(stream.app_put("end"), 30)
        assert [queue.get_nowait() for _ in range(3)] == ["first", "second", "end"]

    asyncio.run(scene())


def test_who_waits_for_room_has_it() -> None:
    """The oldest is dropped, and the piece that waited takes its place."""

    async def scene() -> None:
        queue, stream = await full()
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(stream.app_put("third"))
            await asyncio.sleep(0)
            make_room(stream)
        assert [queue.get_nowait() for _ in range(2)] == ["second", "third"]

    asyncio.run(scene())


def test_a_stream_without_an_application() -> None:
    """None is none, and one that has not begun has nothing."""
    for stream in (None, SimpleNamespace()):
        keep_unread(stream)
        make_room(stream)
