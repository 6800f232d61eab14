"""A run's findings as text: samples, networks, signals, remarks."""

from __future__ import annotations

import errno
import shlex
import traceback
from collections import Counter
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
# Of all samples, for a person; `findings.json` in the run directory has the rest.
MAX_SIGNAL_LINES: Final = 200
MAX_ROWS: Final = 20
"""Of a table with more, equal rows are one."""
MAX_EVENT_NUMBERS: Final = 10
"""Event numbers that a line names."""
MAX_NAME_CHARS: Final = 40
_REQUEST_COLUMNS: Final = (
    *("time (UTC)", "cell", "method", "what", "status"),
    *("asked → answered", "verdict", "answered by"),
)
_SAMPLE_COLUMNS: Final = (
    *("sample", "score", "verdict", "probes", "cell", "commands"),
    *("in", "out", "time", "destroyed", "note"),
)
_OPERATIONS: Final = {"exec": "commands", "read_file": "file reads", "write_file": "file writes"}
# The rules' words (`plan.rules.Reason`) that need explaining.
WHY: Final = {
    "connection": "",
    "segment": "outside of any connection that is known",
    "others": "for several reasons",
    "spoofed": "a sender's address that is not the cell's",
    "source_route": "a route of the sender's choice",
    "options": "IPv4 options",
    "forbidden": "an address that no policy can allow",
    "neighbour": "another cell, which the policy does not let it reach there",
    "port": "a port that is not served there",
    "address": "an address that nobody has",
    "udp": "UDP that nobody serves",
    "icmp": "ICMP that nobody serves",
    "rate": "too many a second",
    "stray": "from no port of the range's",
}


def findings_json(findings: RunFindings, path: Path) -> dict[str, object]:
    """The findings as JSON values."""
    from belljar.report.samples import as_json

    return {"run_dir": str(path), **as_json(findings)}


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
    from belljar.report.samples import headline
    from belljar.report.tools import tool_lines

    console = rich_console()
    console.print()
    if findings.rows:
        console.print(table(findings, every=every))
    lines = (
        *model_lines(findings),
        *network_lines(findings, findings.run_id, verbose=verbose),
        *signal_lines(findings, verbose=verbose),
        *remarks(findings),
        *tool_lines(findings.tools),
        *more,
    )
    for line in lines:
        console.print(line, markup=False)
    for use in findings.upstreams:
        console.print(use.sentence(), markup=False, style="bold red")
    for line in reasons(findings):
        console.print(line, markup=False)
    colour = COLOURS[
        "void"
        if findings.exit_code and findings.verdict.value == "contained"
        else findings.verdict.value
    ]
    console.print(f"\n{headline(findings)}", markup=False, style=colour)
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
    degraded = [f"cell {cell}: {each}" for cell, each in row.degraded]
    not_run = [
        f"scorer: `{printable(name, max_chars=100)}` not found or not runnable, {count:,} time(s)"
        for name, count in row.not_run.items()
    ]
    epoch = f" #{transcript.epoch}" if transcript.epoch > 1 else ""
    return [
        f"{len(rows):,} samples" if more else f"{transcript.sample}{epoch}",
        " ".join(transcript.scores.values()) or ("error" if transcript.error else "-"),
        f"[{COLOURS[verdict]}]{verdict}[/]",
        row.probed,
        "--all lists them" if more else " ".join(cell.cell_id for cell in row.cells) or "none",
        str(sum(each.commands for each in rows)),
        format_size(sum(each.bytes_in for each in rows)),
        format_size(sum(each.bytes_out for each in rows)),
        format_duration(sum(each.lasted_s for each in rows)),
        "-" if not row.cells else "proven" if row.destroyed else "NOT PROVEN",
        "; ".join((*map(str, row.reasons), *degraded, *not_run, *transcript.notes)),
    ]


def model_lines(findings: RunFindings) -> list[str]:
    """An escaped line for each model cell."""
    lines = []
    for cell in findings.models:
        if (use := cell.model) is None:
            continue
        probed = "/".join(cell.probed(phase).value for phase in ("start", "end"))
        failed = f", {use.failed:,} failed" if use.failed else ""
        tokens = f"{use.prompt_tokens:,} → {use.completion_tokens:,} tokens"
        proven = "destruction proven" if cell.destroyed and cell.clean else "NOT PROVEN destroyed"
        device = "ON A NETWORK" if cell.range_id else "no network device"
        lines.append(
            f"model {printable(use.name)} (sha256:{printable(use.weights)[:12]}): cell "
            f"{cell.cell_id}, {cell.tier}, {device}; {use.requests:,} request(s){failed}, "
            f"{tokens}; probes {probed}; {proven}"
        )
        if cell.death:
            lines.append(f"error: model cell {cell.cell_id} died: {printable(cell.death)}")
    return lines


