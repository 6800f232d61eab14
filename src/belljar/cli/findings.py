"""A run's findings as text: samples, networks, signals, remarks."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from belljar.cli.console import COLOURS, rich_console, table_lines
from belljar.ledger.rundir import INSPECT_LOGS
from belljar.units import format_duration, format_size, printable

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

    from belljar.harness.evaluate import RunOutcome
    from belljar.report.ranges import RangeFindings
    from belljar.report.requests import Requests
    from belljar.report.samples import Row, RunFindings

MAX_NETWORK_LINES: Final = 400
MAX_SIGNAL_LINES: Final = 200  # Of all samples, for a person; `findings.json` has the rest
MAX_ROWS: Final = 20  # Of a table with more, equal rows are one
MAX_EVENT_NUMBERS: Final = 10  # That a line names
MAX_NAME_CHARS: Final = 40
_REQUEST_COLUMNS: Final = (
    *("time (UTC)", "cell", "method", "what", "status"),
    *("asked → answered", "verdict", "answered by"),
)
_SAMPLE_COLUMNS: Final = (
    *("sample", "score", "verdict", "probes", "cell", "commands"),
    *("in", "out", "time", "destroyed", "note"),
)


def show_findings(
    findings: RunFindings,
    path: Path,
    more: Sequence[str] = (),
    *,
    verbose: bool = False,
    every: bool = False,
) -> None:
    """Print samples, differences, remarks, reasons, and where the evidence is.

    `every`: equal rows, too. A defect here must not change the exit code: it is shown, and the
    verdict stands.
    """
    try:
        _show(findings, path, more, verbose=verbose, every=every)
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - whatever is wrong with the report
        traceback.print_exc()
        verdict = f"{findings.verdict.value}, exit code {findings.exit_code}"
        what = (
            "the report can't be shown, which is a defect of Belljar; the verdict is not affected"
        )
        click.echo(f"belljar: {what}: {verdict}", err=True)


def _show(
    findings: RunFindings, path: Path, more: Sequence[str], *, verbose: bool, every: bool
) -> None:
    from belljar.report.remarks import model_sentence, problems_and_errors
    from belljar.report.samples import headline
    from belljar.report.tools import tool_lines

    console = rich_console()
    console.print()
    if findings.rows:
        console.print(table(findings, every=every))
    lines = (
        *map(model_sentence, findings.models),
        *network_lines(findings, findings.run_id, verbose=verbose),
        *signal_lines(findings, verbose=verbose),
        *remarks(findings),
        *tool_lines(findings.tools),
        *more,
    )
    for line in lines:
        console.print(line, markup=False)
    for line in findings.left.lines():
        console.print(line, markup=False, style="bold red" if findings.left.destinations else None)
    for line in problems_and_errors(findings):
        console.print(line, markup=False)
    verdict = findings.verdict.value
    colour = "void" if findings.exit_code and verdict == "contained" else verdict
    console.print(f"\n{headline(findings)}", markup=False, style=COLOURS[colour])
    where = [f"run {printable(findings.run_id)}: {printable(str(path))}"]
    if findings.rows and (path / INSPECT_LOGS).is_dir():
        view = shlex.join(["inspect", "view", "--log-dir", str(path / INSPECT_LOGS)])
        where.append(f"Inspect's log, with tracebacks: {printable(view)}")
    console.print("\n".join(where), markup=False, soft_wrap=True)  # in lines that can be copied


# --- samples


def dropped(outcome: RunOutcome) -> list[str]:
    """What `--require-contained` took out of the metrics."""
    if not outcome.dropped:
        return []
    named = printable(", ".join(outcome.dropped), max_chars=400)
    if not any(row.verdict.value == "contained" for row in outcome.findings.rows):
        return [f"no sample is contained: there are no metrics. Left out: {named}"]
    count = len(outcome.dropped)
    return [f"{count} sample(s) that are not contained do not count in the metrics: {named}"]


def table(findings: RunFindings, *, every: bool = False) -> Table:
    """One line per sample; one for equal contained ones of more than `MAX_ROWS`, unless `every`."""
    from rich.markup import escape
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in _SAMPLE_COLUMNS:
        right = name in {"commands", "in", "out", "time"}
        shown.add_column(name, justify="right" if right else "left", overflow="fold")
    alike: dict[object, list[Row]] = {}
    for row in findings.rows:
        is_plain = row.verdict.value == "contained" and not row.transcript.error
        of_row = dict(zip(_SAMPLE_COLUMNS, _cells(row), strict=True))
        key: object = (of_row["score"], of_row["destroyed"], of_row["note"])
        fits = is_plain and not every and len(findings.rows) > MAX_ROWS
        alike.setdefault(key if fits else id(row), []).append(row)
    for rows in alike.values():
        cells = zip(_SAMPLE_COLUMNS, _cells(*rows), strict=True)
        shown.add_row(
            *(
                cell if name == "verdict" else escape(printable(cell, max_chars=200))
                for name, cell in cells
            )
        )
    return shown


def _cells(row: Row, *more: Row) -> list[str]:
    rows = (row, *more)
    transcript, verdict = row.transcript, row.verdict.value
    return [
        f"{len(rows):,} samples" if more else transcript.name,
        " ".join(transcript.scores.values()) or ("error" if transcript.error else "-"),
        f"[{COLOURS[verdict]}]{verdict}[/]",
        row.probed,
        "--all lists them" if more else " ".join(cell.cell_id for cell in row.cells) or "none",
        str(sum(each.commands for each in rows)),
        format_size(sum(each.bytes_in for each in rows)),
        format_size(sum(each.bytes_out for each in rows)),
        format_duration(sum(each.lasted_s for each in rows)),
        "-" if not row.cells else "proven" if row.destroyed else "NOT PROVEN",
        "; ".join((*map(str, row.reasons), *row.remarks)),
    ]


def remarks(findings: RunFindings) -> list[str]:
    """Remarks that no transcript has, none of them a reason."""
    from belljar.report.remarks import differing, not_in_transcript, run_remarks

    lines = list[str]()
    for title, found in (
        ("In the ledger, but not in Inspect's transcript", not_in_transcript(findings.rows)),
        ("Different from what the task or the policy says", differing(findings.rows)),
    ):
        lines += [f"\n{title}:", *(f"  {each}" for each in found)] if found else []
    return lines + run_remarks(findings)


# --- networks


def network_lines(findings: RunFindings, run_id: str, *, verbose: bool = False) -> list[str]:
    """An escaped block for each range. Empty without networks."""
    from belljar.report.remarks import range_sentences

    lines: list[str] = []
    ranges = [(row.transcript, each) for row in findings.rows for each in row.ranges]
    for shown, (transcript, found) in enumerate(ranges):
        if len(lines) > MAX_NETWORK_LINES:
            left = f"{len(ranges) - shown} more sample(s)"
            lines.append(f"\nThe network of {left}: findings.json in the run directory")
            break
        sample, names = printable(transcript.name, max_chars=80), found.cells.values()
        packets = f"; packets: {found.packets}" if found.packets else ""
        about = f"range {found.range_id}, cells {', '.join(map(printable, names))}{packets}"
        lines.append(f"\nNetwork of {sample}: {about}")
        for title, requests in (
            ("to the gateway, each on record before it was answered", found.requests),
            ("between cells, by the gateway", found.between_cells),
        ):
            lines += (f"  {line}" for line in _requests(title, found, requests, run_id))
        lines += (f"  {line}" for line in range_sentences(found, verbose=verbose))
    return lines


def _requests(title: str, found: RangeFindings, requests: Requests, run_id: str) -> Iterator[str]:
    if not requests.count:
        return
    yield f"{requests.count} request(s) and connection(s) {title}:"
    rows: list[tuple[str, ...]] = [_REQUEST_COLUMNS]
    for request in requests:
        answer = "-" if request.answer_bytes is None else format_size(request.answer_bytes)
        why = "" if request.verdict == "allowed" else f": {request.reason}"
        rows.append(
            (
                request.time[11:23],
                request.cell or "?",
                request.method,
                request.what,
                "-" if request.status is None else str(request.status),
                f"{format_size(request.request_bytes)} → {answer}",
                f"{request.verdict}{why}",
                request.stand_in or "-",
            )
        )
    # In columns; a long address is not cut, and moves only what stands after it in its own line
    head, *lines = table_lines(rows, max_chars=60)
    yield head
    yield from lines[: len(requests.first)]
    if requests.between:
        command = f"belljar ledger show {run_id} --kind network --grep {found.range_id}"
        yield f"… {requests.between} more: {command}"
    yield from lines[len(requests.first) :]


# --- signals


def signal_lines(findings: RunFindings, *, verbose: bool = False) -> list[str]:
    """An escaped line for each signal; `verbose`: with the evidence."""
    names = [printable(row.transcript.name, max_chars=MAX_NAME_CHARS) for row in findings.rows]
    width = min(MAX_NAME_CHARS, max(map(len, names), default=0))
    lines = [
        line
        for name, row in zip(names, findings.rows, strict=True)
        for line in _sample(name.ljust(width), row, verbose=verbose)
    ]
    blind, run = sum(bool(row.signals.blind) for row in findings.rows), printable(findings.run_id)
    if not (lines or blind):
        return []
    shown = ["\nSignals:", *(lines[:MAX_SIGNAL_LINES] or ["  none"])]
    if (more := len(lines) - MAX_SIGNAL_LINES) > 0:
        shown.append(f"  … {more} more line(s): findings.json in the run directory")
    if blind and not verbose:
        shown.append(f"  not everything was seen in {blind} sample(s): belljar verdict {run} -v")
    return shown


def _sample(name: str, row: Row, *, verbose: bool) -> Iterator[str]:
    found = row.signals
    for number, signal in enumerate(found.signals):
        shown = name if number == 0 else " " * len(name)
        involved = printable(", ".join(signal.involved), max_chars=300)
        yield f"  {shown}  {signal.code.value:<16} ×{signal.count:<6} {involved}".rstrip()
        if verbose:
            evidence = signal.evidence
            numbers = ", ".join(map(str, evidence[:MAX_EVENT_NUMBERS]))
            left = max(0, len(evidence) - MAX_EVENT_NUMBERS) + signal.more
            more = f" and {left} more" if left else ""
            yield f"    {signal.trust.value}, event(s) {numbers}{more}"
    if verbose and found.blind and not found.signals:
        yield f"  {name}  none"
    if verbose:
        yield from (f"    not seen: {printable(str(spot), max_chars=300)}" for spot in found.blind)
