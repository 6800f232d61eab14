"""`belljar run`: an Inspect evaluation in cells."""

from __future__ import annotations

import errno
import json
import sys
import traceback
from collections import Counter
from typing import TYPE_CHECKING, Final

import click

from belljar.cli.exec import TIERS
from belljar.cli.failures import Misuse
from belljar.cli.network_report import network_lines
from belljar.cli.signal_report import signal_lines
from belljar.units import format_duration, format_size, printable

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.table import Table

    from belljar.harness.evaluate import RunOutcome
    from belljar.report.cells import Operation
    from belljar.report.samples import Row, RunFindings

_COLOURS: Final = {"contained": "green", "void": "yellow", "breached": "bold red"}


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="TASK [--policy FILE|PRESET] [--override] [--allow-upstreams] [--tier TIER]"
    " [--require-contained] [--warm N] [--controls] [--json] [INSPECT OPTIONS…]",
)
@click.option(
    "--policy",
    default="",
    metavar="FILE|PRESET",
    help="The containment of every cell: risk, tier, limits, network. The task keeps its image, "
    "user, "
    "files and services. Default: the task's own policy, else high.",
)
@click.option(
    "--override",
    is_flag=True,
    help="What the file of --policy writes down replaces the task's image, user, services, too.",
)
@click.option(
    "--allow-upstreams",
    is_flag=True,
    help="Let a policy that came with the task reach the real hosts that it names. They are "
    "announced first.",
)
@click.option(
    "--tier",
    type=click.Choice(TIERS),
    default=None,
    help="The tier of every cell: exactly this one, at or above what its policy demands.",
)
@click.option(
    "--require-contained",
    is_flag=True,
    help="Metrics count contained samples only: void and breached ones are dropped, marked "
    "invalid, and named.",
)
@click.option(
    "--warm",
    type=click.IntRange(0, 16),
    default=0,
    show_default=True,
    metavar="N",
    help="Keep N cells ready for later samples, for each plan: created and probed ahead.",
)
@click.option(
    "--controls",
    is_flag=True,
    help="First let a greedy and a diligent scripted agent show, with each policy, that its "
    "signals can be relied on.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object on standard output; everything else goes to standard error.",
)
@click.argument("inspect_args", nargs=-1, type=click.UNPROCESSED, metavar="")
def run(
    policy: str,
    override: bool,  # noqa: FBT001 - click passes options by name
    allow_upstreams: bool,  # noqa: FBT001 - click passes options by name
    tier: str | None,
    require_contained: bool,  # noqa: FBT001 - click passes options by name
    warm: int,
    controls: bool,  # noqa: FBT001 - as above
    as_json: bool,  # noqa: FBT001 - as above
    inspect_args: tuple[str, ...],
) -> int:
    """Run an Inspect evaluation in cells, one for each sample.

    TASK is a file, file@task or package/task. All other options are those of `inspect eval`
    (--model, --limit, --epochs, -T name=value, …); `inspect eval --help` lists them. The sandbox
    that the task names is replaced by a cell, or the run is refused and says why.

    Ends with a table of the samples and the run directory.

    \b
    Exit codes:
      0    all samples are contained
      1    the evaluation had errors
      2    containment was breached, or evidence of it is missing
      3    this host can't
      4    the policy or the task is wrong
      130  interrupted

    \b
    Examples:
      belljar run examples/escape_artist/task.py
      belljar run task.py@ctf --policy policy.yaml --model openai/gpt-4o --limit 10
    """
    from belljar.harness.evaluate import RunRequest, run_evaluation

    if override and not policy:
        raise Misuse("--override needs --policy", hint="add --policy FILE, or leave --override out")
    request = RunRequest(
        inspect_args=inspect_args,
        policy=policy,
        override=override,
        allow_upstreams=allow_upstreams,
        tier=tier or "",
        require_contained=require_contained,
        warm=warm,
        controls=controls,
        quiet=as_json,
    )
    try:
        outcome = run_evaluation(request)
    except click.NoSuchOption as error:
        raise _with_own_options(error) from error
    if as_json:
        found = findings_json(outcome.findings, outcome.path)
        click.echo(json.dumps({**found, "not_in_metrics": list(outcome.dropped)}, indent=2))
    else:
        show_findings(outcome.findings, outcome.path, dropped(outcome))
    return outcome.exit_code


def _with_own_options(error: click.NoSuchOption) -> click.NoSuchOption:
    """The error of Inspect's parser, with the nearest of Belljar's and of Inspect's options."""
    context = click.get_current_context()
    commands = [context.command, *([error.ctx.command] if error.ctx is not None else [])]
    known = [name for command in commands for param in command.params for name in param.opts]
    return click.NoSuchOption(error.option_name, possibilities=known, ctx=context)


def findings_json(findings: RunFindings, path: Path) -> dict[str, object]:
    """The findings as JSON values, with the run directory."""
    from belljar.report.samples import as_json

    return {"run_dir": str(path), **as_json(findings)}


def show_findings(
    findings: RunFindings, path: Path, more: Sequence[str] = (), *, verbose: bool = False
) -> None:
    """The table, what the transcript does not show, and where the evidence is.

    A defect here must not change what the exit code says: it is shown, and the verdict stands.
    """
    try:
        _show(findings, path, more, verbose=verbose)
    except OSError:
        raise
    except Exception:  # noqa: BLE001 - whatever is wrong with the report
        traceback.print_exc()
        verdict = f"{findings.verdict.value}, exit code {findings.exit_code}"
        what = (
            "the report can't be shown, which is a defect of Belljar; the verdict is not affected"
        )
        click.echo(f"belljar: {what}: {verdict}", err=True)


