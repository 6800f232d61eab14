"""Percentiles and ratios of a benchmark."""

from __future__ import annotations

from belljar.bench.figures import BenchRow, Figures, Measure, percentile

PEER = "docker run --rm"


def test_a_percentile_is_a_sample() -> None:
    """It is the smallest sample that the share doesn't exceed (nearest rank)."""
    samples = [float(each) for each in range(1, 101)]
    assert [percentile(samples, share) for share in (50, 95, 99)] == [50, 95, 99]
    assert percentile([3.0, 1.0], 50) == 1
    assert percentile([7.0], 99) == 7
    assert percentile([], 50) is None


def test_a_ratio_compares_like_with_like() -> None:
    """A cell's first output is compared with a peer's whole life with as many in flight; without
    such a peer there is no ratio."""
    figures = Figures()
    figures.add(BenchRow(PEER, Measure.LIFE), 200)
    figures.add(BenchRow("gvisor", Measure.FIRST_OUTPUT), 300)
    figures.add(BenchRow("gvisor", Measure.FIRST_OUTPUT, 10), 300)
    assert figures.ratio(BenchRow("gvisor", Measure.FIRST_OUTPUT), PEER) == 1.5
    assert figures.ratio(BenchRow("gvisor", Measure.FIRST_OUTPUT, 10), PEER) is None
    assert figures.ratio(BenchRow(PEER, Measure.LIFE), PEER) is None


def test_a_failure_is_a_row() -> None:
    """A measure of which every try failed is a series without percentiles."""
    figures = Figures()
    row = BenchRow("microvm", Measure.LIFE, 100)
    figures.fail(row, "no room")
    (found,) = figures.series(PEER)
    assert (found["failures"], found["samples_ms"]) == (["no room"], [])
    assert found["p50_ms"] is None
