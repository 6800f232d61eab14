"""Renders what `report.collect` found of a run as text: samples, networks, signals, remarks."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from belljar.cli.console import STYLES, table_lines
from belljar.ledger.rundir import INSPECT_LOGS
from belljar.units import format_duration, format_size, printable

if TYPE_CHECKING:
    from pathlib import Path

    from belljar.harness.evaluate import RunOutcome
    from belljar.report.samples import RunFindings

Facts: TypeAlias = Mapping[str, Any]  # of `report.collect`, of a run or of a part of it
# Of all samples, for a person; `findings.json` and the report have the rest.
MAX_NETWORK_LINES: Final = 400
MAX_SIGNAL_LINES: Final = 200
MAX_EVENT_NUMBERS: Final = 10  # That a line names
_MAX_LINE_CHARS: Final = 20_000
_SAMPLE_COLUMNS: Final = (
    *("sample", "score", "verdict", "probes", "cell", "commands"),
    *("in", "out", "time", "destroyed", "note"),
)


def show_findings(
    findings: RunFindings, path: Path, more: Sequence[str] = (), *, verbose: bool = False
) -> None:
    """Print samples, differences, remarks, reasons, and where the evidence is.

    A defect here must not change the exit code: it is shown, and the verdict stands.
    """
    try:
        _show(findings, path, more, verbose=verbose)
    # A closed pipe or a full disk is standard output's fault, not the report's.
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - whatever is wrong with the report
        traceback.print_exc()
        verdict = f"{findings.verdict.value}, exit code {findings.exit_code}"
        what = "the report can't be shown, which is a defect of Belljar; the verdict stands"
        click.echo(f"belljar: {what}: {verdict}", err=True)


def _show(findings: RunFindings, path: Path, more: Sequence[str], *, verbose: bool) -> None:
    from belljar.report.collect import collect

    facts = collect(findings)
    click.echo()
    if facts["samples"]:
        click.echo("\n".join(table(facts)))
    lines = (
        *(each["text"] for each in facts["model_cells"]),
        *network_lines(facts),
        *signal_lines(facts, verbose=verbose),
        *remarks(facts),
        *more,
    )
    for line in lines:
        click.echo(_escaped(line))
    left = facts["left_this_host"]
    told = [f"\nWhat left this host: {left['claim']}", *(f"  {line}" for line in left["lines"])]
    text = "\n".join(map(_escaped, told))
    click.echo(click.style(text, **STYLES["breached"]) if left["destinations"] else text)
    for line in facts["problems_and_errors"]:
        click.echo(_escaped(line))
    verdict = facts["verdict"]
    # A run that ended with an error is never shown in the colour of success.
    colour = "void" if facts["exit_code"] and verdict == "contained" else verdict
    click.echo("\n" + click.style(_escaped(facts["headline"]), **STYLES[colour]))
    click.echo(_escaped(f"run {facts['run_id']}: {path}"))
    if facts["samples"] and (path / INSPECT_LOGS).is_dir():
        view = shlex.join(["inspect", "view", "--log-dir", str(path / INSPECT_LOGS)])
        click.echo(_escaped(f"Inspect's log, with tracebacks: {view}"))


def _escaped(line: str) -> str:
    """Escape a line, whatever of it is a guest's; a line break at its beginning is ours."""
    begin = "\n" if line.startswith("\n") else ""
    return begin + printable(line.removeprefix("\n"), max_chars=_MAX_LINE_CHARS)


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


def table(facts: Facts) -> list[str]:
    """One line per sample."""
    return table_lines([_SAMPLE_COLUMNS, *map(_cells, facts["samples"])], styled=2)


def _cells(row: Facts) -> list[str]:
    return [
        row["name"],
        " ".join(row["scores"].values()) or ("error" if row["error"] else "-"),
        row["verdict"],
        row["probed"],
        " ".join(row["cells"]) or "none",
        str(row["commands"]),
        format_size(row["bytes_in"]),
        format_size(row["bytes_out"]),
        format_duration(row["lasted_s"]),
        "-" if not row["cells"] else "proven" if row["destroyed"] else "NOT PROVEN",
        "; ".join((*(each["text"] for each in row["reasons"]), *row["remarks"])),
    ]


def remarks(facts: Facts) -> list[str]:
    """Differences, remarks that no transcript has, and tools; none of them a reason."""
    found = list(facts["remarks"])
    for title, lines in (
        ("Different from what the task or the policy says:", facts["differences"]),
        ("Tools, with their calls and how many reached a cell:", _texts(facts["tools"])),
    ):
        found += [f"\n{title}", *(f"  {line}" for line in lines)] if lines else []
    return found


def _texts(facts: Sequence[Facts]) -> list[str]:
    return [each["text"] for each in facts]


# --- networks and signals


def network_lines(facts: Facts) -> list[str]:
    """A block for each range; empty without networks."""
    lines: list[str] = []
    ranges = [(row["name"], each) for row in facts["samples"] for each in row["ranges"]]
    for shown, (name, found) in enumerate(ranges):
        if len(lines) > MAX_NETWORK_LINES:
            left = f"{len(ranges) - shown} more sample(s)"
            lines.append(f"\nThe network of {left}: findings.json in the run directory")
            break
        cells = ", ".join(found["cells"].values())
        packets = f"; packets: {found['packets']}" if found["packets"] else ""
        lines.append(f"\nNetwork of {name[:80]}: range {found['range']}, cells {cells}{packets}")
        lines.append(
            f"  {found['requests_in_all']} request(s) and connection(s), "
            f"{found['requests_between_cells']} of them between cells, "
            f"{found['requests_refused']} refused"
        )
        lines += (f"  {line}" for line in found["sentences"])
    return [_escaped(line) for line in lines]


def signal_lines(facts: Facts, *, verbose: bool = False) -> list[str]:
    """A line for each signal; `verbose`: with the evidence, and what could not be seen."""
    samples = facts["samples"]
    lines = [line for row in samples for line in _signals(row, verbose=verbose)]
    blind = sum(bool(row["signals_blind"]) for row in samples)
    if not (lines or blind):
        return []
    shown = ["\nSignals:", *(lines[:MAX_SIGNAL_LINES] or ["  none"])]
    if (more := len(lines) - MAX_SIGNAL_LINES) > 0:
        shown.append(f"  … {more} more line(s): findings.json in the run directory")
    if blind and not verbose:
        run = facts["run_id"]
        shown.append(f"  not everything was seen in {blind} sample(s): belljar verdict {run} -v")
    return [_escaped(line) for line in shown]


def _signals(row: Facts, *, verbose: bool) -> Iterator[str]:
    name = row["name"][:40]  # a longer one would push the signal itself off the line
    for signal in row["signals"]:
        involved = ", ".join(signal["involved"])[:300]
        yield f"  {name}  {signal['code']:<16} ×{signal['count']:<6} {involved}".rstrip()
        if verbose:
            numbers = ", ".join(map(str, signal["evidence"][:MAX_EVENT_NUMBERS]))
            left = max(0, len(signal["evidence"]) - MAX_EVENT_NUMBERS) + signal["evidence_more"]
            more = f" and {left} more" if left else ""
            yield f"    {signal['trust']}, event(s) {numbers}{more}"
    for each in row["signals_blind"] if verbose else ():
        yield f"  {name}  not seen: {each['text'][:300]}"
