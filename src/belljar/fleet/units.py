"""Decides how samples are cut into units, which nodes may run them, and what is tried again. Pure.

Sizes, nodes and outcomes in; decisions out. Nothing here waits or starts anything.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from belljar.dataclass import dataclass, replace
from belljar.probe.model import Verdict
from belljar.report.reasons import ReasonCode
from belljar.report.samples import Row, RunFindings

MAX_UNIT_SAMPLES: Final = 64
"""One command line names them, and one lost unit costs no more."""
MIN_UNIT_S: Final = 30.0
"""Loading Inspect takes a node some seconds: a shorter unit would mostly do that."""
MAX_UNIT_S: Final = 900.0
MAX_ATTEMPTS: Final = 3
NODE_TIMEOUT_S: Final = 12.0
"""Without an answer for so long, a node is lost."""

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
"""Causes by which a void sample is tried again: evidence went with a process or a disk.

None that a guest can bring about alone: a model must not be able to choose between two scores.
"""
_NEVER_ENDED: Final = frozenset({ReasonCode.PROBES_MISSING, ReasonCode.RANGE_NOT_DESTROYED})
"""The same of a record that ends with its process: nothing could be probed or destroyed then."""


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
    inspect: str = ""
    cells: int = 0
    has_token: bool = True
    refusal: str = ""


def refused(node: Node, *, version: str, inspect: str, pinned: Mapping[str, str]) -> Node:
    """The node, with the reason why it may not take part, if there is one."""
    why = node.refusal
    if not node.has_token:
        why = "Ray's token authentication is off there: set RAY_AUTH_MODE=token"
    elif node.version != version:
        why = f"it runs Belljar {node.version}, and the head {version}"
    elif node.inspect != inspect:
        why = f"it runs inspect-ai {node.inspect}, and the head {inspect}"
    elif pinned.get(node.name, node.key) != node.key:
        why = (
            f"its key is {node.key[:16]}…, and the one known for {node.name} is "
            f"{pinned[node.name][:16]}…"
        )
    return replace(node, refusal=why)


def cells_per_unit(nodes: Iterable[Node]) -> int:
    """How many cells a unit has at a time, so that the smallest node runs one unit or two.

    Two, where there is room: one works while the other waits for its last sample.
    """
    smallest = min(node.cells for node in nodes)
    return max(1, smallest if smallest < 4 else smallest // 2)


def slots(nodes: Iterable[Node], cells: int) -> int:
    """How many units of `cells` these nodes run at a time."""
    return sum(max(1, node.cells // cells) for node in nodes)


def next_size(remaining: int, *, slots: int, side_by_side: int, sample_s: float | None) -> int:
    """How many samples the next unit gets, of `remaining`; `sample_s`: measured, of one sample.

    Half of an equal share, so that later units are smaller and end together; but enough for the
    unit's cells, `side_by_side`.
    """
    share = math.ceil(remaining / slots)
    size = max(math.ceil(remaining / (2 * slots)), min(share, side_by_side))
    if sample_s:
        size = max(size, min(share, math.ceil(MIN_UNIT_S / sample_s)))
        size = min(size, max(1, int(MAX_UNIT_S / sample_s)))
    return max(1, min(size, remaining, MAX_UNIT_SAMPLES))


def is_cut_off(findings: RunFindings) -> bool:
    """Whether the unit's process died: its record has no end."""
    return any(reason.code is ReasonCode.LEDGER_UNFINISHED for reason in findings.problems)


def excused(findings: RunFindings) -> frozenset[ReasonCode]:
    """The causes of this unit that are infrastructure's."""
    return INFRASTRUCTURE | _NEVER_ENDED if is_cut_off(findings) else INFRASTRUCTURE


def may_replace(row: Row, findings: RunFindings) -> bool:
    """Whether another attempt may stand for this sample: infrastructure alone took its evidence.

    Or it was cut: a node without disk or memory, or interrupted, ends the evaluation.
    """
    codes = {reason.code for reason in row.reasons}
    is_cut = bool(row.transcript.error) and (findings.failure_code or findings.interrupted)
    return codes <= excused(findings) and bool(codes or is_cut)


def to_try_again(unit: Unit, epochs: int, findings: RunFindings | None) -> tuple[str, ...]:
    """The unit's samples that another node should run.

    `findings` None: the unit was lost. A breach is never retried.
    """
    if findings is None:
        return unit.samples
    if findings.verdict is Verdict.BREACHED:
        return ()
    if findings.refusal_code:  # 4: the task is wrong on every node
        return unit.samples if findings.refusal_code == 3 else ()
    # An error of the task's own ends an evaluation: what it kept from beginning is not lost.
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
    """Whether an error of the task's own ended the unit, not its node."""
    is_of_node = findings.failure_code or findings.interrupted or is_cut_off(findings)
    return bool(findings.errors) and not is_of_node


def another_try(
    unit: Unit, samples: Sequence[str], node: str, eligible: Collection[str]
) -> Unit | None:
    """The unit's next attempt, or None: too many, or no node left that has not had it."""
    not_on = unit.not_on | {node}
    if not samples or unit.attempt >= MAX_ATTEMPTS or not set(eligible) - not_on:
        return None
    return replace(unit, samples=tuple(samples), attempt=unit.attempt + 1, not_on=not_on)


def lost_nodes(last_heard_s: Mapping[str, float], now_s: float) -> frozenset[str]:
    """The nodes that have not answered for too long."""
    return frozenset(
        node for node, heard_s in last_heard_s.items() if now_s - heard_s > NODE_TIMEOUT_S
    )


def deadline_s(unit: Unit, epochs: int, cells: int, time_limit_s: float | None) -> float | None:
    """When the head gives up on a unit; None without the task's own time limit.

    Rounds of samples side by side, each with as long again for scoring and proof of its end.
    """
    if time_limit_s is None:
        return None
    rounds = math.ceil(len(unit.samples) * epochs / cells)
    return 120.0 + rounds * (2 * time_limit_s + 60.0)
