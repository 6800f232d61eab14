"""A guest agent as a sensor: what it reports, at a bounded rate."""

from __future__ import annotations

import struct

import pytest
from tests.fakes import guest as g
from tests.fakes.talking import talking

from belljar.errors import HostError
from belljar.isolation import touches
from belljar.isolation.touches import MAX_REPORTS, Access, watch_guest

pytestmark = pytest.mark.anyio


def touched(index: int, operation: int, name: str = "cat\x1b") -> bytes:
    """A TOUCHED."""
    return g.frame(g.TOUCHED, 0, struct.pack("<IHII", index, operation, 1, 7) + g.text(name))


async def test_touches_come_with_the_next_operation_and_escaped() -> None:
    """A file that can't be watched is named; all has come when the watch is closed."""
    async with talking() as (guest, client):
        guest.watch_errors = {1: 2}
        watch = await watch_guest(client, ["/a", "/b"])
        assert watch.missing == {"/b": "No such file or directory"}
        accesses, ends = list[Access](), list[str]()
        watch.begin(accesses.append, ends.append)
        await guest.send(touched(0, 1) + touched(0, 2))
        await watch.aclose()
        await watch.aclose()
        assert [(a.path, a.operation, a.pid) for a in accesses] == [
            ("/a", "open", 7),
            ("/a", "read", 7),
        ]
        assert all(access.process == r"cat\x1b" for access in accesses)
        assert ends == []


@pytest.mark.promise("5.6")
async def test_a_flood_is_bounded_and_ends_the_sensor_not_the_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what the guest may report in all, few are reported at once; then the sensor has ended."""
    monkeypatch.setattr(touches, "_MAX_TOUCHES", 500)
    async with talking() as (guest, client):
        watch = await watch_guest(client, ["/a"])
        accesses, ends = list[Access](), list[str]()
        watch.begin(accesses.append, ends.append)
        await guest.send(b"".join(touched(0, 1, str(number)) for number in range(500)))
        await client.ping()
        assert len(accesses) <= MAX_REPORTS
        assert len(ends) == 1
        await watch.aclose()
        await client.ping()


async def test_a_callback_that_raises_ends_the_sensor_not_the_channel() -> None:
    """Nor does a guest agent that can't watch."""

    def fail(access: Access) -> None:
        raise RuntimeError(access.path)

    async with talking() as (guest, client):
        watch = await watch_guest(client, ["/a"])
        ends = list[str]()
        watch.begin(fail, ends.append)
        await guest.send(touched(0, 1) + touched(0, 2))
        await client.ping()
        assert ends == ["RuntimeError: /a"]
        await watch.aclose()
        guest.watch_errno = 95
        with pytest.raises(HostError):
            await watch_guest(client, ["/a"])
