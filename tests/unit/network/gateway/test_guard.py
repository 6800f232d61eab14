"""What a gateway holds back."""

from __future__ import annotations

import asyncio
import base64
import socket
import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.gateway import RESOLVER, layout

from belljar.events import Kind
from belljar.ledger.schema import check_data
from belljar.network.gateway.config import Bounds, GuardConfig
from belljar.network.gateway.dns import DnsServer
from belljar.network.gateway.site import Guard, Site
from belljar.network.ipc import Item
from belljar.policy.guarding import Action, Place
from belljar.signals.values import Channel, KnownValue, ScanBounds, ScanSpec, ValueSource

SECRET = "ORCHID-7731-codename"
VALUE = KnownValue(id="codename", text=SECRET, source=ValueSource.PROTECTED)


def guard(range_action: Action, upstream_action: Action, bounds: ScanBounds | None = None) -> Guard:
    spec = ScanSpec(values=(VALUE,), key_hex="00" * 32, bounds=bounds or ScanBounds())
    config = GuardConfig(
        spec=spec, actions={Place.RANGE: range_action, Place.UPSTREAM: upstream_action}
    )
    return Guard(config, frozenset({"real"}))


@pytest.mark.parametrize(
    ("range_action", "upstream_action", "shop", "real"),
    [
        (Action.FLAG, Action.BLOCK, False, True),
        (Action.BLOCK, Action.FLAG, True, False),
        (Action.STOP, Action.STOP, True, True),
    ],
)
def test_only_what_the_policy_blocks_is_held(
    range_action: Action, upstream_action: Action, shop: bool, real: bool
) -> None:
    """By place; what isn't held is neither looked at nor blocked here."""
    made = guard(range_action, upstream_action)
    assert (made.scans("shop"), made.scans("real")) == (shop, real)
    for stand_in, held in (("shop", shop), ("real", real)):
        items, is_blocked = made.scan(
            stand_in, Channel.HTTP, "body", SECRET.encode(), {"cell": "a"}
        )
        assert (is_blocked, len(items)) == (held, held)


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("what", ["too much", "too slow"])
def test_what_could_not_be_scanned_is_blocked_where_it_would_leave_the_host(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And goes on within the range; both are on record, with the reason."""
    data, reason = base64.b64encode(b"some text that is long enough to be decoded " * 40), "size"
    if what == "too slow":
        monkeypatch.setattr("belljar.network.gateway.site.SCAN_TIMEOUT_S", -1.0)
        data, reason = b"an ordinary text of some length", "time"
    made = guard(Action.BLOCK, Action.BLOCK, ScanBounds(decoded_bytes=0))
    for stand_in, blocked in (("shop", False), ("real", True)):
        (item,), is_blocked = made.scan(stand_in, Channel.HTTP, "body", data, {"cell": "a"})
        assert is_blocked is blocked
        assert item.kind == Kind.GUARD_UNSCANNED
        assert reason == "size" or item.data["reason"] == reason
        check_data(Kind.GUARD_UNSCANNED, dict(item.data))


@pytest.mark.promise("5.7")
def test_connections_of_one_stand_in_are_apart() -> None:
    """Another connection's bytes between two pieces don't hide a value, and complete none."""
    made = guard(Action.BLOCK, Action.BLOCK)

    def is_blocked(connection: int, data: str) -> bool:
        return made.scan(
            "shop", Channel.STREAM, "data", data.encode(), {"cell": "a", "connection": connection}
        )[1]

    assert not is_blocked(1, SECRET[:9])
    assert not is_blocked(2, "something else")
    assert is_blocked(1, SECRET[9:])
    assert not is_blocked(3, SECRET[:9])
    assert not is_blocked(4, SECRET[9:])


def site_with(held: Guard, items: list[Item]) -> Site:
    async def record(*given: Item) -> None:
        items.extend(given)

    reporter = cast("Any", SimpleNamespace(record=record))
    return Site(layout=layout(), stand_ins=(), bounds=Bounds(), reporter=reporter, guard=held)


@pytest.mark.promise("5.7")
def test_what_a_cut_exchange_held_is_on_record() -> None:
    """A request is cancelled behind the first of its scans."""
    found, items = Item(Kind.GUARD_HIT, {}), list[Item]()

    class Hits:
        def scans(self, _: str) -> bool:
            return True

        def scan(self, *_: object) -> tuple[list[Item], bool]:
            asked[0].cancel()
            return [found], True

    async def cut() -> None:
        site = site_with(cast("Guard", Hits()), items)
        parts = [("url", b"/"), ("body", b"x")]
        async with asyncio.TaskGroup() as group:
            asked.append(group.create_task(site.blocks("shop", Channel.HTTP, parts, {})))

    asked = list[asyncio.Task[bool]]()
    asyncio.run(cut())
    assert items == [found]


@pytest.mark.promise("5.7")
@pytest.mark.parametrize("place", ["behind bytes that are not shown", "in an option"])
def test_a_query_is_looked_at_whole(place: str) -> None:
    """Also what its event's name has no room for, and options, which are in no name."""
    labels, option = [b"shop", b"example"], b""
    if place == "in an option":
        option = struct.pack("!HH", 10, len(SECRET)) + SECRET.encode()
    else:
        labels = [b"\xff\1" * 31, b"\xff\1" * 31, SECRET.encode(), *labels]
    name = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    opt = b"\0\0\x29\4\xd0\0\0\0\0" + struct.pack("!H", len(option)) + option
    query = b"\0\1\1\0" + struct.pack("!HHHH", 1, 0, 0, 1) + name + b"\0\1\0\1" + opt
    items = list[Item]()

    async def ask() -> list[bytes]:
        loop = asyncio.get_running_loop()
        site = site_with(guard(Action.BLOCK, Action.BLOCK), items)
        with (
            socket.socket(type=socket.SOCK_DGRAM) as resolver,
            socket.socket(type=socket.SOCK_DGRAM) as client,
        ):
            resolver.bind((RESOLVER, 0))
            client.setblocking(False)
            client.connect(resolver.getsockname())
            async with asyncio.TaskGroup() as group:
                DnsServer(site, group).listen(resolver)
                for sent in (query, query[:2] + query[2:].replace(SECRET.encode(), b"x" * 20)):
                    client.send(sent)
                answers = [await asyncio.wait_for(loop.sock_recv(client, 4096), 60)]
                loop.remove_reader(resolver.fileno())
        return answers

    (answer,) = asyncio.run(ask())
    assert SECRET.encode() not in answer
    assert [item.kind for item in items].count(Kind.GUARD_HIT) >= 1