def differing(findings: RunFindings) -> list[str]:
    """Each difference once, with its samples."""
    from belljar.differences import samples_named, sentences

    samples: dict[str, dict[str, None]] = {}
    for row in findings.rows:
        for sentence in sentences(row.differences):
            samples.setdefault(sentence, {})[row.transcript.sample] = None
    if not samples:
        return []
    count = len({row.transcript.sample for row in findings.rows})
    return [
        "\nDifferent from what the task or the policy says:",
        *(
            f"  {sentence}" if len(named) == count else f"  {samples_named(named)}: {sentence}"
            for sentence, named in samples.items()
        ),
    ]


def _not_in_transcript(rows: Sequence[Row]) -> list[str]:
    counts = Counter[str]()
    for gap in (row.transcript_gap for row in rows):
        for operation in gap.raised:
            what = _OPERATIONS.get(operation.action.value, "other operations")
            missing = " of missing files" if operation.errno == errno.ENOENT else ""
            counts[f"{what}{missing} that failed"] += 1
        counts += Counter(  # which drops what never happened
            {
                "operations of the harness itself": len(gap.silent),
                "commands in a person's terminal": len(gap.terminal),
            }
        )
    lines = [f"  {count:,} {what}" for what, count in counts.items()]
    missing_bytes = sum(row.transcript_gap.missing_bytes for row in rows)
    if missing_bytes:
        shortened = sum(row.transcript_gap.shortened for row in rows)
        lines.append(
            f"  {format_size(missing_bytes)} of output, cut by the transcript in {shortened:,} "
            f"operation(s)"
        )
    return ["\nIn the ledger, but not in Inspect's transcript:", *lines] if lines else []


def remarks(findings: RunFindings) -> list[str]:
    """Remarks that no transcript has, none of them a reason."""
    lines = [*_not_in_transcript(findings.rows), *differing(findings)]
    lines += [
        f"cell {cell.cell_id} was created, but the run ended before its sample began"
        for cell in findings.strays
        if not cell.sample and not cell.is_unused
    ]
    if findings.host_processes:
        named = ", ".join(f"{name} {times}×" for name, times in findings.host_processes.items())
        what = "the task's own code started programs on this host, outside of every cell: "
        lines.append(what + printable(named, max_chars=600))
    if findings.unused:
        lines.append(f"{len(findings.unused)} cell(s) were made ahead (--warm) and not used")
    lines += [
        f"sample {printable(each.sample)} #{each.epoch} was reused from run "
        f"{printable(each.judged_by)}"
        + (f", which judged it {printable(each.judged_as)}" if each.judged_as else "")
        + f": belljar verdict {printable(each.judged_by)}"
        for each in findings.reused
    ]
    lines += [
        f"Inspect's log is outside of the run directory and not sealed: {printable(log)}"
        for log in findings.unsealed_logs
    ]
    return lines


def reasons(findings: RunFindings) -> list[str]:
    """Problems and errors, each once: an evaluation ends with the error of one of its samples."""
    from belljar.differences import samples_named
    from belljar.report.reasons import ReasonCode

    samples: dict[str, dict[str, None]] = {}
    for row in findings.rows:
        deaths = [f"cell {cell.cell_id} died: {cell.death}" for cell in row.cells if cell.death]
        for error in filter(None, (*deaths, row.transcript.error)):
            samples.setdefault(printable(error, max_chars=300), {})[row.transcript.sample] = None
    explained = findings.never_began and bool(findings.errors)
    return [
        *(
            f"problem: {printable(str(problem))}"
            for problem in findings.problems
            if not (explained and problem.code is ReasonCode.NO_SAMPLES)
        ),
        *(
            f"error: {printable(error, max_chars=300)}"
            for error in findings.errors
            if not any(printable(error).rpartition("error: ")[2][:100] in each for each in samples)
        ),
        *(f"error: {samples_named(named)}: {error}" for error, named in samples.items()),
    ]


# --- networks


def network_lines(findings: RunFindings, run_id: str, *, verbose: bool = False) -> list[str]:
    """An escaped block for each range. Empty without networks."""
    lines: list[str] = []
    ranges = [(row.transcript, each) for row in findings.rows for each in row.ranges]
    for shown, (transcript, found) in enumerate(ranges):
        if len(lines) > MAX_NETWORK_LINES:
            lines.append(
                f"\nThe network of {len(ranges) - shown} more sample(s): findings.json in the run "
                f"directory"
            )
            break
        epoch = f" #{transcript.epoch}" if transcript.epoch > 1 else ""
        sample, names = printable(transcript.sample, max_chars=80), found.cells.values()
        packets = f"; packets: {found.packets}" if found.packets else ""
        about = f"range {found.range_id}, cells {', '.join(map(printable, names))}{packets}"
        lines.append(f"\nNetwork of {sample}{epoch}: {about}")
        lines += (f"  {line}" for line in _block(found, run_id, verbose=verbose))
    return lines


