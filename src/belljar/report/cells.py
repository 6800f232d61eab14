"""Gathers each cell's record, and compares it with the transcript. Pure.

The ledger has more: calls that raised, the harness's own calls.
A call in the transcript alone never reached the cell: the evidence is void.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass, field
from belljar.differences import Difference
from belljar.events import Kind
from belljar.ledger.schema import Line
from belljar.probe.model import Verdict, worst
from belljar.report.reading import size_of
from belljar.report.reasons import Ending, Reason, ReasonCode


class TranscriptAction(StrEnum):
    EXEC = "exec"
    READ = "read_file"
    WRITE = "write_file"
    UPLOAD = "upload"
    DOWNLOAD = "download"
    LIST = "list"
    STAT = "stat"
    REMOVE = "remove"


Call: TypeAlias = tuple[TranscriptAction, str]  # in a transcript: with its command or path


@dataclass(slots=True, kw_only=True)
class ReportedOperation:
    """`outcome` is its last event's kind, None when it was cut off.

    `own`: Belljar or a sample's preparation did it.
    """

    op: int
    action: TranscriptAction
    what: str
    started: datetime | None = None
    pty: bool = False
    own: bool = False
    outcome: Kind | None = None
    code: int | None = None


PHASES: Final = ("start", "end")  # in which a sample's cell is probed
# What is known of a probing until its end is read.
CUT_OFF: Final = "it was cut off"


@dataclass(slots=True, kw_only=True)
class Probing:
    """A run of probes is void until its end is read."""

    phase: str
    verdict: Verdict = Verdict.VOID
    probes: int = 0
    duration_ms: float = 0.0
    problem: str = CUT_OFF
    breaches: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Degraded:
    """A call, or the sample's `end`, found this damage of a cell first."""

    cause: str
    detail: str
    phase: str
    op: int

    def __str__(self) -> str:
        when = "when the sample ended" if self.phase == "end" else f"at operation {self.op}"
        return f"degraded: {self.cause} ({self.detail}), noticed {when}"


@dataclass(slots=True, kw_only=True)
class ModelUse:
    """`devices` are the files of its GPUs."""

    name: str
    weights: str
    devices: list[str] = field(default_factory=list)
    requests: int = 0
    failed: int = 0


@dataclass(slots=True, kw_only=True)
class CellFindings(Ending):
    """The ledger says this of one cell.

    `bytes_in` counts files and standard input, `bytes_out` output and files.
    `host_tools` may act outside; `*` stands for all.
    `death` is its cause in use. `preparing`: the sample never began.
    `replaces` is the cell reverted to this one, `left_by_old` its remains,
    `unverified` why their search proves nothing.
    """

    cell_id: str
    tier: str = ""
    emulated: bool = False
    begun: bool = False
    model: ModelUse | None = None
    ahead: bool = False
    taken: bool = False
    task: str = ""
    sample: str = ""
    epoch: int = 1
    uuid: str = ""
    eval_id: str = ""
    preparing: bool = False
    replaces: str = ""
    left_by_old: tuple[str, ...] = ()
    unverified: str = ""
    range_id: str = ""
    host_tools: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()
    outcome: str = ""
    operations: dict[int, ReportedOperation] = field(default_factory=dict)
    bytes_in: int = 0
    bytes_out: int = 0
    degraded: Degraded | None = None
    failures: list[str] = field(default_factory=list)
    death: str = ""
    started: datetime | None = None
    ended: datetime | None = None
    probings: list[Probing] = field(default_factory=list)

    @property
    def is_unused(self) -> bool:
        return self.ahead and not self.taken and not self.sample

    @property
    def never_was(self) -> bool:
        """Return True if it failed before anything was made: each start is recorded first."""
        return bool(self.failures) and not (self.begun or self.operations or self.probings)

    def is_own(self, operation: ReportedOperation) -> bool:
        """Return whether it was Belljar's; without probes, all is the run's work."""
        return operation.own and bool(self.probings)

    @property
    def commands(self) -> int:
        return sum(
            each.action is TranscriptAction.EXEC and not each.own
            for each in self.operations.values()
        )

    def probed(self, phase: str) -> Verdict:
        """Return one phase's worst probe verdict; void without any."""
        return worst(probing.verdict for probing in self.probings if probing.phase == phase)

    @property
    def reasons(self) -> list[Reason]:
        """List why its sample is not contained, by this cell."""
        found = list[tuple[ReasonCode, str]]()
        phases = {probing.phase for probing in self.probings}
        found += [(ReasonCode.PROBES_MISSING, each) for each in PHASES if each not in phases]
        for each in self.probings:
            if each.verdict is Verdict.VOID:
                why = f"{each.phase or 'asked for'}: {each.problem or 'not all could be tried'}"
                found.append((ReasonCode.PROBES_VOID, why))
        # What an operation put out is in the event of its end
        if cut := sum(each.outcome is None for each in self.operations.values()):
            found.append((ReasonCode.OPERATIONS_CUT_OFF, str(cut)))
        died = [(ReasonCode.MODEL_CELL_DIED, self.death)] if self.model and self.death else []
        return [*self._reasons(died), *self.end_reasons, *self._reasons(found)]

    @property
    def end_reasons(self) -> list[Reason]:
        """List reasons even without a sample: a breach, or an unproven end."""
        found = self._reasons(
            (ReasonCode.PROBES_BREACHED, breach)
            for probing in self.probings
            if probing.verdict is Verdict.BREACHED
            for breach in probing.breaches or ["the event names no probe"]
        )
        if self.left_by_old:
            found += self._reasons([(ReasonCode.REVERT_UNCLEAN, ", ".join(self.left_by_old))])
        # Nothing ever ran in an unused cell that could not be made
        ran = bool(self.begun or self.operations or self.probings or not self.failures)
        if self.destroyed or ran or not self.is_unused:
            found += self.reasons_of_end("cell", self.cell_id)
        return found

    def _reasons(self, found: Iterable[tuple[ReasonCode, str]]) -> list[Reason]:
        where = f"cell {self.cell_id}"
        return [Reason(code=code, where=where, detail=detail) for code, detail in found]

    @property
    def lasted_s(self) -> float:
        return (self.ended - self.started).total_seconds() if self.started and self.ended else 0.0


