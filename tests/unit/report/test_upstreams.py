"""What a run's report says of the real network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.report.stories import HOSTILE, line

from belljar.cli.findings import remarks, show_findings
from belljar.events import Kind
from belljar.ledger import Line
from belljar.report.requests import UpstreamGatherer, UpstreamUse
from belljar.report.samples import RunFindings, as_json


def dial(**data: Any) -> Line:  # noqa: ANN401 - JSON values
    """A ledger line of one."""
    said = {
        "host": "real.example",
        "port": 443,
        "address": "93.184.215.1",
        "reason": "why",
        "problem": "",
        **data,
    }
    return line(Kind.NETWORK_UPSTREAM, **said)


def uses_of(lines: list[Line]) -> tuple[UpstreamUse, ...]:
    """The real hosts of a run."""
    gatherer = UpstreamGatherer()
    for each in lines:
        gatherer.take(each)
    return tuple(gatherer.found.values())


def test_uses_are_gathered_by_host() -> None:
    """Connections, failures and refusals are counted; addresses and reasons are told once; other
    events are none."""
    uses = uses_of(
        [
            dial(verdict="dialled"),
            dial(verdict="dialled"),
            dial(verdict="failed", problem="no"),
            dial(verdict="refused", host="other.example", address=""),
            dial(verdict="cut", host="other.example", address="", problem="it was open for 180 s"),
            line(Kind.NETWORK_ATTEMPT, stand_in="s", what="push"),
        ]
    )
    assert [use.to_json() for use in uses] == [
        {
            "host": "real.example",
            "reasons": ["why"],
            "addresses": ["93.184.215.1"],
            "connections": 2,
            "failed": 1,
            "refused": 0,
            "cut": 0,
        },
        {
            "host": "other.example",
            "reasons": ["why"],
            "addresses": [],
            "connections": 0,
            "failed": 0,
            "refused": 1,
            "cut": 1,
        },
    ]
    assert (
        uses[0].sentence()
        == "REAL network: real.example (93.184.215.1): 2 connection(s), 1 failed. Why: why"
    )
    assert uses_of([]) == ()


def test_the_report_shows_them_in_red(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each on a line of its own, on a terminal in red, in the JSON too; a run that reached nothing
    real has no such line."""
    findings = RunFindings(rows=(), strays=(), upstreams=uses_of([dial(verdict="dialled")]))
    show_findings(findings, Path("/runs/r"))
    plain = capsys.readouterr().out
    assert "\nREAL network: real.example (93.184.215.1): 1 connection(s). Why: why\n" in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    show_findings(findings, Path("/runs/r"))
    assert "\x1b[1;31mREAL network: real.example" in capsys.readouterr().out
    assert as_json(findings)["upstreams"][0]["host"] == "real.example"
    nothing = RunFindings(rows=(), strays=())
    assert as_json(nothing)["upstreams"] == []
    assert not any("REAL" in said for said in remarks(nothing))


@given(st.text(max_size=80))
def test_no_host_acts_on_the_reader_s_terminal(host: str) -> None:
    """Whatever stands on record."""
    for text in (host, HOSTILE):
        said = UpstreamUse(host=text, reasons=[text], addresses=[text]).sentence()
        assert "\x1b" not in said
        assert "\u202e" not in said
        assert "\n" not in said
