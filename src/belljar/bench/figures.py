"""Series of times, their percentiles, and their ratios to a peer's. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Any, Final


class Measure(StrEnum):
    """A measure's value is its name as it is printed."""

    CREATE = "cold create"
    FIRST_OUTPUT = "create to first output"
    LIFE = "create to destroyed"
    POOL_CREATE = "from pool"
    POOL_FIRST_OUTPUT = "from pool to first output"
    REVERT = "revert, cold"
    POOL_REVERT = "revert from pool"
    SNAPSHOT = "snapshot"
    FORK = "fork"
    EXEC = "exec of true"
    FILE_IN = "file in"
    FILE_OUT = "file out"
    DESTROY = "destroy, with proof"


SHARES: Final = (50, 95, 99)  # the percentiles that are shown
PEER: Final = "docker run --rm"  # the subject that others are compared with
# Each measure is compared with this one of Docker. Cells made ahead are compared with a whole
# `docker run`, though their making is moved, not saved: the user waits for the one or the other.
PEER_MEASURE: Final[Mapping[Measure, Measure]] = {
    Measure.FIRST_OUTPUT: Measure.LIFE,
    Measure.POOL_FIRST_OUTPUT: Measure.LIFE,
    **{each: each for each in Measure if each.name in {"LIFE", "EXEC", "FILE_IN", "FILE_OUT"}},
    Measure.DESTROY: Measure.DESTROY,
}


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One series: a tier or a peer, what was timed, and how many of them at once."""

    subject: str
    measure: Measure
    in_flight: int = 1


@dataclass(slots=True)
class Figures:
    """All samples of a run, in milliseconds; what failed; what is absent, and why."""

    samples_ms: dict[BenchRow, list[float]] = field(default_factory=dict)
    failures: dict[BenchRow, list[str]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, row: BenchRow) -> Iterator[None]:
        """Add the block's duration, if it ends without an error."""
        began = perf_counter()
        yield
        self.add(row, (perf_counter() - began) * 1e3)

    def add(self, row: BenchRow, sample_ms: float) -> None:
        """Add one sample."""
        self.samples_ms.setdefault(row, []).append(sample_ms)

    def fail(self, row: BenchRow, why: str) -> None:
        """Add one failure: a row with failures has fewer samples than were asked for."""
        self.failures.setdefault(row, []).append(why)

    def ratio(self, row: BenchRow) -> float | None:
        """Return the row's median over Docker's with as many in flight, if both were measured."""
        if row.measure not in PEER_MEASURE or row.subject == PEER:
            return None
        theirs = BenchRow(PEER, PEER_MEASURE[row.measure], row.in_flight)
        mine_ms, theirs_ms = (percentile(self.samples_ms.get(e, []), 50) for e in (row, theirs))
        return mine_ms / theirs_ms if mine_ms and theirs_ms else None

    def series(self) -> list[dict[str, Any]]:
        """Return each row with its percentiles (None: every try failed), samples and failures."""
        found = list[dict[str, Any]]()
        for row in dict.fromkeys([*self.samples_ms, *self.failures]):
            samples = self.samples_ms.get(row, [])
            shares = {f"p{share}_ms": percentile(samples, share) for share in SHARES}
            rest = {"ratio": self.ratio(row), "samples_ms": [round(each, 3) for each in samples]}
            found.append({**asdict(row), **shares, **rest, "failures": self.failures.get(row, [])})
        return found


def percentile(samples: Sequence[float], share: int) -> float | None:
    """Return the smallest sample that `share` per cent of them do not exceed (nearest rank)."""
    if not samples:
        return None
    return sorted(samples)[max(0, math.ceil(share * len(samples) / 100) - 1)]
