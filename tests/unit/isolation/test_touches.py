"""Sensors of touched files: bounds of a flood, host reads, queues, marks, guest agents."""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import guest as g
from tests.fakes.guest import FakeGuest
from tests.fakes.talking import talking

from belljar.channel import GuestClient
from belljar.channel.operations import OwnReads
from belljar.errors import HostError
from belljar.isolation import touches
from belljar.isolation.oci.marks import mark_files
from belljar.isolation.touches import (
    INTERVAL_S,
    MAX_KEYS,
    Access,
    FileWatch,
    QueueThread,
    QueueWatch,
    watch_guest,
)


def opened(process: str = "cat", path: str = "/a") -> Access:
    return Access(path=path, operation="open", process=process, pid=7)


def test_the_first_of_a_kind_is_reported_at_once_and_the_rest_counted() -> None:
    """One report an interval, which says how many it stands for."""
    limit = FileWatch()
    limit.add(opened())
    assert limit.due(10.0) == [opened()]
    for _ in range(50):
        limit.add(opened())
    limit.add(opened(path="/b"))
    assert limit.due(10.9) == [opened(path="/b")]
    (crowd,) = limit.due(10.0 + INTERVAL_S)
    assert (crowd.count, crowd.process, crowd.pid) == (50, "cat", 7)
    assert limit.due(10.0 + 2 * INTERVAL_S) == []
    for number in range(1000):
        limit.add(opened(process=str(number)))
    limit.add(opened(path="/c"))
    crowd_and_other = limit.due(100.0)
    assert sum(access.count for access in crowd_and_other) == 1001
    assert len(crowd_and_other) <= MAX_KEYS + 2


@pytest.mark.promise("5.6")
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 300), st.floats(0, 0.5))))
def test_nothing_is_lost_and_no_interval_has_too_many(
    accesses: list[tuple[str, int, float]],
) -> None:
    """Whatever names and times: the counts sum up, and a name has one report an interval."""
    limit, now_s, total, times = FileWatch(), 100.0, 0, dict[str, float]()
    for path, name, later_s in accesses:
        now_s += later_s
        limit.add(opened(process=str(name), path=path))
        for report in limit.due(now_s):
            total += report.count
            key = f"{report.path} {report.process}"
            assert now_s - times.get(key, 0.0) >= INTERVAL_S
            times[key] = now_s
    total += sum(access.count for access in limit.due(now_s, everything=True))
    assert total == len(accesses)


@pytest.mark.promise("5.6")
@pytest.mark.anyio
async def test_a_host_read_covers_its_files_while_the_queue_is_emptied() -> None:
    """Also all of a copied directory, and no others': not those below a path that is to be read
    as a file. Neither what came before nor what comes after."""
    source, sink = os.pipe2(os.O_NONBLOCK)
    queued, own, told = ["/root/before"], OwnReads(), list[str]()

    def read() -> int:
        while queued:
            watch.offer(opened(path=queued.pop()))
        watch.report()
        return 0

    thread = QueueThread(lambda: source, read, print)
    watch = QueueWatch(own, thread)
    watch.begin(lambda access: told.append(access.path), print)
    async with own.of("/srv/a", "/"), own.of("/", "/"):
        thread.start()
        async with own.of("/root", "/", is_tree=True):
            queued += ["/root/a", "/srv/a", "/rootless"]
        queued += ["/root/after"]
    await watch.aclose()
    assert told == ["/root/before", "/rootless", "/root/after"]
    thread.stop()
    for fd in (source, sink):
        os.close(fd)


def test_what_is_no_file_of_the_root_is_missing(tmp_path: Path) -> None:
    """No directory, no pipe (which is not waited for), nothing outside: a link there ends in it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("../../../../../../etc/passwd")
    held = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    paths = ["/pipe", "/out", "/up", "/", "/gone"]
    try:
        assert mark_files(-1, held, paths)[1].keys() == set(paths)
    finally:
        os.close(held)


pytestmark = pytest.mark.anyio


def touched(index: int, operation: int, name: str = "cat\x1b") -> bytes:
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


@asynccontextmanager
async def watched(
    on_access: Callable[[Access], None] | None = None,
) -> AsyncIterator[tuple[FakeGuest, GuestClient, list[Access], list[str]]]:
    """A file that a guest agent watches, what it has reported, and how that ended."""
    async with talking() as (guest, client):
        watch = await watch_guest(client, ["/a"])
        accesses, ends = list[Access](), list[str]()
        watch.begin(on_access or accesses.append, ends.append)
        yield guest, client, accesses, ends
        await watch.aclose()
        await client.ping()


@pytest.mark.promise("5.6")
async def test_a_flood_is_bounded_and_ends_the_sensor_not_the_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what the guest may report in all, few are reported at once; then the sensor has ended."""
    monkeypatch.setattr(touches, "_MAX_TOUCHES", 500)
    async with watched() as (guest, client, accesses, ends):
        await guest.send(b"".join(touched(0, 1, str(number)) for number in range(500)))
        await client.ping()
        assert len(accesses) <= MAX_KEYS + 1
        assert len(ends) == 1


@pytest.mark.promise("5.6")
async def test_what_the_guests_kernel_dropped_is_said_once() -> None:
    """The sensor goes on: what comes later is reported."""
    async with watched() as (guest, _, accesses, ends):
        await guest.send(touched(0, 3) * 2 + touched(0, 1))
    assert [access.operation for access in accesses] == ["open"]
    assert len(ends) == 1
    assert "lost" in ends[0]


@pytest.mark.promise("5.6")
async def test_what_a_dead_cell_saw_last_is_lost_and_that_is_said() -> None:
    """Nobody reads the channel between two operations."""
    async with talking() as (_guest, client):
        watch = await watch_guest(client, ["/a"])
        ends = list[str]()
        watch.begin(list[Access]().append, ends.append)
        await client.aclose()
        await watch.aclose()
        assert len(ends) == 1
        assert "lost" in ends[0]


async def test_a_callback_that_raises_ends_the_sensor_not_the_channel() -> None:
    """Nor does a guest agent that can't watch."""

    def fail(access: Access) -> None:
        raise RuntimeError(access.path)

    async with watched(fail) as (guest, client, _, ends):
        await guest.send(touched(0, 1) + touched(0, 2))
        await client.ping()
        assert ends == ["RuntimeError: /a"]
        guest.watch_errno = 95
        with pytest.raises(HostError):
            await watch_guest(client, ["/a"])
