"""Ranges whose cells send as much as they can, as root and as an ordinary user: the record has all
of it, or says how much it lacks."""

from __future__ import annotations

import pytest
from tests.integration import test_range as ranges

pytestmark = [pytest.mark.root, pytest.mark.slow]
who, installed = ranges.who, ranges.installed


@pytest.mark.promise("5.4")
@pytest.mark.thorough_in("user")
def test_no_cell_sends_faster_than_it_is_recorded(who: ranges.Who) -> None:
    """As fast as they can, whole segments and then the smallest datagrams: a port has its rate,
    whoever sends waits, nothing is lost and every frame is on record."""
    seen = who.run("heavy")
    ranges.assert_gone(seen)
    counters = seen["counters"]
    assert seen["taken"] == 32 << 20
    assert (seen["taken"] - (1 << 20)) / seen["sent_s"] <= seen["line_bytes_per_s"] <= 32 << 20
    assert counters["udp"] + counters["rate"] == seen["burst"]
    assert counters["packets_recorded"] > seen["burst"]
    if who.is_root:  # an ordinary user's buffer is for an eighth of a second, in which a busy host may not let the supervisor run
        assert counters["packets_not_recorded"] == 0


@pytest.mark.promise("5.4")
@pytest.mark.thorough_in("user")
def test_what_is_refused_at_the_very_end_is_in_an_event_or_counted(who: ranges.Who) -> None:
    """A range is ended at once after a burst, or within one: events' counts, lost ones and those
    beyond the rate of logging make up what the rules counted, which is what the host's own tool
    says and what was sent.
    """
    *taken, few, few_half_way, stopped, stopped_half_way = who.run("last_words")["rounds"]
    for seen in (*taken, few, few_half_way, stopped, stopped_half_way):
        assert seen["deaths"] == []
        assert seen["told"] + seen["logs_lost"] + seen["only_counted"] == seen["counted"], seen
        assert seen["seen"] == seen["sent"], seen
        assert (
            seen["counted"] > seen["sent"] if seen["goes_on"] else seen["counted"] == seen["sent"]
        ), seen
        assert seen["events"] < 250, seen
    assert min(few["only_counted"], few_half_way["only_counted"]) > 100
    assert min(stopped["logs_lost"], stopped_half_way["logs_lost"]) > 100


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("who", ["root"], indirect=True)
def test_frames_are_recorded_while_the_owner_is_late(who: ranges.Who) -> None:
    """While its ledger's disk does not answer for a moment, the supervisor waits with its word, and
    goes on writing what a cell sends."""
    seen = who.run("late")
    ranges.assert_gone(seen)
    assert seen["stuck"]
    assert seen["written"]
    assert seen["deaths"] == []
    assert seen["counters"]["packets_not_recorded"] == 0
