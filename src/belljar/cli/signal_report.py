"""What `belljar run` and `belljar verdict` show of each sample's signals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from belljar.units import printable

if TYPE_CHECKING:
    from belljar.report.samples import Row, RunFindings
    from belljar.report.signals import Signal

MAX_LINES: Final = 200
"""Of all samples: a report is read by a person.

`findings.json` in the run directory has the rest.
"""
MAX_NUMBERS: Final = 10
"""Event numbers that a line names."""
MAX_NAME_CHARS: Final = 40
_MAX_CHARS: Final = 300


def signal_lines(findings: RunFindings, *, verbose: bool = False) -> list[str]:
    """A line for each signal of each sample, escaped; what the controls say of them first.
    `verbose`: with the evidence, and what could not be seen."""
    invalid = [
        f"  INVALID: {printable(each.problem)}" for each in findings.controls if each.problem
    ]
    names = [_name(row) for row in findings.rows]
    width = min(MAX_NAME_CHARS, max(map(len, names), default=0))
    lines = [
        line
        for name, row in zip(names, findings.rows, strict=True)
        for line in _sample(name.ljust(width), row, verbose=verbose)
    ]
    blind = sum(bool(row.signals.blind) for row in findings.rows)
    if not (lines or invalid or blind or findings.controls):
        return []
    more = [f"  … {len(lines) - MAX_LINES} more line(s): findings.json in the run directory"]
    return [
        f"\nSignals ({_state(findings)}):",
        *invalid,
        *(lines[:MAX_LINES] or ["  none"]),
        *(more if len(lines) > MAX_LINES else ()),
        *([] if verbose or not blind else [f"  not everything was seen in {blind} sample(s): -v"]),
    ]


def _state(findings: RunFindings) -> str:
    from belljar.report.signals import Validity

    match findings.signals_validity:
        case Validity.NOT_CONTROLLED:
            return "no controls were run"
        case Validity.VALID:
            return f"{len(findings.controls)} controls passed"
        case _:
            return "invalid"


def _name(row: Row) -> str:
    epoch = f" #{row.transcript.epoch}" if row.transcript.epoch > 1 else ""
    return f"{printable(row.transcript.sample, max_chars=MAX_NAME_CHARS)}{epoch}"


def _sample(name: str, row: Row, *, verbose: bool) -> Iterator[str]:
    found = row.signals
    for number, signal in enumerate(found.signals):
        shown = name if number == 0 else " " * len(name)
        involved = printable(", ".join(signal.involved), max_chars=_MAX_CHARS)
        yield f"  {shown}  {signal.code.value:<16} ×{signal.count:<6} {involved}".rstrip()
        if verbose:
            yield f"    {_evidence(signal)}"
    if verbose and found.blind and not found.signals:
        yield f"  {name}  none"
    if verbose:
        yield from (
            f"    not seen: {printable(str(spot), max_chars=_MAX_CHARS)}" for spot in found.blind
        )


def _evidence(signal: Signal) -> str:
    evidence = signal.evidence
    left = len(evidence) - MAX_NUMBERS + signal.more if len(evidence) > MAX_NUMBERS else signal.more
    named = ", ".join(map(str, evidence[:MAX_NUMBERS]))
    numbers = f"{named} and {left} more" if left else named
    return f"{signal.trust.value}, event(s) {numbers}"
