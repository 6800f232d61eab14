"""What a model cell's evidence does to its run's verdict."""

from __future__ import annotations

import pytest
from tests.unit.report.stories import ENDED, line, planned, story
from tests.unit.report.test_verdict import evidence

from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.probe.model import Verdict
from belljar.report.cells import gather_cells
from belljar.report.collect import collect
from belljar.report.reasons import ReasonCode as Code
from belljar.report.samples import headline
from belljar.report.verdict import Evidence, RunRecord, judge

MODEL = {"name": "m", "weights": "ab" * 32}


def model_cell(*phases: str, verdict: str = "contained", **ended: object) -> list[Line]:
    """The story beside a model cell that was probed in these phases."""
    about = {"path": "/v1", "bytes": 10, "sha256": "ab" * 32}
    lines = [
        planned("c9", tier="gvisor", model=MODEL),
        line(Kind.MODEL_REQUEST_STARTED, "c9", request=1, **about),
    ]
    answered = {"status": 200, "prompt_tokens": 3, "completion_tokens": 2}
    times = {"first_byte_ms": 1.0, "duration_ms": 2.0}
    completed = {**about, **answered, **times}
    lines.append(line(Kind.MODEL_REQUEST_COMPLETED, "c9", request=1, **completed))
    for phase in phases:
        probed = {"which": "quick", "phase": phase, "user": ""}
        lines.append(line(Kind.PROBE_STARTED, "c9", **probed))
        result = {"verdict": verdict, "probes": 1, "digest": "0" * 64, "problem": ""}
        lines.append(line(Kind.PROBE_COMPLETED, "c9", **probed, **result, duration_ms=1.0))
    return [*story(), *lines, line(Kind.CELL_DESTROYED, "c9", **{**ENDED, **ended})]


@pytest.mark.promise("2.8")
@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (model_cell("start", "end"), Verdict.CONTAINED),
        (model_cell("start"), Verdict.VOID),
        (model_cell("start", "end", verdict="void"), Verdict.VOID),
        (model_cell("start", "end", verdict="breached"), Verdict.BREACHED),
        (model_cell("start", "end", clean=False, survivors=["p"]), Verdict.VOID),
    ],
)
def test_a_model_cells_evidence_counts_for_the_run(lines: list[Line], verdict: Verdict) -> None:
    """All samples depend on it. What was asked of it is in the findings."""
    found = judge(evidence(lines=lines))
    assert found.verdict is verdict
    assert [row.verdict for row in found.rows] == [Verdict.CONTAINED]
    (shown,) = collect(found)["model_cells"]
    asked = (shown["requests"], shown["prompt_tokens"], shown["completion_tokens"])
    assert asked == (1, 3, 2)
    assert collect(found)["stray_cells"] == []


@pytest.mark.parametrize(
    ("kind", "phases", "verdict"),
    [
        ("inspect", ("start", "end"), Verdict.CONTAINED),
        ("inspect", ("start",), Verdict.VOID),
        ("run", ("start", "end"), Verdict.VOID),
    ],
)
def test_without_a_sample_in_a_cell_a_model_is_judged_alone(
    kind: str, phases: tuple[str, ...], verdict: Verdict
) -> None:
    """Only under plain `inspect eval`, whose samples need no cell; `belljar run` gives each one."""
    lines = [each for each in model_cell(*phases) if each.cell == "c9"]
    found = judge(Evidence(cells=gather_cells(lines), run=RunRecord(kind=kind, ended=True)))
    assert found.verdict is verdict
    assert (found.exit_code == 0) is (verdict is Verdict.CONTAINED)
    assert ("no sample had a cell" in headline(found)) is (verdict is Verdict.CONTAINED)


def test_a_reverted_cell_is_of_its_sample() -> None:
    """It needs its own probes and proof; what is left of the old machine in it is a breach."""
    ended = line(Kind.CELL_DESTROYED, "c9", **ENDED)
    exchange = {"from": "c1", "to": "c9", "from_pool": False, "duration_ms": 1.0}
    reverted = line(Kind.CELL_REVERTED, "c9", **exchange)
    probed = [each for each in model_cell("start", "end") if each.kind.startswith("probe.")]
    found = judge(evidence(lines=[*story(), *probed, reverted, ended]))
    assert (found.verdict, found.rows[0].reverts) == (Verdict.CONTAINED, 1)
    for lines in ([reverted, ended], [*probed, reverted]):
        assert judge(evidence(lines=[*story(), *lines])).rows[0].verdict is Verdict.VOID
    vacuous = {"from": "c1", "planted": [], "found": [], "not_checked": ["port: not left"]}
    unverified = line(Kind.CELL_REVERT_VERIFIED, "c9", **vacuous)
    [row] = judge(evidence(lines=[*story(), unverified, *probed, reverted, ended])).rows
    assert any("not verified: port: not left" in remark for remark in row.remarks)
    assert row.verdict is Verdict.CONTAINED
    left = {"from": "c1", "planted": ["memory"], "found": ["memory"], "not_checked": []}
    unclean = line(Kind.CELL_REVERT_VERIFIED, "c9", **left)
    [row] = judge(evidence(lines=[*story(), unclean, ended])).rows
    assert row.verdict is Verdict.BREACHED
    assert Code.REVERT_UNCLEAN in {reason.code for reason in row.reasons}


@pytest.mark.promise("3.6")
def test_a_forked_cell_is_of_its_sample() -> None:
    """Whoever forked it, or a fork of it: without probes and proof of its own the sample is void."""
    probed = [each for each in model_cell("start", "end") if each.kind.startswith("probe.")]
    ended = line(Kind.CELL_DESTROYED, "c9", **ENDED)
    between = line(Kind.CELL_FORKED, "c8", **{"snapshot": "s-1", "from": "c1"})
    for source in ("c1", "c8"):
        forked = line(Kind.CELL_FORKED, "c9", **{"snapshot": "s-1", "from": source})
        for lines, verdict in (
            ((*probed, ended), Verdict.CONTAINED),
            ((ended,), Verdict.VOID),
            (probed, Verdict.VOID),
        ):
            before = [between] if source == "c8" else []
            found = judge(evidence(lines=[*story(), *before, forked, *lines]))
            assert found.rows[0].verdict is (Verdict.VOID if before else verdict)
            assert "c9" in {cell.cell_id for cell in found.rows[0].cells}
