"""What a run's report says of a range: what its record lacks, and how it ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.report.stories import (
    ENDED,
    FLOW,
    NAME,
    RANGE,
    STREAM,
    findings_of,
    judged,
    line,
    ranges_of,
    story,
)

from belljar.cli.findings import network_lines
from belljar.events import Kind
from belljar.ledger.schema import BodyRef, Line
from belljar.probe.model import Verdict
from belljar.report.collect import collect
from belljar.report.reasons import Reason, ReasonCode

# Whether a packet that the policy's bound threw away is in an event
WHOLE, LOST = ({"packets_recorded_and_dropped": 9, "packets_unaccounted": n} for n in (0, 2))


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"counters": {"packets_not_recorded": 3}}, "3 packet(s) are in no packet record"),
        ({"counters": {"logs_lost": 1}}, "1 refused or allowed packet(s) are in no event"),
        ({"counters": {"unreported_at_end": 2}}, "2 thing(s) or more that were cut by the range's"),
        ({"clean": False, "survivors": ["a process"]}, "its destruction left a process"),
        ({"clean": False, "not_checked": ["mounts"]}, "its destruction is not proven"),
        ({"destroyed": False}, "its destruction is not on record"),
        ({"counters": {"packets_recorded_and_dropped": 9}}, "9 packet(s) were thrown away"),
        ({"counters": LOST}, "2 packet(s) were thrown away that no event holds whole"),
        ({"counters": WHOLE}, ""),
    ],
)
def test_missing_evidence_voids_the_sample(end: dict[str, Any], why: str) -> None:
    """What a range's record lacks, and an end that is not proven. What the policy's bound threw
    away is told, and is a fault unless events hold it whole."""
    findings = judged(story(**end))
    (row,) = findings.rows
    assert row.verdict is (Verdict.VOID if why else Verdict.CONTAINED)
    assert why in "; ".join(map(str, row.reasons))
    assert findings.exit_code == (2 if why else 0)
    lost = [each for each in network_lines(collect(findings)) if "EVIDENCE MISSING" in each]
    assert bool(lost) == ("counters" in end and bool(why))


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    ("unread", "not_recorded", "said"),
    [
        (9, 0, ["9 packet(s) were thrown away"]),
        (9, 2, ["2 packet(s) are in no", "7 packet(s) were thrown away"]),
        (2, 2, ["2 packet(s) are in no"]),
    ],
)
def test_talk_of_cells_that_nobody_read_voids_the_sample(
    unread: int, not_recorded: int, said: list[str]
) -> None:
    """Older runs read it from the packet record: overwritten packets are missing evidence, told
    once. What is left in the packet record is not missing."""
    limit = {"value": 1, "traffic_analysis": True, "effect": "", "count": unread}
    counters = {"packets_not_recorded": not_recorded, "packets_recorded_and_dropped": 7}
    lines = story(counters={**counters, "packets_unaccounted": 0})
    alone = line(Kind.LIMIT_HIT, **{**limit, "limit": "traffic_analysis_events"})
    (row,) = judged([*lines, alone]).rows
    assert (row.verdict is Verdict.VOID) == bool(not_recorded)
    both = line(Kind.LIMIT_HIT, **{**limit, "limit": "traffic_analysis_packets"})
    (row,) = judged([*lines, alone, both]).rows
    assert row.verdict is Verdict.VOID
    assert len(row.reasons) == len(said)
    assert all(word in str(reason) for word, reason in zip(said, row.reasons, strict=True))


@pytest.mark.promise("5.4")
def test_a_reader_that_was_felled_voids_the_sample() -> None:
    """What a cell sent may be why: then it has hidden what else was said."""
    limit = {"limit": "traffic_analysis_reader", "value": 20, "effect": "it died"}
    (row,) = judged(story(line(Kind.LIMIT_HIT, **limit))).rows
    codes = [(reason.code, reason.detail) for reason in row.reasons]
    assert codes == [(ReasonCode.TRAFFIC_ANALYSIS_ENDED, "it died")]


@pytest.mark.promise("5.4")
def test_an_address_has_all_names_that_led_to_it() -> None:
    """As a catch-all's has: in a connection, and among what was let through or refused, whenever
    they were asked for."""
    names = ("a.example", "A.example.", "b.example", "c.example", "d.example")
    lines = story(
        line(Kind.NETWORK_STREAM, **STREAM),
        line(Kind.NETWORK_FLOW, **{**FLOW, "address": "10.0.0.7"}),
        *(line(Kind.NETWORK_DNS, **NAME, name=name, answer="10.0.0.7") for name in names),
        line(Kind.NETWORK_FLOW, **{**FLOW, "address": "10.0.0.7"}),
    )
    found = ranges_of(lines)[RANGE]
    said = "(a.example, b.example, c.example and other names)"
    assert [request.what for request in found.requests] == [f"10.0.0.7:25 {said}"]
    assert [flow.to.named for flow in found.flows.values()] == [{f"10.0.0.7:22 {said}": 2}]


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    ("error", "verdict"), [("CellError", Verdict.VOID), ("ContainmentBreach", Verdict.BREACHED)]
)
def test_a_range_that_died_contained_nothing(error: str, verdict: Verdict) -> None:
    """A part that ended, or rules that somebody changed."""
    (row,) = judged(story(line(Kind.RANGE_FAILED, error=error, reason="the supervisor ended"))).rows
    assert row.verdict is verdict
    assert [(reason.where, reason.detail) for reason in row.reasons] == [
        (f"range {RANGE}", "the supervisor ended")
    ]


@pytest.mark.parametrize(
    ("end", "reasons"), [({}, 1), ({"counters": {}}, 1), ({"counters": {"logs_lost": 0}}, 0)]
)
def test_an_end_that_counted_nothing_is_missing_evidence(end: dict[str, Any], reasons: int) -> None:
    """Of a range that was open somebody counted; that nobody says how many packets were lost is not
    that none was."""
    (row,) = judged(story(line(Kind.RANGE_OPENED, duration_ms=1.0), **end)).rows
    assert [reason.code for reason in row.reasons] == [ReasonCode.PACKETS_NOT_RECORDED] * reasons


def test_the_end_of_a_range_of_no_sample_is_looked_at_too() -> None:
    """One that was made ahead, or of a sample that never began."""
    opened = [line(Kind.RANGE_OPENING, prefix="10.0.0.0/22")]
    empty = Reason(code=ReasonCode.NO_SAMPLES)

    def found(code: ReasonCode, detail: str = "") -> tuple[Reason, Reason]:
        return Reason(code=code, where=f"range {RANGE}", detail=detail), empty

    assert findings_of([], opened).problems == found(ReasonCode.RANGE_NOT_DESTROYED)
    assert findings_of([], [*opened, line(Kind.RANGE_DESTROYED, **ENDED)]).problems == (empty,)
    died = line(Kind.RANGE_FAILED, error="ContainmentBreach", reason="the rules were changed")
    findings = findings_of([], [*opened, died, line(Kind.RANGE_DESTROYED, **ENDED)])
    assert findings.verdict is Verdict.BREACHED
    assert findings.problems == found(ReasonCode.RANGE_BREACHED, "the rules were changed")


def connection(**changes: object) -> dict[str, Any]:
    """The last event of a connection."""
    place = {"cell": "agent", "address": "10.0.0.2", "port": 80, "source_port": 9}
    return {**place, "connection": 1, "phase": "closed", **changes}


def secrets(kept_bytes: int, **changes: object) -> Line:
    """An event of a connection with secrets of TLS, of which so many bytes of 100 were kept."""
    digest = "0" * 64
    body = BodyRef(
        name="secrets", sha256=digest, total_bytes=100, kept_bytes=kept_bytes, stored_sha256=digest
    )
    return replace(line(Kind.NETWORK_CONNECTION, **connection(**changes)), bodies=(body,))


@pytest.mark.promise("5.4")
def test_bytes_that_are_in_no_event_void_the_sample() -> None:
    """What a gateway of an older version received and has nowhere is missing evidence."""
    kept = connection()
    (found,) = ranges_of([line(Kind.NETWORK_CONNECTION, **data) for data in (kept, kept)]).values()
    assert not any(each.code is ReasonCode.BYTES_NOT_RECORDED for each in found.lost)
    lost = connection(missing_bytes=3, accounted=False)
    (found,) = ranges_of([line(Kind.NETWORK_CONNECTION, **data) for data in (kept, lost)]).values()
    assert [each.code for each in found.lost if each.code is ReasonCode.BYTES_NOT_RECORDED] != []


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("phase", ["open", "closed"])
@pytest.mark.parametrize("kept_bytes", [0, 99, 100])
def test_secrets_of_tls_that_were_cut_void_the_sample(phase: str, kept_bytes: int) -> None:
    """Without them nobody can read what the connection's packets hold."""
    (found,) = ranges_of([secrets(kept_bytes, phase=phase)]).values()
    codes = [each.code for each in found.lost if each.code is ReasonCode.BYTES_NOT_RECORDED]
    assert bool(codes) == (kept_bytes < 100)


@pytest.mark.promise("5.4")
def test_tls_without_its_secrets_voids_the_sample() -> None:
    """A connection whose packets nobody can decrypt, unless its handshake failed. Older runs, which
    have another counter less, logged no secrets.
    """
    hello = {"cell": "agent", "address": "10.0.0.2", "port": 443, "sni": "a", "stand_in": "shop"}
    begun, other, failed = (
        line(Kind.NETWORK_TLS, **hello, connection=number, verdict="allowed", reason="")
        for number in (1, 2, 3)
    )
    end = line(Kind.NETWORK_TLS, **hello, connection=3, verdict="refused", reason="cut")
    event = secrets(100, phase="open")
    for lines, counters, count in (
        ([begun, event, failed, end], {"packets_cut": 0}, 0),
        ([begun, event, other, failed, end], {"packets_cut": 0}, 1),
        ([begun, other], {"logs_lost": 0}, 0),
    ):
        (found,) = ranges_of(story(*lines, counters=counters)).values()
        codes = [reason.code for reason in found.lost]
        assert codes == [ReasonCode.SECRETS_NOT_RECORDED] * count
