"""Series of times, their percentiles, and their ratios to a peer's. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from time import perf_counter
from typing import Final

from belljar.events import JsonValue

PERCENTILES: Final = (50, 95, 99)


class Measure(StrEnum):
    """What is timed, as it is printed."""

    CREATE = "cold create"
    FIRST_OUTPUT = "create to first output"
    LIFE = "create to destroyed"
    POOL_CREATE = "from pool"
    POOL_FIRST_OUTPUT = "from pool to first output"
    REVERT = "revert, cold"
    POOL_REVERT = "revert from pool"
    EXEC = "exec of true"
    FILE_IN = "file in"
    FILE_OUT = "file out"
    DESTROY = "destroy, with proof"
    EVALUATION = "evaluation"


PEER_MEASURE: Final[Mapping[Measure, Measure]] = {
    Measure.FIRST_OUTPUT: Measure.LIFE,
    Measure.POOL_FIRST_OUTPUT: Measure.LIFE,
    **{each: each for each in Measure if each.name in {"LIFE", "EXEC", "FILE_IN", "FILE_OUT"}},
    Measure.DESTROY: Measure.DESTROY,
}
"""What of a peer a measure is compared with. Cells made ahead are compared with a whole
`docker run`, though their making is moved, not saved: the user waits for the one or the other.
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One series: a tier or a peer, what was timed, and how many of them at once."""

    subject: str
    measure: Measure
    in_flight: int = 1


@dataclass(slots=True)
class Figures:
    """All samples of a run, in milliseconds; what failed; what is absent, and why."""

    samples_ms: dict[Row, list[float]] = field(default_factory=dict)
    failures: dict[Row, list[str]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    memory_mib: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, row: Row) -> Iterator[None]:
        """Add the block's duration, if it ends without an error."""
        began = perf_counter()
        yield
        self.add(row, (perf_counter() - began) * 1e3)

    def add(self, row: Row, sample_ms: float) -> None:
        """Add one sample."""
        self.samples_ms.setdefault(row, []).append(sample_ms)

    def fail(self, row: Row, why: str) -> None:
        """Add one failure: a row with failures has fewer samples than were asked for."""
        self.failures.setdefault(row, []).append(why)

    def ratio(self, row: Row, peer: str) -> float | None:
        """Return the row's median over the peer's with as many in flight, if both were measured."""
        measure = PEER_MEASURE.get(row.measure)
        theirs = measure and self.samples_ms.get(Row(peer, measure, row.in_flight))
        mine = self.samples_ms.get(row)
        if not theirs or not mine or row.subject == peer:
            return None
        return percentile(mine, 50) / percentile(theirs, 50)

    def document(self, peer: str) -> list[dict[str, JsonValue]]:
        """Return each series with its raw samples, as `--json` prints it."""
        return [
            {
                "subject": row.subject,
                "measure": row.measure,
                "in_flight": row.in_flight,
                **{f"p{each}_ms": _rounded(self._percentile(row, each)) for each in PERCENTILES},
                "ratio": _rounded(self.ratio(row, peer), 3),
                "samples_ms": [round(each, 3) for each in self.samples_ms.get(row, ())],
                "failures": list(self.failures.get(row, ())),
            }
            for row in self._rows()
        ]

    def table(self, peer: str) -> list[tuple[str, ...]]:
        """Return the table's rows of text, headings first."""
        headings = ("what", "at once", *(f"P{each} ms" for each in PERCENTILES), f"÷ {peer or '–'}")
        lines = [("", *headings)]
        for row in self._rows():
            ratio, failed = self.ratio(row, peer), len(self.failures.get(row, ()))
            times = [self._percentile(row, each) for each in PERCENTILES]
            lines.append(
                (
                    row.subject,
                    row.measure + (f" ({failed} failed)" if failed else ""),
                    str(row.in_flight),
                    *("–" if each is None else f"{each:.1f}" for each in times),
                    "–" if ratio is None else f"{ratio:.2f}",
                )
            )
        return lines

    def _rows(self) -> list[Row]:
        """Return all rows: subjects as they were measured, then by number at once."""
        rows, measures = dict.fromkeys([*self.samples_ms, *self.failures]), list(Measure)
        subjects = list(dict.fromkeys(row.subject for row in rows))
        return sorted(
            rows,
            key=lambda row: (
                subjects.index(row.subject),
                row.in_flight,
                measures.index(row.measure),
            ),
        )

    def _percentile(self, row: Row, share: int) -> float | None:
        samples = self.samples_ms.get(row)
        return percentile(samples, share) if samples else None


def percentile(samples: Sequence[float], share: int) -> float:
    """Return the smallest sample that `share` per cent of them do not exceed (nearest rank)."""
    return sorted(samples)[max(0, math.ceil(share * len(samples) / 100) - 1)]


def _rounded(value: float | None, digits: int = 1) -> float | None:
    return None if value is None else round(value, digits)
