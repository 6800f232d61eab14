"""Sensors of touched files: how a flood is bounded, which reads are the host's own, the threads that
read queues, marks on files of this host, and a guest agent as a sensor."""

from __future__ import annotations

import os
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes import guest as g
from tests.fakes.guest import FakeGuest
from tests.fakes.talking import talking

from belljar.channel import GuestClient
from belljar.errors import HostError
from belljar.isolation import touches
from belljar.isolation.oci.marks import Marked, Mechanism, mark_files
from belljar.isolation.touches import (
    INTERVAL_S,
    MAX_QUEUED,
    MAX_REPORTS,
    Access,
    AccessLimit,
    HostReads,
    QueueThread,
    watch_guest,
)


def opened(process: str = "cat", path: str = "/a") -> Access:
    """One open."""
    return Access(path=path, operation="open", process=process, pid=7)


def test_the_first_of_a_kind_is_reported_at_once_and_the_rest_counted() -> None:
    """One report an interval, which says how many it stands for."""
    limit = AccessLimit()
    assert limit.add(opened(), 10.0) == opened()
    assert [limit.add(opened(), 10.0 + n / 100) for n in range(50)] == [None] * 50
    assert limit.due(10.9) == []
    assert [access.count for access in limit.due(10.0 + INTERVAL_S)] == [50]
    assert limit.due(10.0 + 2 * INTERVAL_S) == []


@pytest.mark.promise("5.6")
@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 300), st.floats(0, 0.05))))
def test_nothing_is_lost_and_no_interval_has_too_many(
    accesses: list[tuple[str, int, float]],
) -> None:
    """Whatever names and times: the counts sum up, and reports are bounded."""
    limit, now_s, total, times = AccessLimit(), 100.0, 0, list[float]()
    for path, name, later_s in accesses:
        now_s += later_s
        reports = [limit.add(opened(process=str(name), path=path), now_s), *limit.due(now_s)]
        for report in filter(None, reports):
            total += report.count
            times.append(now_s)
    total += sum(access.count for access in limit.due(now_s, everything=True))
    assert total == len(accesses)
    for start_s in times:
        assert sum(start_s <= time_s < start_s + INTERVAL_S for time_s in times) <= 2 * MAX_REPORTS


@pytest.mark.promise("5.6")
def test_names_without_end_are_counted_as_one() -> None:
    """A process that changes its name at each access costs no memory of the host's."""
    limit = AccessLimit()
    for number in range(10_000):
        limit.add(opened(process=str(number)), 1.0)
    held = limit.due(1.0, everything=True)
    assert sum(access.count for access in held) == 10_000 - MAX_REPORTS
    assert len(held) < 200


@pytest.mark.promise("5.6")
@pytest.mark.parametrize("is_kept_full", [False, True])
def test_a_host_read_covers_its_files_until_the_queue_was_read(*, is_kept_full: bool) -> None:
    """Also a directory's; and no others'. Until the queue was empty, or as much was read as it can
    hold: all that the host did is among it. A read that ended later counts from its own end."""
    reads = HostReads()
    for path in ("/root", "/srv"):
        reads.on_read(path, "begins")
    assert reads.cover("/root/a")
    assert not reads.cover("/rootless")
    reads.on_read("/root", "ended")
    ended = reads.ended
    if is_kept_full:
        reads.on_read("/srv", "ended")
    reads.forget(ended, read=MAX_QUEUED - 1 if is_kept_full else 3, is_empty=False)
    assert reads.cover("/root/a")
    if is_kept_full:
        reads.forget(reads.ended, read=1, is_empty=False)
    else:
        reads.forget(ended, read=0, is_empty=True)
    assert not reads.cover("/root/a")
    assert reads.cover("/srv/a")


@pytest.mark.promise("5.6")
def test_a_flood_hides_no_file() -> None:
    """However many processes read one file, the first access to another is reported at once."""
    limit = AccessLimit()
    for number in range(10 * MAX_REPORTS):
        limit.add(opened(process=str(number), path="/bait"), 1.0)
    assert limit.add(opened(path="/other"), 1.0) == opened(path="/other")


def test_a_sensors_thread_ends_once() -> None:
    """By an error, which is said once, and nobody waits for it afterwards; by being stopped: a late
    word goes nowhere, as its descriptors' numbers are others' by then."""
    source, sink = os.pipe2(os.O_NONBLOCK)
    errors = list[str]()

    def read() -> int:
        raise OSError(5, "it broke")

    broken = QueueThread(lambda: source, read, errors.append)
    broken.start()
    broken.drain()
    broken.drain()
    broken.stop()
    assert len(errors) == 1
    stopped = QueueThread(lambda: source, lambda: -1, print)
    stopped.start()
    stopped.stop()
    theirs, theirs_too = os.pipe2(os.O_NONBLOCK)
    stopped.wake()
    with pytest.raises(BlockingIOError):
        os.read(theirs, 1)
    for fd in (source, sink, theirs, theirs_too):
        os.close(fd)


MECHANISMS = [pytest.param("fanotify", marks=pytest.mark.root), "inotify"]


@contextmanager
def marked(mechanism: Mechanism, root: Path, paths: list[str]) -> Iterator[Marked]:
    """The files below `root`, watched."""
    held = os.open(root, os.O_PATH | os.O_DIRECTORY)
    try:
        found = mark_files(mechanism, held, paths)
    finally:
        os.close(held)
    try:
        yield found
    finally:
        os.close(found.fd)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_what_is_no_file_of_the_root_is_missing(mechanism: Mechanism, tmp_path: Path) -> None:
    """No directory, no pipe (which is not waited for), nothing outside: a link there ends in it."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "out").symlink_to("/etc/passwd")
    (tmp_path / "up").symlink_to("../../../../../../etc/passwd")
    with marked(mechanism, tmp_path, ["/pipe", "/out", "/up", "/", "/gone"]) as found:
        assert set(found.missing) == {"/pipe", "/out", "/up", "/", "/gone"}
        assert found.files == {}


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
        assert len(accesses) <= MAX_REPORTS
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
    """Nobody reads the channel between two operations: a cell that dies meanwhile may have seen
    more than was told."""
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
