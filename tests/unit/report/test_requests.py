"""The requests of a range, as the report has them."""

from __future__ import annotations

import gc

import pytest
from tests.unit.report.stories import (
    ANSWER,
    NAME,
    RANGE,
    REQUEST,
    STREAM,
    judged,
    line,
    planned,
    ranges_of,
    story,
)

from belljar.cli.findings import network_lines
from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.report.collect import collect
from belljar.report.reading import ProbeTracker
from belljar.report.requests import FIRST, LAST, ReportedRequest


def test_traffic_between_cells_is_told_apart() -> None:
    """That of older runs too. Pieces of a stream are none of its own."""
    older = {"traffic_analysis": True}
    lines = story(
        line(Kind.NETWORK_HTTP, **REQUEST),
        line(Kind.NETWORK_HTTP, **REQUEST, **older),
        line(Kind.NETWORK_HTTP_ANSWERED, **{**ANSWER, "status": 403}, **older),
        *(line(Kind.NETWORK_STREAM, **STREAM, **older, **at) for at in ({"phase": "data"}, {})),
    )
    found = ranges_of(lines)[RANGE]
    (mine,), (theirs, raw) = found.requests, found.between_cells
    assert (mine.status, theirs.status, raw.method) == (None, 403, "TCP")


def request(number: int, **more: object) -> Line:
    """One of many."""
    data = {**REQUEST, "exchange": number, "url": f"http://a/{number}", **more}
    return line(Kind.NETWORK_HTTP, **data)


@pytest.mark.promise("5.4")
def test_the_first_and_the_last_are_told_and_the_rest_is_counted() -> None:
    """With how to see them; late answers of those between change nothing, those that never came
    hold nothing, and what cells said to each other takes no room of the gateway's."""
    numbers = range(1, 1001)
    answers = (
        line(Kind.NETWORK_HTTP_ANSWERED, **{**ANSWER, "exchange": n, "status": 200 + n % 7})
        for n in numbers
    )
    many = story(
        *map(request, numbers),
        *answers,
        *(request(n, between_cells=True) for n in range(2001, 4001)),
    )
    found = ranges_of(many)[RANGE]
    requests, listed = found.requests, [*range(1, FIRST + 1), *range(1001 - LAST, 1001)]
    assert [each.what for each in requests] == [f"http://a/{n}" for n in listed]
    assert [each.status for each in requests] == [200 + n % 7 for n in listed]
    assert (requests.count, requests.between) == (1000, 1000 - FIRST - LAST)
    assert found.between_cells.count == 2000
    held = [each for each in gc.get_objects() if isinstance(each, ReportedRequest)]
    assert len(held) <= 4 * (FIRST + LAST)
    assert any("3000 request(s)" in each for each in network_lines(collect(judged(many))))


def test_a_raw_connection_is_told_when_it_ends() -> None:
    """By the name that was asked for; those that lasted as long as the range are counted."""
    opened = line(Kind.NETWORK_STREAM, **STREAM, phase="opened")
    closed = line(Kind.NETWORK_STREAM, **{**STREAM, "bytes": 9}, phase="closed", sent_bytes=4)
    name = line(Kind.NETWORK_DNS, **NAME, name="mail.example", answer="10.0.0.7")
    requests = ranges_of(story(name, opened, opened, closed))[RANGE].requests
    (told,) = requests
    assert (told.method, told.what) == ("TCP", "mail.example:25")
    assert (told.request_bytes, told.answer_bytes) == (9, 4)
    assert requests.still_open == 1
    refused = line(Kind.NETWORK_STREAM, **{**STREAM, "verdict": "refused", "reason": "too many"})
    assert [each.verdict for each in ranges_of(story(refused))[RANGE].requests] == ["refused"]


def test_a_cell_that_ended_while_it_was_probed_hides_nothing_of_the_next() -> None:
    """Another cell of its name is not probed."""
    tracker = ProbeTracker()
    for event in (
        planned("c1", range=RANGE, name="web"),
        line(Kind.PROBE_STARTED, "c1", which="quick", phase="start", user=""),
    ):
        tracker.take(event)
    assert tracker.is_probed(RANGE, "web")
    tracker.take(line(Kind.CELL_DESTROYED, "c1", clean=True, survivors=[], ended="owner"))
    tracker.take(planned("c2", range=RANGE, name="web"))
    assert not tracker.is_probed(RANGE, "web")
    assert not tracker.is_probed(RANGE)
