"""How ranges end: what is in progress is told, what can't be told is counted, and a full disk is
said. Cells that send as much as they can, and cells that talk to each other: the record has all of
it, or says how much it lacks."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from tests.integration.faults import mounted
from tests.integration.range_programs.between import ANSWER_BYTES, CLOSED, DEAF, ECHO, UNNAMED
from tests.integration.test_range import Who, assert_gone, installed, who

__all__ = ["installed", "who"]
pytestmark = [pytest.mark.root, pytest.mark.slow]


as_root = pytest.mark.parametrize("who", ["root"], indirect=True)


@pytest.mark.promise("5.4")
@as_root
def test_who_says_no_last_word_ends_its_range_no_later(who: Who) -> None:
    """The supervisor has the last packets, logs and counts."""
    seen = who.run("silent")
    for part in seen.values():
        assert_gone(part)
    assert seen["supervisor"]["deaths"] == [["CellError", "the range's supervisor does not answer"]]
    ended = ["range.destroying", "range.failed", "range.destroyed"]
    assert seen["supervisor"]["kinds"][-3:] == ended
    assert (seen["gateway"]["unreported"], seen["gateway"]["deaths"]) == (1, [])


@pytest.mark.promise("5.4")
@pytest.mark.thorough_in("user")
def test_what_is_in_progress_when_a_range_ends_is_in_an_event(who: Who) -> None:
    """Half a request with TLS and without, a head, a mail, a sink's first bytes, a handshake."""
    seen = who.run("in_progress")
    assert_gone(seen)
    assert (seen["said"], seen["unreported"]) == ("begun\n", 0)
    told = [item for item in seen["after"] if item[0] != "network.connection"]
    ended = "the range ended"

    def of(kind: str, **wanted: object) -> tuple[dict[str, Any], dict[str, str]]:
        found = [each for each in told if each[0] == kind and wanted.items() <= each[1].items()]
        ((_, data, bodies),) = found
        return data, bodies

    for scheme, body in (("http", "half of it"), ("https", "half of another")):
        asked, bodies = of("network.http", url=f"{scheme}://site.example/", complete=False)
        assert bodies == {"request": body}
        answer = {"exchange": asked["exchange"], "status": 0, "request_bytes": len(body)}
        assert of("network.http.answered", reason=ended, **answer)
    _, head = of("network.http", reason=ended)
    assert head == {"request": "GET /what?is=said HTTP/1.1\r\nHost: si"}
    _, sunk = of("network.stream", stand_in="", reason=f"sink; {ended}")
    assert sunk == {"received": "fifteen bytes.\n"}
    _, mailed = of("network.stream", stand_in="mail", phase="closed", reason=ended)
    assert mailed["received"].endswith("\r\nhalf a li")
    _, mail = of("network.attempt", what="mail", complete=False)
    assert mail == {"message": "Subject: x\r\n\r\nhalf a li"}
    assert of("network.tls", sni=None, reason=ended)
    assert len(told) == 9


def test_a_full_disk_ends_the_range(tmp_path: Path) -> None:
    """When the packet record can't be written the range has failed, and says so."""
    with mounted(tmp_path / "small", "size=96k"):
        seen = Who(None, tmp_path).run("full")
    ((error, what),) = seen["deaths"]
    assert (error, "No space left on device" in what) == ("CellError", True)
    assert "range.failed" in seen["kinds"]
    assert_gone(seen)


# ---- cells that send as much as they can


@pytest.mark.promise("5.4")
@pytest.mark.thorough_in("user")
def test_no_cell_sends_faster_than_it_is_recorded(who: Who) -> None:
    """As fast as they can, whole segments and then the smallest datagrams."""
    seen = who.run("heavy")
    assert_gone(seen)
    counters = seen["counters"]
    assert seen["taken"] == 8 << 20
    assert (seen["taken"] - (1 << 20)) / seen["sent_s"] <= seen["line_bytes_per_s"] <= 32 << 20
    assert counters["udp"] + counters["rate"] == seen["burst"]
    assert counters["packets_recorded"] > seen["burst"]
    if who.is_root:  # an ordinary user's buffer is for an eighth of a second, in which a busy host may not let the supervisor run
        assert counters["packets_not_recorded"] == 0


@pytest.mark.promise("5.4")
@pytest.mark.thorough_in("user")
def test_what_is_refused_at_the_very_end_is_in_an_event_or_counted(who: Who) -> None:
    """A range is ended at once after a burst, or within one."""
    few, stopped = rounds = who.run("last_words")["rounds"]
    for seen in rounds:
        assert seen["deaths"] == []
        assert seen["told"] + seen["logs_lost"] + seen["only_counted"] == seen["counted"], seen
        assert seen["seen"] == seen["sent"], seen
        assert (
            seen["counted"] > seen["sent"] if seen["goes_on"] else seen["counted"] == seen["sent"]
        ), seen
        assert seen["events"] < 250, seen
    assert min(few["only_counted"], stopped["logs_lost"]) > 100


# ---- cells that talk to each other


@pytest.mark.promise("5.4")
@pytest.mark.thorough_in("user")
def test_cells_reach_each_others_ports_as_if_directly(who: Who) -> None:
    """A target sees the client's own address."""
    seen = who.run("between")
    assert_gone(seen)
    assert (seen["before"], seen["up"]) == (["ConnectionRefusedError 111"], True)
    talked = seen["seen"]
    assert (talked["got"], talked["peer"]) == (ANSWER_BYTES, True)
    assert (talked["echo"], talked["half"]) == ("hello", "end")
    assert 0 < talked["deaf"] < 8 << 20
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
    of_agent = {"kind": "network.flow", "verdict": "refused", "cell": "agent"}.items()
    refused = {event["port"] for event in seen["events"] if of_agent <= event.items()}
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
    # The first ones only looked whether the target is up
    at = [event["bodies"].get("received", [""])[0] for event in by_port[ECHO]].index("hello") - 1
    opened, asked, answered, last, closed, *unfinished = by_port[ECHO][at:]
    assert [event["phase"] for event in (opened, asked, answered, last, closed)] == [
        *("opened", "data", "data", "data", "closed")
    ]
    hello, end = (hashlib.sha256(word).hexdigest() for word in (b"hello", b"helloend"))
    assert asked["bodies"] == {"received": ["hello", 5, 5, hello]}
    assert answered["bodies"] == {"sent": ["hello", 5, 5, hello]}
    assert closed["bodies"] == {"received": ["", 0, 5, hello], "sent": ["", 0, 8, end]}
    assert unfinished[-1]["reason"] == "the range ended"
    assert unfinished[1]["bodies"]["received"][0] == "unfinished"
    assert by_port[DEAF][-1]["bytes"] < 8 << 20
