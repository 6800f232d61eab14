"""Watched files on the wire: what a guest may report, and when."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from tests.fakes import guest as g
from tests.fakes.wires import refused, renewed

from belljar.channel.frames import Answer, FrameType, Touched
from belljar.channel.wire import HostConnection


def asked(paths: int = 2, touches: int = 3) -> HostConnection:
    wire = renewed()
    assert wire.send_watch(["/a"] * paths, touches)
    return wire


def watching() -> HostConnection:
    """It was answered: the second file can't be watched."""
    wire = asked()
    assert wire.feed(watched(0, 0, 2)) == [Answer(kind=FrameType.WATCHED, errors=(0, 2))]
    return wire


def watched(code: int, *errors: int) -> bytes:
    return g.frame(g.WATCHED, 0, struct.pack(f"<{2 + len(errors)}I", code, len(errors), *errors))


def touched(index: int = 0, operation: int = 1, count: int = 1, name: str = "cat") -> bytes:
    return g.frame(g.TOUCHED, 0, struct.pack("<IHII", index, operation, count, 7) + g.text(name))


def test_touches_are_reported_until_the_watch_ends() -> None:
    """With their file's place; what comes between the host's WATCH and its answer counts, too."""
    wire = watching()
    touch = Touched(index=1, operation=2, count=5, pid=7, process="cat")
    assert wire.feed(touched(1, 2, 5)) == [touch]
    wire.send_watch([], 0)
    assert wire.feed(touched(1, 2, 5) + watched(0)) == [touch, Answer(kind=FrameType.WATCHED)]
    refused(wire, touched(), "on file 0")


@pytest.mark.promise("5.6")
def test_what_a_guest_may_not_report() -> None:
    """Files that nobody named, counts that can't be, more than it was allowed."""
    cases: tuple[tuple[Callable[[], HostConnection], bytes, str], ...] = (
        (renewed, watched(0), "not asked for"),
        (renewed, touched(), "on file 0"),
        (asked, touched(), "on file 0"),
        (asked, watched(0, 0), "1 answers for 2"),
        (asked, watched(0, 0, 0, 0), "3 answers for 2"),
        (asked, watched(0), "0 answers for 2"),
        (asked, watched(4096), "errno 4096"),
        (asked, watched(0, 0, 4096), "errno"),
        (watching, touched(2), "on file 2"),
        (watching, touched(0, 0), "operation 0"),
        (watching, touched(0, 4), "operation 4"),
        (watching, touched(0, 1, 0), "0 times"),
        (watching, touched(name="x" * 257), "too long"),
        (watching, touched() * 4, "more touches"),
    )
    for make, said, why in cases:
        refused(make(), said, why)
