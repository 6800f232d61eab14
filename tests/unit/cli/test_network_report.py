"""What `belljar run` shows of a sample's network."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.report.stories import (
    ANSWER,
    FLOW,
    HOSTILE,
    NAME,
    REQUEST,
    STREAM,
    judged,
    line,
    story,
)

from belljar.cli.findings import network_lines
from belljar.events import Kind
from belljar.probe.model import Verdict
from belljar.report.collect import collect
from belljar.report.ranges import MAX_NAMED
from belljar.units import printable

STOPPED = (
    "52 packet(s) refused or dropped: 1 listed above; 1 most likely of Belljar's own probes;"
    " 50 only counted (repeated or beyond a hundred destinations)"
)


@pytest.mark.promise("5.4")
@given(st.text(max_size=80))
def test_nothing_quoted_acts_on_the_reader_s_terminal(quoted: str) -> None:
    """Whatever stands on record, wherever it stands; and however much of it, the report stays
    small."""
    for text in (quoted, HOSTILE):
        lines = story(
            line(
                Kind.NETWORK_HTTP,
                **{**REQUEST, "url": text, "method": text, "cell": text, "reason": text},
            ),
            line(
                Kind.NETWORK_STREAM, **{**STREAM, "cell": text, "stand_in": text, "address": text}
            ),
            line(Kind.NETWORK_DNS, **NAME, name=text, answer="1" + text),
            *(
                line(Kind.NETWORK_DNS, **NAME, name=f"{n}{text}", answer="NXDOMAIN")
                for n in range(2 * MAX_NAMED)
            ),
            *(
                line(Kind.NETWORK_FLOW, **{**FLOW, "address": f"{n}{text}", "cell": text})
                for n in range(2 * MAX_NAMED)
            ),
            line(Kind.NETWORK_ATTEMPT, stand_in=text, what=text),
            line(Kind.LIMIT_HIT, limit=text),
            line(Kind.RANGE_FAILED, error="CellError", reason=text),
        )
        told = network_lines(collect(judged(lines)))
        # A leading line break of ours parts the blocks.
        shown = [each.removeprefix("\n") for each in told]
        assert shown == [printable(each, max_chars=len(each)) for each in shown]
        assert sum(map(len, told)) < 100_000


@pytest.mark.promise("5.4")
def test_what_was_refused_is_summed_up() -> None:
    """Each place that a cell tried by itself, by name; what went while it was probed apart; names,
    TLS, attempts and limits."""
    sums = {**FLOW, "address": "", "port": None, "count": 50}
    lines = story(
        line(Kind.NETWORK_DNS, **NAME, name="leak.example.org", answer="NXDOMAIN"),
        line(Kind.NETWORK_DNS, **NAME, name="x.example", answer="NODATA"),
        line(Kind.NETWORK_FLOW, **FLOW),
        line(Kind.NETWORK_FLOW, **sums),
        line(Kind.NETWORK_ATTEMPT, stand_in="packages", what="publish"),
        line(
            Kind.NETWORK_TLS,
            cell="default",
            sni="bank.example",
            address="10.0.0.7",
            port=443,
            verdict="refused",
            reason="SNI",
        ),
        line(Kind.LIMIT_HIT, limit="exchanges", value=1, count=3),
    )
    start = lines.index(line(Kind.PROBE_STARTED, "c1", which="quick", phase="start", user=""))
    lines.insert(start + 1, line(Kind.NETWORK_FLOW, **{**FLOW, "address": "1.1.1.1", "port": 443}))
    told = network_lines(collect(judged(lines)))
    for said in (
        "  no requests",
        "  attempts to publish, push or send: publish (packages)",
        "  names looked up that don't exist here: leak.example.org",
        "  TLS refused: bank.example (SNI)",
        "  limits hit: exchanges ×3",
        "  refused: tcp packets of default to 10.9.9.9:22 (an address that nobody has)",
        f"  {STOPPED}",
    ):
        assert said in told
    assert not any("1.1.1.1" in each for each in told)


@pytest.mark.promise("5.4")
def test_requests_between_cells_are_told_apart() -> None:
    """In words, and in the JSON."""
    findings = judged(
        story(
            line(Kind.NETWORK_HTTP, **REQUEST),
            line(Kind.NETWORK_HTTP, **REQUEST, between_cells=True),
            line(Kind.NETWORK_HTTP_ANSWERED, **ANSWER, between_cells=True),
        )
    )
    assert findings.rows[0].verdict is Verdict.CONTAINED
    told = network_lines(collect(findings))
    assert any("2 request(s) and connection(s), 1 of them between cells" in each for each in told)
    (shown,) = collect(findings)["samples"][0]["ranges"]
    assert [each["between_cells"] for each in shown["requests"]] == [False, True]
    assert [shown[name] for name in ("requests_in_all", "requests_between_cells")] == [2, 1]