def _show(findings: RunFindings, path: Path, more: Sequence[str], *, verbose: bool) -> None:
    from rich.console import Console

    from belljar.report.samples import headline
    from belljar.report.tools import tool_lines

    console = Console(
        highlight=False,
        soft_wrap=not sys.stdout.isatty(),
        width=None if sys.stdout.isatty() else 160,
    )
    console.print()
    console.print(table(findings))
    lines = (
        *network_lines(findings, findings.run_id),
        *signal_lines(findings, verbose=verbose),
        *remarks(findings),
        *tool_lines(findings.tools),
        *more,
    )
    for line in lines:
        console.print(line, markup=False)
    for use in findings.upstreams:
        console.print(use.sentence(), markup=False, style="bold red")
    colour = _COLOURS[
        "void"
        if findings.exit_code and findings.verdict.value == "contained"
        else findings.verdict.value
    ]
    console.print(f"\n{headline(findings)}", markup=False, style=colour)
    console.print(f"run {printable(findings.run_id)}: {printable(str(path))}", markup=False)


def dropped(outcome: RunOutcome) -> list[str]:
    """What `--require-contained` took out of the metrics."""
    if not outcome.dropped:
        return []
    named = printable(", ".join(outcome.dropped), max_chars=400)
    if not any(row.verdict.value == "contained" for row in outcome.findings.rows):
        return [f"no sample is contained: there are no metrics. Left out: {named}"]
    return [
        (
            f"{len(outcome.dropped)} sample(s) that are not contained do not count in the metrics: "
            f"{named}"
        )
    ]


def table(findings: RunFindings) -> Table:
    """One line per sample."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name, right in (
        ("sample", 0),
        ("score", 0),
        ("verdict", 0),
        ("probes", 0),
        ("cell", 0),
        ("commands", 1),
        ("in", 1),
        ("out", 1),
        ("time", 1),
        ("destroyed", 0),
        ("note", 0),
    ):
        shown.add_column(name, justify="right" if right else "left", overflow="fold")
    for row in findings.rows:
        shown.add_row(
            *(cell if name == "verdict" else _escaped(cell) for name, cell in _cells(row))
        )
    return shown


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text, max_chars=200))


def _cells(row: Row) -> list[tuple[str, str]]:
    transcript, verdict = row.transcript, row.verdict.value
    degraded = [f"cell {cell}: {each}" for cell, each in row.degraded]
    epoch = f" #{transcript.epoch}" if transcript.epoch > 1 else ""
    return [
        ("sample", f"{transcript.sample}{epoch}"),
        ("score", " ".join(transcript.scores.values()) or ("error" if transcript.error else "-")),
        ("verdict", f"[{_COLOURS[verdict]}]{verdict}[/]"),
        ("probes", row.probed),
        ("cell", " ".join(cell.cell_id for cell in row.cells) or "none"),
        ("commands", str(row.commands)),
        ("in", format_size(row.bytes_in)),
        ("out", format_size(row.bytes_out)),
        ("time", format_duration(row.lasted_s)),
        ("destroyed", "-" if not row.cells else "proven" if row.destroyed else "NOT PROVEN"),
        ("note", "; ".join((*map(str, row.reasons), *degraded, *transcript.notes))),
    ]


def differing(findings: RunFindings) -> list[str]:
    """How cells differed from what was written, each fact once with its samples."""
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
    """What the ledger has and Inspect's transcript lacks."""
    counts = Counter(
        what
        for row in rows
        for what in (
            *map(_failed, row.transcript_gap.raised),
            *("operations of the harness itself" for _ in row.transcript_gap.silent),
            *("commands in a person's terminal" for _ in row.transcript_gap.terminal),
        )
    )
    lines = [f"  {count:,} {what}" for what, count in counts.items()]
    missing = sum(row.transcript_gap.missing_bytes for row in rows)
    if missing:
        shortened = sum(row.transcript_gap.shortened for row in rows)
        lines.append(
            f"  {format_size(missing)} of output, cut by the transcript in {shortened:,} "
            f"operation(s)"
        )
    return ["\nIn the ledger, but not in Inspect's transcript:", *lines] if lines else []


def _failed(operation: Operation) -> str:
    """A kind of operation that failed in a call of Inspect's, which then has no event."""
    from belljar.report.cells import Action

    match operation.action, operation.errno:
        case Action.READ, errno.ENOENT:
            return "file reads of missing files (by the harness)"
        case Action.READ, _:
            return "file reads that failed (by the harness)"
        case Action.WRITE, _:
            return "file writes that failed (by the harness)"
        case Action.STAT | Action.LIST, _:
            return "looks at missing files (by the harness)"
        case Action.UPLOAD | Action.DOWNLOAD | Action.REMOVE, _:
            return "copies and removals of files that failed (by the harness)"
    return "commands that timed out, were cut off or could not be started"


def remarks(findings: RunFindings) -> list[str]:
    """What a reader of the transcript alone would not know."""
    lines = [*_not_in_transcript(findings.rows), *differing(findings)]
    lines += [
        f"cell {cell.cell_id} was created, but the run ended before its sample began"
        for cell in findings.strays
        if not cell.sample and not cell.is_unused and not cell.control
    ]
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
    lines += [f"problem: {printable(str(problem))}" for problem in findings.problems]
    lines += [f"error: {printable(error)}" for error in findings.errors]
    lines += [
        f"error: sample {printable(row.transcript.sample)}: cell {cell.cell_id} died: "
        f"{printable(cell.death)}"
        for row in findings.rows
        for cell in row.cells
        if cell.death
    ]
    lines += [
        f"error: sample {printable(row.transcript.sample)}: "
        f"{printable(row.transcript.error, max_chars=300)}"
        for row in findings.rows
        if row.transcript.error
    ]
    return lines
