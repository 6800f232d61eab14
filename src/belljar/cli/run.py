"""`belljar run`, `verdict` and `runs`, and findings as text."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from belljar.cli import console
from belljar.cli.ledger import judged, run_path
from belljar.cli.report import report_of_run
from belljar.dataclass import json_of
from belljar.errors import breach_stands
from belljar.ledger.listing import list_runs
from belljar.ledger.rundir import INSPECT_LOGS
from belljar.report.samples import collect
from belljar.store.home import belljar_home
from belljar.units import format_duration, format_size, printable
from belljar.waiting import LOADING, reported_if_slow

if TYPE_CHECKING:
    from belljar.harness.evaluate import RunOutcome
    from belljar.report.samples import RunFindings

MAX_WHAT_CHARS: Final = 60  # Of a task or command line; `--json` has it whole.
_MAX_RUNS: Final = 20
Facts: TypeAlias = Mapping[str, Any]  # of `report.collect`, of a run or of a part of it
MAX_LINES: Final = 400  # Of signals; `findings.json` and the report have the rest.
MAX_EVENT_NUMBERS: Final = 10  # That a line names
_MAX_LINE_CHARS: Final = 20_000
_SAMPLE_COLUMNS: Final = (
    *("sample", "score", "verdict", "probes", "cell", "commands"),
    *("in", "out", "time", "destroyed", "note"),
)


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="TASK [--policy FILE|PRESET] [--allow-upstreams] [--tier TIER]"
    " [--require-contained] [--fleet ray[://HOST:PORT]|slurm] [--json] [INSPECT OPTIONS…]",
)
@console.operator_options
@click.option("--require-contained", is_flag=True, help="Metrics of contained samples alone.")
@click.option(
    "--fleet",
    default="",
    metavar="ray[://HOST:PORT]|slurm",
    help="Share the samples among the nodes of a Ray cluster (at HOST:PORT or RAY_ADDRESS) or of "
    "Slurm (slurm://PARTITION).",
)
@console.json_option(
    "Print one JSON object on standard output; everything else goes to standard error."
)
@click.argument("inspect_args", nargs=-1, type=click.UNPROCESSED, metavar="")
def run(
    *,
    policy: str,
    allow_upstreams: bool,
    tier: str | None,
    require_contained: bool,
    fleet: str,
    as_json: bool,
    inspect_args: tuple[str, ...],
) -> int:
    """Run an Inspect evaluation in cells, one for each sample.

    TASK is a file, file@task or package/task. All other options are those of `inspect eval`
    (--model, --limit, --epochs, -T name=value, …); `inspect eval --help` lists them. The sandbox
    that the task names is replaced by a cell, or the run is refused and says why.

    Ends with a table of the samples, the run directory, and a report: one HTML file.

    \b
    Exit codes:
      0    all samples are contained
      1    the evaluation had errors
      2    containment was breached, or evidence of it is missing
      3    this host lacks something
      4    the policy or the task is wrong
      5    a cell or the record failed, as when the disk fills
      130  interrupted

    \b
    Examples:
      belljar run examples/escape_artist/task.py
      belljar run task.py@ctf --policy policy.yaml --model openai/gpt-4o --limit 10
    """
    context = click.get_current_context()
    with reported_if_slow(LOADING):
        from belljar.harness.evaluate import run_evaluation
        from belljar.harness.options import RunRequest
    request = RunRequest(
        inspect_args=inspect_args,
        policy=policy,
        allow_upstreams=allow_upstreams,
        tier=tier or "",
        require_contained=require_contained,
        quiet=as_json,
    )
    more: list[str] = []
    try:
        if fleet:
            from belljar.fleet.head import run_fleet

            outcome, more = run_fleet(request, fleet)
        else:
            outcome = run_evaluation(request)
    except click.NoSuchOption as error:  # of Inspect's parser: the command is ours
        ours = [option for each in run.params for option in each.opts if option[:2] == "--"]
        near = get_close_matches(error.option_name, ours) or error.possibilities
        raise click.NoSuchOption(error.option_name, possibilities=near, ctx=context) from error
    hint = f"see `belljar verdict {outcome.path.name}`"
    with breach_stands(outcome.findings.verdict, hint=hint):
        _show_outcome(outcome, more, as_json=as_json)
    return outcome.exit_code


def _show_outcome(outcome: RunOutcome, more: Sequence[str], *, as_json: bool) -> None:
    if not as_json:
        show_findings(outcome.findings, outcome.path, [*dropped(outcome), *more])
    page = report_of_run(outcome.path)
    if as_json:
        rest = {"report": str(page) if page else None, "not_in_metrics": list(outcome.dropped)}
        found = collect(outcome.findings)
        console.print_json({"run_dir": str(outcome.path), **found, **rest, "fleet": more})
    elif page:
        click.echo(f"report: {printable(str(page))}")


@click.command("verdict")
@console.run_argument
@console.log_option
@console.key_option
@click.option("-v", "--verbose", is_flag=True, help="Signals' evidence; what was not seen.")
@console.json_option()
def verdict(
    run: str, logs: tuple[Path, ...], fingerprint: str | None, *, verbose: bool, as_json: bool
) -> int:
    """Judge RUN offline, by its ledger and Inspect's log. Both are verified first.

    RUN is a run id, the beginning of one, `last`, or the path of a run directory; of `belljar run`
    or of `inspect eval --sandbox belljar`. A void or breached sample is listed with its reasons.

    The exit code is that of `belljar run`: 0 if all samples are contained.
    """
    path = run_path(run)
    with console.reading(path), reported_if_slow(LOADING):
        _, findings, more = judged(path, run, fingerprint, logs=logs)
    with breach_stands(findings.verdict, hint="see its findings.json"):
        if as_json:
            console.print_json({"run_dir": str(path), **collect(findings)})
        else:
            show_findings(findings, path, more, verbose=verbose)
    return findings.exit_code


@click.command()
@click.option("--all", "every", is_flag=True, help="Every run, however many there are.")
@console.json_option("One JSON list.")
def runs(*, every: bool, as_json: bool) -> None:
    """List the latest run directories, oldest first, as they say of themselves; `belljar verdict`
    judges one by its evidence.

    RECORDED is the verdict that an evaluation's own process recorded when it sealed the run.
    """
    found, count = list_runs(belljar_home(), limit=None if every else _MAX_RUNS)
    if len(found) < count:
        click.echo(f"belljar: the latest {len(found)} of {count} runs; --all lists all", err=True)
    if as_json:
        console.print_json(json_of(found))
        return
    rows = [("RUN", "STARTED (UTC)", "KIND", "WHAT", "OUTCOME", "RECORDED")]
    for run in found:
        code = f" ({run.exit_code})" if run.exit_code else ""
        outcome = f"{run.outcome}{code}{', killed' if run.killed else ''}"
        what = printable(run.what, max_chars=MAX_WHAT_CHARS)
        about = ((run.started or "-")[:19], run.kind, what, outcome, run.verdict or "-")
        rows.append((run.run_id, *about))
    click.echo("\n".join(console.table_lines(rows)))


def show_findings(
    findings: RunFindings, path: Path, more: Sequence[str] = (), *, verbose: bool = False
) -> None:
    """Print the findings. A defect in doing so changes no exit code."""
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
    facts = collect(findings)
    click.echo()
    if facts["samples"]:
        click.echo("\n".join(table(facts)))
    for line in (*lines_of(facts, verbose=verbose), *more, ""):
        click.echo(_escaped(line))
    left = facts["left_this_host"]
    told = [f"What left this host: {left['claim']}", *(f"  {line}" for line in left["lines"])]
    text = "\n".join(map(_escaped, told))
    click.echo(click.style(text, **console.STYLES["breached"]) if left["destinations"] else text)
    for line in facts["problems_and_errors"]:
        click.echo(_escaped(line))
    verdict = facts["verdict"]
    # A run that ended with an error is never shown in the colour of success.
    colour = "void" if facts["exit_code"] and verdict == "contained" else verdict
    click.echo("\n" + click.style(_escaped(facts["headline"]), **console.STYLES[colour]))
    click.echo(_escaped(f"run {facts['run_id']}: {path}"))
    if facts["samples"] and (path / INSPECT_LOGS).is_dir():
        view = shlex.join(["inspect", "view", "--log-dir", str(path / INSPECT_LOGS)])
        click.echo(_escaped(f"Inspect's log, with tracebacks: {view}"))


def _escaped(line: str) -> str:
    return printable(line, max_chars=_MAX_LINE_CHARS)


def dropped(outcome: RunOutcome) -> list[str]:
    if not outcome.dropped:
        return []
    named = printable(", ".join(outcome.dropped), max_chars=400)
    count = len(outcome.dropped)
    return [f"{count} sample(s) that are not contained do not count in the metrics: {named}"]


def table(facts: Facts) -> list[str]:
    return console.table_lines([_SAMPLE_COLUMNS, *map(_cells, facts["samples"])], styled=2)


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


def lines_of(facts: Facts, *, verbose: bool = False) -> Iterator[str]:
    """Yield lines that are not escaped yet."""
    samples = facts["samples"]
    yield from (each["text"] for each in facts["model_cells"])
    for row, found in ((each, found) for each in samples for found in each["ranges"]):
        cells = ", ".join(found["cells"].values())
        packets = f"; packets: {found['packets']}" if found["packets"] else ""
        yield ""
        yield f"Network of {row['name'][:80]}: range {found['range']}, cells {cells}{packets}"
        yield (
            f"  {found['requests']} request(s) and connection(s), "
            f"{found['requests_between_cells']} of them between cells, "
            f"{found['requests_refused']} refused"
        )
    signals = [line for row in samples for line in _signals(row, verbose=verbose)]
    blind = sum(bool(row["signals_blind"]) for row in samples)
    if signals or blind:
        yield from ("", "Signals:", *(signals[:MAX_LINES] or ["  none"]))
    if len(signals) > MAX_LINES:
        yield f"  … {len(signals) - MAX_LINES} more line(s): findings.json in the run directory"
    if blind and not verbose:
        run = facts["run_id"]
        yield f"  not everything was seen in {blind} sample(s): belljar verdict {run} -v"
    yield from facts["remarks"]
    if facts["tools"]:
        yield from ("", "Tools, with their calls and how many reached a cell:")
        yield from (f"  {each['text']}" for each in facts["tools"])


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
