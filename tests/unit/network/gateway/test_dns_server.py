"""Queries that are counted together."""

from __future__ import annotations

import asyncio
import hashlib
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.gateway import layout

from belljar.network.gateway import dns_server
from belljar.network.gateway.config import Bounds
from belljar.network.gateway.dns import DnsAnswer
from belljar.network.gateway.dns_server import QueryRecord
from belljar.network.gateway.reporter import Reporter
from belljar.network.gateway.site import Site
from belljar.network.ipc import Item

REPLY = DnsAnswer(wire=b"", name="a.example", type="A", answer="NXDOMAIN")


@pytest.mark.promise("5.4")
def test_a_sum_keeps_every_message() -> None:
    """Each with its length in front, up to the bound; beyond it the total and the digest are of
    all."""
    queries = [bytes((number,)) * 300 for number in range(10)]
    framed = b"".join(struct.pack("!H", 300) + query for query in queries)
    items: list[Item] = []

    def post(item: Item) -> asyncio.Future[Any]:
        items.append(item)
        return asyncio.get_running_loop().create_future()

    async def scene() -> None:
        reporter = cast("Reporter", SimpleNamespace(post=post, is_full=False))
        bounds = Bounds(kept_body_bytes=1000)
        record = QueryRecord(Site(layout=layout(), stand_ins=(), bounds=bounds, reporter=reporter))
        for query in queries:
            record.count("agent", REPLY, "udp", query)
        record.flush_all()

    asyncio.run(scene())
    (body,) = items[0].bodies
    assert (body.name, body.content, body.total_bytes) == ("queries", framed[:1000], len(framed))
    assert body.sha256 == hashlib.sha256(framed).hexdigest()
    assert items[0].data["count"] == len(queries)


def test_a_sum_waits_for_room_in_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the owner is late nothing more is posted: the sum grows in count, and is posted when
    there is room."""
    monkeypatch.setattr(dns_server, "BATCH_S", 0.001)
    items: list[Item] = []

    def post(item: Item) -> asyncio.Future[Any]:
        items.append(item)
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        done.set_result(b"")
        return done

    async def scene() -> None:
        fake = SimpleNamespace(post=post, is_full=True)
        bounds = Bounds()
        record = QueryRecord(
            Site(layout=layout(), stand_ins=(), bounds=bounds, reporter=cast("Reporter", fake))
        )
        first = record.count("agent", REPLY, "udp", b"a")
        await asyncio.sleep(0.05)
        assert not items
        second = record.count("agent", REPLY, "udp", b"b")
        assert second is first
        fake.is_full = False
        await asyncio.wait_for(first, 30)

    asyncio.run(scene())
    assert [item.data["count"] for item in items] == [2]