# Operations on trees of files have one kind of start, which names the action.
_STARTS = {
    Kind.EXEC_STARTED: TranscriptAction.EXEC,
    Kind.FILE_READ_STARTED: TranscriptAction.READ,
    Kind.FILE_WRITE_STARTED: TranscriptAction.WRITE,
}
# Whatever ends an operation: one without any of these was cut off.
_ENDS = {
    kind
    for kind in Kind
    if kind.startswith(("exec.", "file.", "files."))
    and kind.endswith((".completed", ".failed", ".timed_out"))
}


class CellGatherer(dict[str, CellFindings]):
    def take(self, line: Line) -> None:
        # A template's guest has an id too, but no workload ever runs in it.
        if line.cell is not None and not line.kind.startswith("template."):
            cell = self.setdefault(line.cell, CellFindings(cell_id=line.cell))
            _add(cell, line)
            if line.kind is Kind.CELL_REVERTED:
                cell.replaces = str(line.data["from"])
                _inherit(cell, self.get(cell.replaces))
            elif line.kind is Kind.CELL_FORKED or (
                line.kind is Kind.CELL_REVERT_VERIFIED and line.data["found"]
            ):
                _inherit(cell, self.get(str(line.data["from"])))


def gather_cells(lines: Iterable[Line]) -> dict[str, CellFindings]:
    gatherer = CellGatherer()
    for line in lines:
        gatherer.take(line)
    return gatherer


def _add(cell: CellFindings, line: Line) -> None:
    kind, data, time = line.kind, line.data, datetime.fromisoformat(line.time)
    cell.started = time if kind is Kind.CELL_TAKEN else cell.started or time
    cell.ended = time
    if kind is Kind.FILES_STARTED or kind in _STARTS:
        _add_start(cell, kind, data, time)
    elif kind in _ENDS:
        _add_end(cell, line)
    elif kind is Kind.EXEC_INPUT:
        operation = cell.operations.get(size_of(data.get("op")))
        cell.bytes_in += 0 if operation and operation.own else size_of(data.get("bytes"))
    elif kind is Kind.SAMPLE_STARTED:
        _add_sample(cell, data)
    else:
        _add_fact(cell, kind, data)


def _add_start(cell: CellFindings, kind: Kind, data: Mapping[str, Any], time: datetime) -> None:
    action = _STARTS.get(kind) or TranscriptAction(data["action"])
    what = shlex.join(data["argv"]) if action is TranscriptAction.EXEC else str(data["path"])
    # Until the probes of the start have ended, Belljar prepares the cell, then starts and checks a
    # service's program, then Inspect prepares the sample
    is_probed = cell.probings and cell.probings[-1].problem != CUT_OFF
    operation = ReportedOperation(
        op=data["op"],
        action=action,
        what=what,
        started=time,
        pty=bool(data.get("pty")),
        own=not is_probed
        or (action is TranscriptAction.EXEC and (cell.preparing or not cell.sample)),
    )
    cell.operations[operation.op] = operation
    if action in (TranscriptAction.WRITE, TranscriptAction.UPLOAD) and is_probed:
        cell.bytes_in += size_of(data.get("bytes"))


def _add_end(cell: CellFindings, line: Line) -> None:
    data = line.data
    operation = cell.operations.get(data["op"])
    if operation is None:
        cell.failures.append(f"operation {data['op']} ended without a start")
        return
    operation.outcome, operation.code = line.kind, data.get("code")
    is_download = operation.action is TranscriptAction.DOWNLOAD
    is_file = line.kind is Kind.FILE_READ_COMPLETED or is_download
    sizes = ("bytes",) if is_file else ("stdout_bytes", "stderr_bytes")
    if not operation.own:
        cell.bytes_out += sum(size_of(data.get(each)) for each in sizes)
        cell.bytes_in += sum(body.total_bytes for body in line.bodies if body.name == "stdin")


