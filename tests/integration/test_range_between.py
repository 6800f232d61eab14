"""Traffic between the cells of a range: what they see of each other, and what is on record."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from tests.integration import test_range as ranges
from tests.integration.range_programs.between import (
    ANSWER_BYTES,
    CLOSED,
    DEAF,
    ECHO,
    FULL,
    FULL_BYTES,
    RESET,
    UNNAMED,
)
from tests.integration.test_range import Who, installed, who

__all__ = ["installed", "who"]
pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.mark.promise("5.4")
@pytest.mark.thorough_in("user")
def test_cells_reach_each_others_ports_as_if_directly(who: Who) -> None:
    """A target sees the client's own address. A closed port refuses at once, as does one that the
    plan does not name; half an end, an end and a reset pass; a target that reads nothing holds its
    client back. All of it is on record, each byte before it went on; what no connection had reached
    nobody.
    """
    seen = who.run("between")
    ranges.assert_gone(seen)
    assert (seen["before"], seen["up"]) == (["ConnectionRefusedError 111"], True)
    talked = seen["seen"]
    assert (talked["got"], talked["peer"]) == (ANSWER_BYTES, True)
    assert (talked["echo"], talked["half"]) == ("hello", "end")
    assert talked["full"] == FULL_BYTES
    assert 0 < talked["deaf"] < 8 << 20
    assert talked["reset"] == "ConnectionResetError"
    for port in (CLOSED, UNNAMED):
        error, took_s = talked[str(port)]
        assert error == "ConnectionRefusedError"
        assert took_s < 20  # refused, not given up after the 30 s that a dial may take
    assert seen["back"] == ["ConnectionRefusedError 111"]
    assert (seen["lie"], seen["forged"]) == ("", 0)
    assert seen["counters"]["forwarded"] == seen["counters"]["packets_not_recorded"] == 0
    streams = [event for event in seen["events"] if event["kind"] == "network.stream"]
    check_web([event for event in streams if event["port"] == 80])
    check_streams(streams)
    flows = [event for event in seen["events"] if event["kind"] == "network.flow"]
    refused = {flow["port"] for flow in flows if flow["verdict"] == "refused"}
    assert UNNAMED in refused
    assert CLOSED not in refused


def check_web(streams: list[dict[str, Any]]) -> None:
    """Each request's first bytes before its answer's; half of one when the range ended."""
    assert {event["between_cells"] for event in streams} == {True}
    assert {(event["cell"], event["stand_in"]) for event in streams} == {("agent", "other")}
    first, *_ = [event for event in streams if event["phase"] == "data"]
    assert first["bodies"]["received"][0].startswith("POST /real HTTP/1.1")
    whole, cut = (event for event in streams if event["phase"] == "closed")
    assert (whole["bytes"] > 100_000, whole["sent_bytes"] > 2 * ANSWER_BYTES) == (True, True)
    assert cut["reason"] == "the range ended"
    assert streams[-2]["bodies"]["received"][0].startswith("POST /half HTTP/1.1")


def check_streams(events: list[dict[str, Any]]) -> None:
    """First bytes piece by piece, each before what answers it; sums at the end."""
    by_port: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        by_port.setdefault(event["port"], []).append(event)
    opened, asked, answered, last, closed, *unfinished = by_port[ECHO]
    assert [event["phase"] for event in (opened, asked, answered, last, closed)] == [
        *("opened", "data", "data", "data", "closed")
    ]
    hello, end = (hashlib.sha256(word).hexdigest() for word in (b"hello", b"helloend"))
    assert asked["bodies"] == {"received": ["hello", 5, 5, hello]}
    assert answered["bodies"] == {"sent": ["hello", 5, 5, hello]}
    assert closed["bodies"] == {"received": ["", 0, 5, hello], "sent": ["", 0, 8, end]}
    assert unfinished[-1]["reason"] == "the range ended"
    assert unfinished[1]["bodies"]["received"][0] == "unfinished"
    full = by_port[FULL][-1]
    sent = hashlib.sha256(b"x" * FULL_BYTES).hexdigest()
    assert (full["sent_bytes"], full["bodies"]["sent"]) == (FULL_BYTES, ["", 0, FULL_BYTES, sent])
    assert by_port[DEAF][-1]["bytes"] < 8 << 20
    assert by_port[RESET][-1]["reason"] == "cut"
