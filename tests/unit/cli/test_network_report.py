"""What `belljar run` shows of a sample's network."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.report.stories import (
    ENDED,
    FLOW,
    HOSTILE,
    NAME,
    REQUEST,
    STREAM,
    judged,
    line,
    planned,
    story,
)

from belljar.cli.run import network_lines, show_findings
from belljar.events import Kind
from belljar.report.collect import collect
from belljar.report.ranges import MAX_NAMED
from belljar.units import printable


@pytest.mark.promise("5.4")
@given(st.text(max_size=80))
def test_nothing_quoted_acts_on_the_reader_s_terminal(quoted: str) -> None:
    """Whatever stands on record, wherever it stands and however much: the report stays small."""
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


@pytest.mark.promise("4.4")
def test_no_id_of_a_changed_record_acts_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """A run directory may be anybody's: ids and tiers of cells and ranges are escaped, too."""
    lines = story(
        planned(f"m{HOSTILE}", tier=HOSTILE, model={"name": "m", "weights": "w"}),
        line(Kind.SAMPLE_STARTED, f"c{HOSTILE}", sample="s", task="t", uuid="u1"),
        planned(f"d{HOSTILE}"),
        line(Kind.CELL_DESTROYED, f"c{HOSTILE}", **ENDED),
    )
    show_findings(judged([*lines, line(Kind.RANGE_OPENED, range=HOSTILE)]), Path("r"))
    assert all(each.isprintable() for each in capsys.readouterr().out.splitlines())