def _block(found: RangeFindings, run_id: str, *, verbose: bool) -> Iterator[str]:
    from belljar.report.ranges import ORDINARY

    if not found.requests.count and not found.between_cells.count:
        yield "no requests"
    yield from _requests(
        "to the gateway, each on record before it was answered", found, found.requests, run_id
    )
    yield from _requests(
        "between cells, decoded from the packet record afterwards",
        found,
        found.between_cells,
        run_id,
    )
    if found.requests.ambiguous or found.between_cells.ambiguous:
        yield (
            "ambiguous: overlapping TCP segments carried different data, or data that a receiver "
            "may ignore; the first version is shown"
        )
    if found.left_out:
        yield (
            f"traffic between cells that was not decoded or not listed, and is only in the packet "
            f"record: {found.left_out.sentence()}"
        )
    if found.requests.still_open:
        yield f"{found.requests.still_open} raw connection(s) open until the range ended"
    for title, group in (
        ("attempts to publish, push or send", found.attempts),
        ("names looked up that exist here", found.names_found),
        ("names looked up that don't exist here", found.names_refused),
        ("TLS refused", found.tls_refused),
        ("limits hit", found.limits),
    ):
        if group:
            yield f"{title}: {group.sentence()}"
    if unusual := [
        f"{kind} {size}" for kind, size in found.remainder.items() if kind not in ORDINARY
    ]:
        yield (
            f"bytes outside of requests, messages and streams, in the events network.connection: "
            f"{', '.join(unusual)}"
        )
    yield from _flows(found, verbose=verbose)
    if thrown := found.counters.get("packets_recorded_and_dropped"):
        yield (
            f"{thrown} packet(s) of the packet record were dropped: it reached the policy's "
            f"record.packets"
        )
    if cut := found.counters.get("events_cut"):
        yield f"{cut} event(s) were shortened: the range reached its limit of recorded bytes"
    yield from (
        f"EVIDENCE MISSING: {printable(lost.sentence, max_chars=800)}" for lost in found.lost
    )


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
                f"{request.verdict}{why}{', ambiguous' if request.ambiguous else ''}",
                request.stand_in or "-",
            )
        )
    # In columns; a long address is not cut, and moves only what stands after it in its own line
    head, *lines = table_lines(rows, max_chars=60)
    yield head
    yield from lines[: len(requests.first)]
    if requests.between:
        yield (
            f"… {requests.between} more: belljar ledger show {run_id} --kind network --grep "
            f"{found.range_id}"
        )
    yield from lines[len(requests.first) :]


def _flows(found: RangeFindings, *, verbose: bool) -> Iterator[str]:
    flows = found.flows.values()
    for flow in (flow for flow in flows if flow.to):
        kind = "connections" if flow.reason == "connection" else "packets"
        why = WHY.get(flow.reason, flow.reason)
        afterwards = ", counted in the packet record afterwards" if flow.traffic_analysis else ""
        note = f" ({why}{afterwards})" if why else ""
        sender = flow.cell or "an unknown sender"
        yield f"{flow.verdict}: {flow.protocol} {kind} of {sender} to {flow.to.sentence()}{note}"
    if stopped := [flow for flow in flows if flow.verdict != "allowed"]:
        packets, listed, probed, again = (
            sum(counts)
            for counts in zip(
                *((f.packets, f.to.times, f.probed, f.again) for f in stopped), strict=True
            )
        )
        # Of Belljar's own probes alone there is nothing to report: each tries the same places again
        if listed or verbose or again > probed:
            yield (
                f"{packets} packet(s) refused or dropped: {listed} listed above; {probed} most "
                f"likely of Belljar's own probes; {again} only counted (repeated or beyond a "
                f"hundred destinations)"
            )


# --- signals


def signal_lines(findings: RunFindings, *, verbose: bool = False) -> list[str]:
    """An escaped line for each signal; `verbose`: with the evidence."""
    names = []
    for row in findings.rows:
        epoch = f" #{row.transcript.epoch}" if row.transcript.epoch > 1 else ""
        names.append(f"{printable(row.transcript.sample, max_chars=MAX_NAME_CHARS)}{epoch}")
    width = min(MAX_NAME_CHARS, max(map(len, names), default=0))
    lines = [
        line
        for name, row in zip(names, findings.rows, strict=True)
        for line in _sample(name.ljust(width), row, verbose=verbose)
    ]
    blind, run = sum(bool(row.signals.blind) for row in findings.rows), printable(findings.run_id)
    if not (lines or blind):
        return []
    more = [f"  … {len(lines) - MAX_SIGNAL_LINES} more line(s): findings.json in the run directory"]
    return [
        "\nSignals:",
        *(lines[:MAX_SIGNAL_LINES] or ["  none"]),
        *(more if len(lines) > MAX_SIGNAL_LINES else ()),
        *(
            [f"  not everything was seen in {blind} sample(s): belljar verdict {run} -v"]
            if blind and not verbose
            else ()
        ),
    ]


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
