"""Queries that are counted together, when there is no memory to tell of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tests.fakes.gateway import layout

from belljar.network.gateway.bounds import Bounds
from belljar.network.gateway.dns import Answer
from belljar.network.gateway.dns_server import QueryRecord
from belljar.network.gateway.reporter import Item, Reporter
from belljar.network.gateway.site import Site

SAID = Answer(wire=b"", name="a.example", type="A", answer="NXDOMAIN")


def test_whoever_waits_for_a_sum_that_can_t_be_told_is_cut() -> None:
    """Each with `MemoryError`, which its server counts; the next sum is told."""
    failing = [MemoryError()]
    told: list[Item] = []
    cut: list[bool] = []

    def post(item: Item) -> asyncio.Future[Any]:
        if failing:
            raise failing.pop()
        told.append(item)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.set_result(b"")
        return done

    async def one(record: QueryRecord) -> None:
        try:
            await record.record("agent", SAID, "udp", b"")
        except MemoryError:
            cut.append(True)

    async def scene() -> None:
        reporter = cast("Reporter", SimpleNamespace(post=post))
        record = QueryRecord(Site(layout=layout(), stand_ins=(), bounds=Bounds(), reporter=reporter))
        record._has_token = lambda: False  # type: ignore[method-assign]
        async with asyncio.timeout(30):
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(one(record))
            await one(record)

    asyncio.run(scene())
    assert len(cut) == 3
    assert [item.data["count"] for item in told] == [1]
