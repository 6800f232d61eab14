"""Cuts samples into units, decides on retries, judges the whole. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import product
from typing import Final

from belljar.dataclass import dataclass, replace
from belljar.probe.model import Verdict
from belljar.report.left import Left, together
from belljar.report.reasons import Reason, ReasonCode
from belljar.report.samples import Row, RunFindings, Transcript
from belljar.units import printable

MAX_UNIT_SAMPLES: Final = 64  # one command line names them, and one lost unit costs no more
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
_NEVER_ENDED: Final = frozenset(
    {ReasonCode.PROBES_MISSING, ReasonCode.OPERATIONS_CUT_OFF, ReasonCode.RANGE_NOT_DESTROYED}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """It has all epochs of its samples; `not_on`: its past nodes."""

    number: int
    samples: tuple[str, ...]
    attempt: int = 1
    not_on: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        return f"{self.number:05d}-{self.attempt}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """`cells`: at a time. `refusal`: why it gets no unit."""

    node_id: str
    name: str
    key: str = ""
    cells: int = 0
    refusal: str = ""


def cells_per_unit(nodes: Iterable[Node]) -> int:
    # Of two units on a node one works while the other waits for its last sample.
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
    return INFRASTRUCTURE | _NEVER_ENDED if is_cut_off(findings) else INFRASTRUCTURE


def may_replace(row: Row, findings: RunFindings) -> bool:
    """Return whether infrastructure took the evidence, or cut the sample."""
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
    seen = Counter(row.transcript.sample for row in findings.rows)
    lost = {row.transcript.sample for row in findings.rows if may_replace(row, findings)}
    missing = {each for each in unit.samples if seen[each] < epochs and not is_short}
    return tuple(each for each in unit.samples if each in lost | missing)


def has_task_error(findings: RunFindings) -> bool:
    is_of_node = findings.failure_code or findings.interrupted or is_cut_off(findings)
    return bool(findings.errors) and not is_of_node


def another_try(
    unit: Unit, samples: Sequence[str], node: str, eligible: Collection[str]
) -> Unit | None:
    """Return None for too many attempts, or no untried node."""
    not_on = unit.not_on | {node}
    if not samples or unit.attempt >= MAX_ATTEMPTS or not set(eligible) - not_on:
        return None
    return replace(unit, samples=tuple(samples), attempt=unit.attempt + 1, not_on=not_on)


def deadline_s(
    unit: Unit, epochs: int, cells: int, time_limit_s: float | None, *, retries: int = 0
) -> float | None:
    """Each round leaves time for scoring and proof of its end."""
    if time_limit_s is None:
        return None
    rounds = math.ceil(len(unit.samples) * epochs / cells) * (1 + retries)
    return 120.0 + rounds * (2 * time_limit_s + 60.0)


KIND: Final = "fleet"  # the kind of a fleet's run
# They say that a unit has no samples, of which each has a void row of its own here.
_NO_ROWS: Final = frozenset({ReasonCode.NO_SAMPLES, ReasonCode.RUN_REFUSED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Try:
    """One unit on one node. `findings` None: nothing that verifies came back, and `why`.

    `began` False: interrupted before it could make a cell. `is_bad`: the result does not verify.
    `archive`: its digest; `run_id`, `key` and `root` are its ledger's.
    """

    unit: Unit
    node: str
    findings: RunFindings | None = None
    why: str = ""
    began: bool = True
    is_bad: bool = False
    archive: str = ""
    run_id: str = ""
    key: str = ""
    root: str = ""

    @property
    def where(self) -> str:
        return f"unit {self.unit.name} on {self.node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    run_id: str
    task: str
    samples: tuple[str, ...]
    epochs: int


def judge_fleet(
    asked: Asked,
    tries: Sequence[Try],
    *,
    problems: Iterable[Reason] = (),
    interrupted: bool = False,
    stopped: bool = False,
    own: Left | None = None,
) -> RunFindings:
    """Return the findings of the whole: each sample by one attempt, and the worst verdict.

    `stopped`: an error or a breach ended it. `own`: what left by the head's process.
    """
    last = counted_rows(tries)
    counted = {id(each) for each, _ in last.values()}
    tried: dict[str, list[Try]] = {}
    for each in tries:
        for sample in each.unit.samples:
            tried.setdefault(sample, []).append(each)
    doubts = [*problems, *_forged(asked, tries, [row for _, row in last.values()])]
    bad, code = (each for each in tries if each.is_bad), ReasonCode.LEDGER_BAD
    doubts += [Reason(code=code, where=each.where, detail=each.why) for each in bad]
    is_ended, rows = interrupted or stopped, list[Row]()
    for sample, epoch in product(asked.samples, range(1, asked.epochs + 1)):
        mine, found = tried.get(sample, []), last.get((sample, epoch))
        # The end of the evaluation alone may explain that there is no record of a sample.
        is_unseen = any(each.began and each.findings is None for each in mine)
        if found is None and is_ended and not is_unseen and (not mine or _ended_early(mine[-1])):
            continue
        rows.append(row := _row(asked, mine, sample, epoch, found))
        doubts += [] if found else row.reasons
    known = [(each, each.findings) for each in tries if each.findings is not None]
    doubts += [
        replace(reason, where=f"{each.where}, {reason.where}" if reason.where else each.where)
        for each, findings in known
        for reason in findings.problems
        # What infrastructure took of an attempt counts if its samples do; all else always.
        if reason.code not in _NO_ROWS
        and (id(each) in counted or reason.code not in excused(findings))
    ]
    lost = [f"{each.where}: {each.why}" for each in tries if not each.findings and each.began]
    lost += [] if tries else ["no unit is on record"]
    errors = [
        (findings.failure_code, f"{each.where}: {error}")
        for each, findings in known
        for error in findings.errors
        # What was cut there has a void row, or ran elsewhere.
        if id(each) in counted and not (findings.interrupted or is_cut_off(findings))
    ]
    parts = [*([] if own is None else [own]), *(findings.left for _, findings in known)]
    return RunFindings(
        run_id=asked.run_id,
        rows=tuple(rows),
        strays=tuple(cell for _, each in known for cell in each.strays),
        models=tuple(cell for _, each in known for cell in each.models),
        stray_ranges=tuple(one for _, each in known for one in each.stray_ranges),
        problems=tuple(dict.fromkeys(doubts)),
        errors=tuple(error for _, error in errors),
        left=together(parts, doubts=lost),
        interrupted=interrupted,
        failure_code=max((code for code, _ in errors), default=0),
    )


def _ended_early(tried: Try) -> bool:
    found = tried.findings
    if found is None:
        return not tried.began
    is_stopped = has_task_error(found) or found.verdict is Verdict.BREACHED
    return found.interrupted or bool(found.rows and is_stopped)


def counted_rows(tries: Iterable[Try]) -> dict[tuple[str, int], tuple[Try, Row]]:
    """No verdict and no score is exchanged, but for what infrastructure took."""
    found: dict[tuple[str, int], tuple[Try, Row]] = {}
    for each in tries:
        for row in each.findings.rows if each.findings is not None else ():
            key = (row.transcript.sample, row.transcript.epoch)
            if row.transcript.sample not in each.unit.samples:  # a node speaks for no other's
                continue
            if key in found:
                before, known = found[key]
                # A breach counts of whichever attempt; anything else in place of lost evidence.
                is_worse = row.verdict is Verdict.BREACHED
                is_lost = before.findings is not None and may_replace(known, before.findings)
                if not (is_worse or is_lost):
                    continue
            found[key] = (each, row)
    return found


def _forged(asked: Asked, tries: Iterable[Try], rows: Iterable[Row]) -> Iterator[Reason]:
    for tried in tries:
        due = set(product(tried.unit.samples, range(1, asked.epochs + 1)))
        for row in tried.findings.rows if tried.findings is not None else ():
            key = (row.transcript.sample, row.transcript.epoch)
            if key not in due or row.transcript.task not in {asked.task, ""}:
                detail = printable(f"{row.transcript.task} {key[0]} #{key[1]}", max_chars=200)
                yield Reason(code=ReasonCode.UNIT_FORGED, where=tried.where, detail=detail)
            due.discard(key)  # a second row of the same sample is then one too many
    # Verdicts are written into the log by it.
    uuids = Counter(row.transcript.uuid for row in rows if row.is_logged)
    for uuid in (uuid for uuid, count in uuids.items() if count > 1):
        yield Reason(code=ReasonCode.UNIT_FORGED, detail=f"one uuid twice: {printable(uuid)}")


def _row(
    asked: Asked, mine: Sequence[Try], sample: str, epoch: int, found: tuple[Try, Row] | None
) -> Row:
    if found is None:
        why = f"{mine[-1].where}: {mine[-1].why or 'not in its record'}" if mine else "never placed"
        return Row(
            transcript=Transcript(task=asked.task, sample=sample, epoch=epoch, uuid="", error=why),
            reasons=(Reason(code=ReasonCode.UNIT_LOST, detail=why),),
            is_logged=False,
        )
    used, row = found
    notes = [f"{e.where}: {_outcome(e, sample, epoch)}" for e in mine if e is not used]
    return replace(row, transcript=replace(row.transcript, notes=(*row.transcript.notes, *notes)))


def _outcome(tried: Try, sample: str, epoch: int) -> str:
    for row in tried.findings.rows if tried.findings is not None else ():
        if (row.transcript.sample, row.transcript.epoch) == (sample, epoch):
            scores = " ".join(row.transcript.scores.values())
            why = "; ".join(map(str, row.reasons)) or row.transcript.error
            seen = ", ".join(dict.fromkeys(each.code.value for each in row.signals.signals))
            more = f"; signals: {seen}" if seen else ""
            return f"{row.verdict.value}{f' (score {scores})' if scores else ''}: {why}{more}"
    return tried.why or "it is not in its record"


def summary(tries: Sequence[Try]) -> list[str]:
    if not tries:
        return ["fleet: no unit ran"]
    failed = [each for each in tries if each.began and (each.findings is None or each.why)]
    nodes, units = {each.node for each in tries}, {each.unit.number for each in tries}
    share = 100 * len(failed) / len(tries)
    head = (
        f"fleet: {len(units)} unit(s) on {len(nodes)} node(s), {len(tries)} attempt(s); "
        f"infrastructure failures: {len(failed)} of {len(tries)} ({share:.0f} %)"
    )
    return [head, *(f"  {each.where}: {printable(each.why, max_chars=400)}" for each in failed)]
