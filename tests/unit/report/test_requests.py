"""The requests of a range, as the report has them."""

from __future__ import annotations

import pytest
from tests.unit.report.stories import (
    ANSWER,
    NAME,
    RANGE,
    REQUEST,
    STREAM,
    judged,
    line,
    ranges_of,
    story,
)

from belljar.cli.findings import network_lines
from belljar.events import Kind
from belljar.report.requests import FIRST, LAST


def test_what_was_read_afterwards_is_told_as_of_its_own_time() -> None:
    """Requests between cells have numbers of their own, which are also the gateway's."""
    lines = story(
        line(Kind.NETWORK_HTTP, **REQUEST),
        line(Kind.NETWORK_HTTP, **REQUEST, traffic_analysis=True, at_s=1795329788.25),
        line(Kind.NETWORK_HTTP_ANSWERED, **{**ANSWER, "status": 403}, traffic_analysis=True),
        line(Kind.NETWORK_STREAM, **STREAM, traffic_analysis=True, at_s="soon"),
    )
    found = ranges_of(lines)[RANGE]
    (mine,), (theirs, raw) = found.requests, found.between_cells
    assert (mine.status, theirs.status, theirs.traffic_analysis) == (None, 403, True)
    assert theirs.time == "2026-11-22T06:43:08.250000Z"
    assert (raw.traffic_analysis, raw.time) == (True, "")


@pytest.mark.promise("5.4")
def test_the_first_and_the_last_are_told_and_the_rest_is_counted() -> None:
    """With how to see them; late answers of those between change nothing."""
    numbers = range(1, 1001)
    many = story(
        *(
            line(Kind.NETWORK_HTTP, **{**REQUEST, "exchange": n, "url": f"http://a/{n}"})
            for n in numbers
        ),
        *(
            line(Kind.NETWORK_HTTP_ANSWERED, **{**ANSWER, "exchange": n, "status": 200 + n % 7})
            for n in numbers
        ),
    )
    requests = ranges_of(many)[RANGE].requests
    listed = [*range(1, FIRST + 1), *range(1001 - LAST, 1001)]
    assert [request.what for request in requests] == [f"http://a/{n}" for n in listed]
    assert [request.status for request in requests] == [200 + n % 7 for n in listed]
    assert (requests.count, requests.between) == (1000, 1000 - FIRST - LAST)
    assert any(
        f"… {requests.between} more: belljar ledger show RUN" in each
        for each in network_lines(judged(many), "RUN")
    )


def test_what_cells_said_to_each_other_takes_no_room_of_the_gateways() -> None:
    """The last that the gateway answered are told, though many more were read afterwards."""
    numbers = range(FIRST + LAST + 1)
    many = story(
        *(
            line(Kind.NETWORK_HTTP, **{**REQUEST, "exchange": n, "url": f"http://a/{n}"})
            for n in numbers
        ),
        *(
            line(
                Kind.NETWORK_HTTP,
                **{**REQUEST, "exchange": n},
                traffic_analysis=True,
                ambiguous=n > 0,
            )
            for n in numbers
        ),
    )
    found = ranges_of(many)[RANGE]
    assert [request.what for request in found.requests][-1] == f"http://a/{FIRST + LAST}"
    assert (found.requests.between, found.between_cells.between) == (1, 1)
    assert (found.requests.ambiguous, found.between_cells.ambiguous) == (0, FIRST + LAST)


def test_a_raw_connection_is_told_when_it_ends() -> None:
    """By the name that was asked for; those that lasted as long as the range are counted."""
    opened = line(Kind.NETWORK_STREAM, **STREAM, phase="opened")
    closed = line(Kind.NETWORK_STREAM, **{**STREAM, "bytes": 9}, phase="closed", sent_bytes=4)
    name = line(Kind.NETWORK_DNS, **NAME, name="mail.example", answer="10.0.0.7")
    requests = ranges_of(story(name, opened, opened, closed))[RANGE].requests
    (told,) = requests
    assert (told.method, told.what, told.request_bytes, told.answer_bytes) == (
        "TCP",
        "mail.example:25",
        9,
        4,
    )
    assert requests.still_open == 1
    refused = line(Kind.NETWORK_STREAM, **{**STREAM, "verdict": "refused", "reason": "too many"})
    assert [each.verdict for each in ranges_of(story(refused))[RANGE].requests] == ["refused"]
