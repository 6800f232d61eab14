"""What a run's report says of a range: what its record lacks, and how it ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.report.stories import (
    ENDED,
    FLOW,
    HOSTILE,
    NAME,
    RANGE,
    REQUEST,
    findings_of,
    judged,
    line,
    planned,
    ranges_of,
    story,
    taken,
)

from belljar.cli.run import show_findings
from belljar.events import Kind
from belljar.export.ocsf import ocsf
from belljar.ledger.schema import BodyRef, Line, check_data
from belljar.probe.model import Verdict
from belljar.report.left import MAX_FOUND, LeftGatherer
from belljar.report.reading import ProbeTracker
from belljar.report.reasons import Reason, ReasonCode
from belljar.report.samples import collect
from belljar.report.timeline import MAX_EDGES, MAX_PENDING, Timelines

TLS: dict[str, Any] = {"cell": "default", "address": "10.0.0.7", "port": 443, "sni": None}
TLS |= {"verdict": "allowed", "reason": ""}
# Whether a packet that the policy's bound threw away is in an event
WHOLE, LOST = ({"packets_recorded_and_dropped": 9, "packets_unaccounted": n} for n in (0, 2))


@pytest.mark.promise("5.4")
@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"counters": {"packets_not_recorded": 3}}, "3 packet(s) are in no packet record"),
        ({"counters": {"logs_lost": 1}}, "1 refused or allowed packet(s) are in no event"),
        ({"counters": {"unreported_at_end": 2}}, "2 or more event(s) were lost"),
        ({"clean": False, "survivors": ["a process"]}, "its destruction left a process"),
        ({"clean": False, "not_checked": ["mounts"]}, "its destruction is not proven"),
        ({"destroyed": False}, "its destruction is not on record"),
        ({"counters": {"packets_recorded_and_dropped": 9}}, "9 packet(s) were thrown away"),
        ({"counters": LOST}, "2 packet(s) were thrown away that no event holds whole"),
        ({"counters": WHOLE}, ""),
    ],
)
def test_missing_evidence_voids_the_sample(end: dict[str, Any], why: str) -> None:
    """What a range's record lacks, and an end that is not proven."""
    findings = judged(story(**end))
    (row,) = findings.rows
    assert row.verdict is (Verdict.VOID if why else Verdict.CONTAINED)
    assert why in "; ".join(map(str, row.reasons))
    assert findings.exit_code == (2 if why else 0)


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
    """Overwritten packets are missing evidence, told once; what is left in the record is not."""
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
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (Kind.NETWORK_TLS, {**TLS, "connection": [1]}),
        (Kind.LIMIT_HIT, {"limit": "connections", "count": "9" * 5000}),
        (Kind.NETWORK_DNS, {**NAME, "name": "a.example", "answer": "NXDOMAIN", "op": [1]}),
        (Kind.NETWORK_HTTP, {**REQUEST, "headers": [7], "exchange": 1}),
    ],
)
def test_a_gateway_ends_no_report(kind: Kind, data: dict[str, Any]) -> None:
    """One that was taken over may give its events more fields, of any shape."""
    check_data(kind, data)
    lines = story(line(kind, **data))
    assert collect(judged(lines))["samples"]
    list(ocsf(lines, "R"))
    assert taken(lines, Timelines()).events == len(lines)


@pytest.mark.promise("5.4")
@pytest.mark.promise("8.3")
def test_a_gateway_makes_no_report_grow() -> None:
    """Its names and its requests without an answer are kept up to a bound; the others count."""
    timelines, left, count = Timelines(), LeftGatherer(), MAX_PENDING + 10
    guarded: dict[str, Any] = {"place": "upstream", "channel": "http", "action": "flag"}
    guarded |= {"digest": "0" * 64, "start": 0, "end": 1, "decoding": []}
    for number in range(count):
        own = {"cell": f"c{number}", "exchange": number, "url": f"http://{number}.example/"}
        timelines.take(line(Kind.NETWORK_HTTP, **{**REQUEST, **own}))
        to = {"class": f"k{number}", "to": f"h{number % 1000}"}
        left.take(line(Kind.GUARD_HIT, **guarded, **to))
    (edges,) = timelines.edges.values()
    assert (len(edges), sum(edges.values())) == (MAX_EDGES + 1, count)
    assert len(timelines._pending) == MAX_PENDING
    found = left.end().destinations
    classes = [actions["flag"] for each in found for actions in each.protected.values()]
    assert len(found) == MAX_FOUND + 1
    assert (sum(classes), max(len(each.protected) for each in found)) == (count, MAX_FOUND + 1)


def test_a_reader_that_was_felled_voids_the_sample() -> None:
    """What a cell sent may be why: then it has hidden what else was said."""
    limit = {"limit": "traffic_analysis_reader", "value": 20, "effect": "it died"}
    (row,) = judged(story(line(Kind.LIMIT_HIT, **limit))).rows
    codes = [(reason.code, reason.detail) for reason in row.reasons]
    assert codes == [(ReasonCode.TRAFFIC_ANALYSIS_ENDED, "it died")]


