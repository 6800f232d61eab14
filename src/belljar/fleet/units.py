"""Decides how samples are cut into units, which are tried again, and by when. Pure.

Sizes, nodes and outcomes in; decisions out. Nothing here waits or starts anything.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from belljar.dataclass import dataclass, replace
from belljar.probe.model import Verdict
from belljar.report.reasons import ReasonCode
from belljar.report.samples import Row, RunFindings

# One command line names them, and one lost unit costs no more.
MAX_UNIT_SAMPLES: Final = 64
# A sample that takes down three nodes is more likely the cause than the nodes.
MAX_ATTEMPTS: Final = 3

# Causes by which a void sample is tried again: evidence went with a process or a disk. None that
# a guest can bring about alone: a model must not be able to choose between two scores.
INFRASTRUCTURE: Final = frozenset(
    {
        ReasonCode.LEDGER_UNFINISHED,
        ReasonCode.RUN_END_MISSING,
        ReasonCode.LOG_MISSING,
        ReasonCode.LOG_UNREADABLE,
        ReasonCode.LOG_UNFINISHED,
        ReasonCode.LOG_INCOMPLETE,
        ReasonCode.SAMPLE_NOT_IN_LOG,
        ReasonCode.CELL_NOT_DESTROYED,
        ReasonCode.CELL_DESTRUCTION_UNPROVEN,
    }
)
# The same of a record that ends with its process: nothing could be probed or destroyed then.
_NEVER_ENDED: Final = frozenset({ReasonCode.PROBES_MISSING, ReasonCode.RANGE_NOT_DESTROYED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Samples, with all their epochs, that one node runs whole; `not_on`: nodes that had it."""

    number: int
    samples: tuple[str, ...]
    attempt: int = 1
    not_on: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """Its file's name, and what messages call it."""
        return f"{self.number:05d}-{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as it describes itself; `cells`: live at a time. `refusal`: why it gets no unit."""

    node_id: str
    name: str
    key: str = ""
    version: str = ""
    cells: int = 0
    refusal: str = ""


def cells_per_unit(nodes: Iterable[Node]) -> int:
    """Return how many cells a unit has at a time: the smallest node runs one unit or two.

    Two, where there is room: one works while the other waits for its last sample.
    """
    smallest = min(node.cells for node in nodes)
    return max(1, smallest if smallest < 4 else smallest // 2)


def next_size(remaining: int, *, slots: int, side_by_side: int) -> int:
    """Return how many of the `remaining` samples the next unit gets.

    Half of an equal share, so that later units are smaller and end together; but enough for the
    unit's cells, `side_by_side`.
    """
    share = math.ceil(remaining / slots)
    half = math.ceil(remaining / (2 * slots))
    return min(max(half, min(share, side_by_side)), MAX_UNIT_SAMPLES)


def is_cut_off(findings: RunFindings) -> bool:
    """Return whether the unit's process died: its record has no end."""
    return any(reason.code is ReasonCode.LEDGER_UNFINISHED for reason in findings.problems)


def excused(findings: RunFindings) -> frozenset[ReasonCode]:
    """Return the causes of this unit that are the infrastructure's."""
    return INFRASTRUCTURE | _NEVER_ENDED if is_cut_off(findings) else INFRASTRUCTURE


def may_replace(row: Row, findings: RunFindings) -> bool:
    """Return whether another attempt may stand for this sample: infrastructure took its evidence.

    Or it was cut: a node without disk or memory, or interrupted, ends the evaluation.
    """
    codes = {reason.code for reason in row.reasons}
    is_cut = bool(row.transcript.error) and (findings.failure_code or findings.interrupted)
    return codes <= excused(findings) and bool(codes or is_cut)


def to_try_again(unit: Unit, epochs: int, findings: RunFindings) -> tuple[str, ...]:
    """Return the samples of a unit that came back which another node should run; none of a breach.

    An error of the task's own ends an evaluation: what it kept from beginning is not lost.
    """
    if findings.verdict is Verdict.BREACHED:
        return ()
    if findings.refusal_code:  # 4: the task is wrong on every node
        return unit.samples if findings.refusal_code == 3 else ()
    is_short = bool(findings.rows) and has_task_error(findings)
    lost, seen = set[str](), dict[str, int]()
    for row in findings.rows:
        sample = row.transcript.sample
        seen[sample] = seen.get(sample, 0) + 1
        if may_replace(row, findings):
            lost.add(sample)
    return tuple(
        sample
        for sample in unit.samples
        if sample in lost or (seen.get(sample, 0) < epochs and not is_short)
    )


def has_task_error(findings: RunFindings) -> bool:
    """Return whether an error of the task's own ended the unit, not its node."""
    is_of_node = findings.failure_code or findings.interrupted or is_cut_off(findings)
    return bool(findings.errors) and not is_of_node


def another_try(
    unit: Unit, samples: Sequence[str], node: str, eligible: Collection[str]
) -> Unit | None:
    """Return the unit's next attempt; None: too many, or no node left that has not had it."""
    not_on = unit.not_on | {node}
    if not samples or unit.attempt >= MAX_ATTEMPTS or not set(eligible) - not_on:
        return None
    return replace(unit, samples=tuple(samples), attempt=unit.attempt + 1, not_on=not_on)


def deadline_s(
    unit: Unit, epochs: int, cells: int, time_limit_s: float | None, *, retries: int = 0
) -> float | None:
    """Return how long a unit may take on its node; None without the task's own time limit.

    Rounds of samples side by side, each with as long again for scoring and proof of its end.
    `retries`: attempts at a sample after an error, each with a time limit of its own.
    """
    if time_limit_s is None:
        return None
    rounds = math.ceil(len(unit.samples) * epochs / cells) * (1 + retries)
    return 120.0 + rounds * (2 * time_limit_s + 60.0)
