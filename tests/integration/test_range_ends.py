"""How ranges end: what is in progress is told, what can't be told is counted, and a full disk is
said."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration import test_range as ranges

pytestmark = [pytest.mark.root, pytest.mark.slow]
who, installed = ranges.who, ranges.installed


@pytest.mark.promise("5.4")
def test_who_says_no_last_word_ends_its_range_no_later(tmp_path: Path) -> None:
    """The supervisor has the last packets, logs and counts: without them the range has failed,
    whatever was seen before. A gateway that is stopped, and one that ends without a last word, is
    waited for no longer than the bound, and counted as evidence that is missing. One that says it
    unasked is not ours any more."""
    (tmp_path / "store").mkdir()
    seen = ranges.Who(None, tmp_path / "store").run("silent")
    ranges.assert_gone(seen["supervisor"])
    assert seen["supervisor"]["deaths"] == [["CellError", "the range's supervisor does not answer"]]
    ended = ["range.destroying", "range.failed", "range.destroyed"]
    assert seen["supervisor"]["kinds"][-3:] == ended
    for of_gateway in seen["gateways"]:
        ranges.assert_gone(of_gateway)
        assert (of_gateway["unreported"], of_gateway["deaths"]) == (1, [])
    assert seen["unasked"]["deaths"] == [
        ["ProtocolViolation", "the gateway broke its protocol: it has ended without a request"]
    ]


@pytest.mark.promise("5.4")
@pytest.mark.thorough_in("user")
def test_what_is_in_progress_when_a_range_ends_is_in_an_event(who: ranges.Who) -> None:
    """Half a request with TLS and without, a head, a mail, a sink's first bytes, a handshake: each
    once, and that the range ended. A connection was on record when it began."""
    seen = who.run("in_progress")
    ranges.assert_gone(seen)
    assert (seen["said"], seen["unreported"]) == ("begun\n", 0)
    told = [item for item in seen["after"] if item[0] != "network.connection"]
    ended = "the range ended"

    def of(kind: str, **wanted: object) -> tuple[dict[str, Any], dict[str, str]]:
        found = [
            item
            for item in told
            if item[0] == kind and all(item[1].get(name) == value for name, value in wanted.items())
        ]
        ((_, data, bodies),) = found
        return data, bodies

    for scheme, body in (("http", "half of it"), ("https", "half of another")):
        asked, bodies = of("network.http", url=f"{scheme}://site.example/", complete=False)
        assert bodies == {"request": body}
        assert of(
            "network.http.answered",
            exchange=asked["exchange"],
            status=0,
            request_bytes=len(body),
            reason=ended,
        )
    assert of("network.http", reason=ended)[1] == {
        "request": "GET /what?is=said HTTP/1.1\r\nHost: si"
    }
    assert of("network.stream", stand_in="", reason=f"sink; {ended}")[1] == {
        "received": "fifteen bytes.\n"
    }
    assert of("network.stream", stand_in="mail", phase="closed", reason=ended)[1][
        "received"
    ].endswith("\r\nhalf a li")
    assert of("network.attempt", what="mail", complete=False)[1] == {
        "message": "Subject: x\r\n\r\nhalf a li"
    }
    assert of("network.tls", sni=None, reason=ended)
    assert len(told) == 9


@pytest.mark.promise("5.4")
def test_the_end_puts_no_more_on_record_than_the_range_may(tmp_path: Path) -> None:
    """Sixty heads of two KiB, and room for a part of them: each event that
    is left out is counted, and the range ends in order."""
    seen = ranges.Who(None, tmp_path).run("end_full_record")
    ranges.assert_gone(seen)
    assert seen["deaths"] == []
    counters = seen["counters"]
    assert counters["recorded_bytes"] <= 64 << 10
    assert seen["told"] + counters["unreported_at_end"] == 60
    assert 0 < counters["unreported_at_end"] < 60


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory with 96 KiB of room."""
    home = tmp_path / "store"
    (home / "small").mkdir(parents=True)
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96k", "none", str(home / "small")], check=True
    )
    try:
        yield home
    finally:
        subprocess.run(["umount", str(home / "small")], check=True)


def test_a_full_disk_ends_the_range(small_disk: Path) -> None:
    """When the packet record can't be written the range has failed, and says so: also when only the
    last packets find no room."""
    for seen in ranges.Who(None, small_disk).run("full").values():
        ((error, what),) = seen["deaths"]
        assert error == "CellError"
        assert "No space left on device" in what
        assert "range.failed" in seen["kinds"]
        ranges.assert_gone(seen)
