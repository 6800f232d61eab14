"""A raw connection to a stand-in, without a network."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tests.fakes.gateway import layout

from belljar.network.gateway.config import Bounds
from belljar.network.gateway.site import Peer, Site
from belljar.network.gateway.stream import RecordedStream
from belljar.network.ipc import Item


def test_what_comes_behind_a_stand_ins_close_is_counted_and_no_fault() -> None:
    """A stand-in says its last and goes on; what its cell sends meanwhile ends nothing."""
    items: list[Item] = []
    said = asyncio.Queue[bytes]()
    was_taken, all_read = asyncio.Event(), asyncio.Event()

    class OnePipe:
        async def receive(self) -> bytes:
            if was_taken.is_set():
                all_read.set()
            data = await said.get()
            was_taken.set()
            return data

        async def send(self, data: bytes) -> None:
            said.put_nowait(b"late")

        async def close(self) -> None:
            pass

    async def app(reader: Any, writer: asyncio.StreamWriter, cell: str) -> None:  # noqa: ANN401
        writer.write(b"bye")
        writer.close()
        await all_read.wait()

    async def record(*made: Any) -> None:  # noqa: ANN401
        items.extend(each if isinstance(each, Item) else each() for each in made)

    async def run() -> None:
        reporter = cast("Any", SimpleNamespace(record=record, post=items.append))
        site = Site(layout=layout(), stand_ins=(), bounds=Bounds(), reporter=reporter)
        peer = Peer(cell="agent", address="127.0.76.2", port=22, number=1)
        async with asyncio.timeout(60):
            await RecordedStream(site, peer, cast("Any", OnePipe()), "shop").run(app)

    asyncio.run(run())
    closed = items[-1].data
    assert (closed["reason"], closed["bytes"], closed["sent_bytes"]) == ("", 4, 3)