def test_a_cell_that_ended_while_it_was_probed_hides_nothing_of_the_next() -> None:
    """Another cell of its name is not probed."""
    begun = line(Kind.PROBE_STARTED, "c1", which="quick", phase="start", user="")
    tracker = taken([planned("c1", range=RANGE, name="web"), begun], ProbeTracker())
    assert tracker.is_probed(RANGE, "web")
    tracker.take(line(Kind.CELL_DESTROYED, "c1", clean=True, survivors=[], ended="owner"))
    tracker.take(planned("c2", range=RANGE, name="web"))
    assert not tracker.is_probed(RANGE, "web")
    assert not tracker.is_probed(RANGE)


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
    """Of an open range somebody counted; that nobody says what was lost is not that none was."""
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


def connection(number: int = 1, kept_bytes: int | None = None, **changes: object) -> Line:
    """An event of a connection; `kept_bytes` of 100: its secrets of TLS."""
    place = {"cell": "agent", "address": "10.0.0.2", "port": 80, "source_port": 9}
    made = line(
        Kind.NETWORK_CONNECTION, **{**place, "connection": number, "phase": "closed", **changes}
    )
    if kept_bytes is None:
        return made
    digests: dict[str, Any] = dict.fromkeys(("sha256", "stored_sha256"), "0" * 64)
    body = BodyRef(name="secrets", total_bytes=100, kept_bytes=kept_bytes, **digests)
    return replace(made, bodies=(body,))


def tls(number: int, verdict: str = "allowed", reason: str = "") -> Line:
    hello = {"cell": "agent", "address": "10.0.0.2", "port": 443, "sni": "a", "stand_in": "shop"}
    said = {"connection": number, "verdict": verdict, "reason": reason}
    return line(Kind.NETWORK_TLS, **hello, **said)


BYTES, SECRETS = ReasonCode.BYTES_NOT_RECORDED, ReasonCode.SECRETS_NOT_RECORDED
# The second one's handshake failed
HANDSHAKES = [tls(1), connection(1, 100, phase="open"), tls(3), tls(3, "refused", "cut")]
UNREAD: dict[str, tuple[list[Line], dict[str, int], list[ReasonCode]]] = {
    "nothing": ([connection()] * 2, {}, []),
    "bytes, by a gateway of an older version": (
        [connection(), connection(missing_bytes=3, accounted=False)],
        *({}, [BYTES]),
    ),
    **{
        f"{kept} % of the secrets, {phase}": (
            [connection(kept_bytes=kept, phase=phase)],
            *({}, [BYTES] if kept < 100 else []),
        )
        for kept in (0, 99, 100)
        for phase in ("open", "closed")
    },
    "no secrets of failed handshakes": (HANDSHAKES, {"packets_cut": 0}, []),
    "secrets of another": ([*HANDSHAKES, tls(2)], {"packets_cut": 0}, [SECRETS]),
    "secrets of an older run, which logged none": ([tls(1), tls(2)], {"logs_lost": 0}, []),
}


@pytest.mark.promise("5.4")
@pytest.mark.parametrize("name", UNREAD)
def test_what_nobody_can_read_voids_the_sample(name: str) -> None:
    """Bytes in no event, secrets of TLS that were cut, a handshake without any."""
    lines, counters, codes = UNREAD[name]
    events = story(*lines, counters=counters) if counters else lines
    (found,) = ranges_of(events).values()
    assert [each.code for each in found.lost if each.code in (BYTES, SECRETS)] == codes


@pytest.mark.promise("4.4")
def test_nothing_of_a_record_acts_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Nor what a guest chose, however much; ids and tiers of cells and ranges are escaped, too."""
    flow = {**FLOW, "cell": HOSTILE}
    lines = story(
        line(Kind.NETWORK_HTTP, **{**REQUEST, "url": HOSTILE, "verdict": "refused"}),
        *(line(Kind.NETWORK_FLOW, **{**flow, "address": f"{n}{HOSTILE}"}) for n in range(9000)),
        line(Kind.RANGE_FAILED, error="CellError", reason=HOSTILE),
        planned(f"m{HOSTILE}", tier=HOSTILE, model={"name": "m", "weights": "w"}),
        line(Kind.SAMPLE_STARTED, f"c{HOSTILE}", sample="s", task="t", uuid="u1"),
        planned(f"d{HOSTILE}"),
        line(Kind.CELL_DESTROYED, f"c{HOSTILE}", **ENDED),
    )
    show_findings(judged([*lines, line(Kind.RANGE_OPENED, range=HOSTILE)]), Path("r"))
    shown = capsys.readouterr().out
    assert all(each.isprintable() for each in shown.splitlines())
    assert len(shown) < 100_000
