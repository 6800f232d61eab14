"""How a flood of accesses is bounded, and which reads are the host's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.isolation.touches import (
    INTERVAL_S,
    MAX_QUEUED,
    MAX_REPORTS,
    Access,
    AccessLimit,
    HostReads,
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


def test_a_host_read_covers_its_files_until_the_queue_was_empty() -> None:
    """Also a directory's; and no others'."""
    reads = HostReads()
    reads.on_read("/root", "begins")
    assert reads.cover("/root/a")
    assert not reads.cover("/rootless")
    reads.on_read("/root", "ended")
    ended = reads.ended
    reads.forget(ended, read=3, is_empty=False)
    assert reads.cover("/root/a")
    reads.forget(ended, read=0, is_empty=True)
    assert not reads.cover("/root/a")


@pytest.mark.promise("5.6")
def test_a_queue_that_is_kept_full_covers_nothing_for_long() -> None:
    """What it can hold was read: all that the host did is among it. A read that ended later counts
    from its own end."""
    reads = HostReads()
    for path in ("/root", "/srv"):
        reads.on_read(path, "begins")
    reads.on_read("/root", "ended")
    ended = reads.ended
    reads.on_read("/srv", "ended")
    reads.forget(ended, read=MAX_QUEUED - 1, is_empty=False)
    assert reads.cover("/root/a")
    reads.forget(reads.ended, read=1, is_empty=False)
    assert not reads.cover("/root/a")
    assert reads.cover("/srv/a")


@pytest.mark.promise("5.6")
def test_a_flood_hides_no_file() -> None:
    """However many processes read one file, the first access to another is reported at once."""
    limit = AccessLimit()
    for number in range(10 * MAX_REPORTS):
        limit.add(opened(process=str(number), path="/bait"), 1.0)
    assert limit.add(opened(path="/other"), 1.0) == opened(path="/other")
