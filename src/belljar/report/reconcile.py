"""The harness's transcript against the ledger: what happened that the transcript does not show, and
what it shows that did not happen. Pure.

The transcript is written above the cell, the ledger at its wall. So the ledger has more: calls that
raised, calls the harness made on its own behalf, whole outputs. What only the transcript has never
reached the cell: then something stands between the two that should not, and the evidence is void.
"""

from __future__ import annotations

from collections.abc import Sequence

from belljar.dataclass import dataclass
from belljar.events import Kind
from belljar.report.cells import Action, CellFindings, Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call as the transcript has it. `shown_bytes` of its output are readable there."""

    action: Action
    what: str
    shown_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What the transcript of one sample does not show.

    `raised`: failed, timed out or cut off. `terminal`: a person's terminal. `silent`: returned
    normally and yet not there: the harness's own work, or hidden by its rules. `shortened`: there,
    but with less of its output than came out of the cell; `missing_bytes` is how much less.
    `unfounded`: only the transcript has it.
    """

    raised: tuple[Operation, ...] = ()
    terminal: tuple[Operation, ...] = ()
    silent: tuple[Operation, ...] = ()
    shortened: int = 0
    missing_bytes: int = 0
    unfounded: tuple[Call, ...] = ()

    @property
    def hidden(self) -> int:
        """How many operations the transcript does not show at all."""
        return len(self.raised) + len(self.terminal) + len(self.silent)


_RETURNED = {
    Kind.EXEC_COMPLETED,
    Kind.FILE_READ_COMPLETED,
    Kind.FILE_WRITE_COMPLETED,
    Kind.FILES_COMPLETED,
}


def reconcile(calls: Sequence[Call], cells: Sequence[CellFindings]) -> Difference:
    """Match the calls of one sample's transcript with the operations of its cells (more than one
    when the sample was tried again).
    """
    operations = [operation for cell in cells for operation in cell.operations.values()]
    open_calls: dict[tuple[Action, str], list[Call]] = {}
    for call in calls:
        open_calls.setdefault((call.action, call.what), []).append(call)
    hidden: list[Operation] = []
    shortened = missing_bytes = 0
    for operation in _returned_first(operations):
        matching = open_calls.get((operation.action, operation.what))
        if not matching:
            hidden.append(operation)
            continue
        short = max(0, operation.output_bytes - matching.pop(0).shown_bytes)
        shortened, missing_bytes = shortened + (short > 0), missing_bytes + short
    return Difference(
        raised=tuple(o for o in hidden if not o.pty and o.outcome not in _RETURNED),
        terminal=tuple(o for o in hidden if o.pty),
        silent=tuple(o for o in hidden if not o.pty and o.outcome in _RETURNED),
        shortened=shortened,
        missing_bytes=missing_bytes,
        unfounded=tuple(call for left in open_calls.values() for call in left),
    )


def _returned_first(operations: Sequence[Operation]) -> list[Operation]:
    """A call that raised leaves no trace in the transcript: of two equal ones, the one that
    returned is the one that is there.
    """
    return sorted(operations, key=lambda operation: operation.outcome not in _RETURNED)