def _add_sample(cell: CellFindings, data: Mapping[str, Any]) -> None:
    cell.sample, cell.epoch = str(data["sample"]), int(data.get("epoch") or 1)
    cell.task, cell.uuid = str(data.get("task", "")), str(data.get("uuid", ""))
    cell.eval_id = str(data.get("eval_id", ""))
    cell.preparing = data.get("preparing") is True
    if isinstance(allowed := data.get("host_tools"), list):
        cell.host_tools = tuple(str(name) for name in allowed)
    if isinstance(found := data.get("differences"), list):
        facts = (Difference.of_data(each) for each in found if isinstance(each, Mapping))
        cell.differences = tuple(facts)


def _inherit(cell: CellFindings, of: CellFindings | None) -> None:
    """Give it the other cell's sample, which its past operations prepared."""
    # Copying the sample's files in, and its set-up, are no commands of the model's.
    for operation in cell.operations.values():
        operation.own = True
    cell.bytes_in, cell.bytes_out, cell.preparing = 0, 0, False
    if of is not None:
        for name in ("task", "sample", "epoch", "uuid", "eval_id", "host_tools", "differences"):
            setattr(cell, name, getattr(of, name))


def _add_fact(cell: CellFindings, kind: Kind, data: Mapping[str, Any]) -> None:
    match kind:
        case Kind.CELL_PLANNED:
            cell.tier, cell.emulated = str(data["tier"]), bool(data["emulated"])
            cell.ahead = data.get("ahead") is True
            cell.range_id = str(data.get("range", ""))
            if isinstance(about := data.get("model"), Mapping):
                cell.model = ModelUse(name=str(about["name"]), weights=str(about["weights"]))
                cell.model.devices = [*map(str, about.get("devices", ()))]
        case Kind.CELL_STARTING | Kind.CELL_CLONING:
            cell.begun = True
        case Kind.MODEL_REQUEST_STARTED if cell.model is not None:
            cell.model.requests += 1
        case Kind.MODEL_REQUEST_FAILED if cell.model is not None:
            cell.model.failed += 1
        case Kind.CELL_REVERT_VERIFIED:
            cell.left_by_old = tuple(str(each) for each in data["found"])
            if not data["planted"]:
                cell.unverified = "; ".join(map(str, data["not_checked"])) or "nothing was left"
        case Kind.CELL_TAKEN:
            cell.taken = True
        case Kind.SAMPLE_RUNNING:
            cell.preparing = False
        case Kind.SAMPLE_FINISHED:
            cell.outcome = str(data.get("outcome", ""))
        case Kind.PROBE_STARTED:
            cell.probings.append(Probing(phase=str(data["phase"])))
        case Kind.PROBE_COMPLETED:
            _add_probing(cell, data)
        case Kind.CELL_CHECKED if data["cause"] and cell.degraded is None:
            words = {each: str(data.get(each, "")) for each in ("cause", "detail", "phase")}
            cell.degraded = Degraded(op=size_of(data["op"]), **words)
        case Kind.CELL_FAILED | Kind.PROTOCOL_VIOLATION:
            cell.failures.append(str(data["reason"]))
            cell.death = cell.death or str(data["reason"])
        case Kind.CELL_DESTROYED:
            cell.take_end(data)
        case _:
            pass


def _add_probing(cell: CellFindings, data: Mapping[str, Any]) -> None:
    if not cell.probings or cell.probings[-1].problem != CUT_OFF:
        cell.failures.append("probes ended without a start")
        cell.probings.append(Probing(phase=str(data["phase"])))
        return
    probing = cell.probings[-1]
    probing.verdict, probing.problem = Verdict(str(data["verdict"])), str(data["problem"])
    probing.probes, probing.duration_ms = size_of(data["probes"]), float(data["duration_ms"])
    probing.breaches = [
        f"{finding.get('name')}: {finding.get('seen')}"
        for finding in data.get("findings", [])
        if isinstance(finding, Mapping) and finding.get("verdict") == Verdict.BREACHED
    ]


def reconcile(
    calls: Sequence[Call], cells: Sequence[CellFindings]
) -> tuple[tuple[ReportedOperation, ...], int]:
    """Match a sample's transcript with its cells' operations (several after retries).

    Return the hidden operations, which only a cell has and neither Belljar nor a person's terminal
    made; and the count of calls that only the transcript has.
    """
    operations = [operation for cell in cells for operation in cell.operations.values()]
    open_calls = Counter(calls)
    hidden: list[ReportedOperation] = []
    # A call that raised is not in the transcript: of two equal ones, the returned one is.
    for operation in sorted(operations, key=lambda each: "completed" not in (each.outcome or "")):
        asked = operation.action, operation.what
        if open_calls[asked]:
            open_calls[asked] -= 1
        elif not (operation.own or operation.pty):
            hidden.append(operation)
    return tuple(hidden), open_calls.total()
