"""`belljar run`, `verdict` and `runs`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from belljar.cli.console import (
    json_option,
    key_option,
    log_option,
    operator_options,
    print_json,
    reading,
    run_argument,
    table_lines,
)
from belljar.cli.findings import dropped, show_findings
from belljar.cli.report import report_of_run
from belljar.errors import breach_stands
from belljar.units import printable
from belljar.waiting import LOADING, reported_if_slow

if TYPE_CHECKING:
    from belljar.harness.evaluate import RunOutcome

# A longer task or command line is cut; `--json` has it whole.
MAX_WHAT_CHARS: Final = 60
_MAX_RUNS: Final = 20


@click.command(
    "run",
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    options_metavar="TASK [--policy FILE|PRESET] [--allow-upstreams] [--tier TIER]"
    " [--require-contained] [--fleet ray[://HOST:PORT]|slurm] [--json] [INSPECT OPTIONS…]",
)
@operator_options
@click.option("--require-contained", is_flag=True, help="Metrics of contained samples alone.")
@click.option(
    "--fleet",
    default="",
    metavar="ray[://HOST:PORT]|slurm",
    help="Share the samples among the nodes of a Ray cluster (at HOST:PORT or RAY_ADDRESS) or of "
    "Slurm (slurm://PARTITION).",
)
@json_option("Print one JSON object on standard output; everything else goes to standard error.")
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
        raise click.NoSuchOption(error.option_name, ctx=context) from error
    hint = f"see `belljar verdict {outcome.run_id}`"
    with breach_stands(outcome.findings.verdict, hint=hint):
        _show_outcome(outcome, more, as_json=as_json)
    return outcome.exit_code


def _show_outcome(outcome: RunOutcome, more: Sequence[str], *, as_json: bool) -> None:
    if not as_json:
        show_findings(outcome.findings, outcome.path, [*dropped(outcome), *more])
    page = report_of_run(outcome.path)
    if as_json:
        from belljar.report.collect import collect

        rest = {"report": str(page) if page else None, "not_in_metrics": list(outcome.dropped)}
        found = collect(outcome.findings)
        print_json({"run_dir": str(outcome.path), **found, **rest, "fleet": more})
    elif page:
        click.echo(f"report: {printable(str(page))}")


@click.command("verdict")
@run_argument
@log_option
@key_option
@click.option("-v", "--verbose", is_flag=True, help="Signals' evidence; what was not seen.")
@json_option()
def verdict(
    run: str, logs: tuple[Path, ...], fingerprint: str | None, *, verbose: bool, as_json: bool
) -> int:
    """Judge RUN offline, by its ledger and Inspect's log. Both are verified first.

    RUN is a run id, the beginning of one, `last`, or the path of a run directory; of `belljar run`
    or of `inspect eval --sandbox belljar`. A void or breached sample is listed with its reasons.

    \b
    Exit codes, as those of `belljar run`:
      0        all samples are contained
      1        the evaluation had errors
      2        containment was breached, or evidence of it is missing
      3, 4     the run was refused
      5        a cell or the record failed, as when the disk fills
      130      the run was interrupted
    """
    from belljar.cli.ledger import expected_key, expected_run, run_path
    from belljar.report.collect import collect

    path = run_path(run)
    with reading(path, "RUN"), reported_if_slow(LOADING):
        from belljar.fleet.record import findings_of
        from belljar.harness.evidence import stored_evidence

        key, named = expected_key(fingerprint)[0], expected_run(run, path)
        found = [str(log.resolve()) for log in logs]
        evidence = stored_evidence(path, logs=found, expected_key=key, expected_run=named)
        findings, more = findings_of(path, evidence)
    with breach_stands(findings.verdict, hint="see its findings.json"):
        if as_json:
            print_json({"run_dir": str(path), **collect(findings)})
        else:
            show_findings(findings, path, more, verbose=verbose)
    return findings.exit_code


@click.command()
@click.option("--all", "every", is_flag=True, help="Every run, however many there are.")
@json_option("One JSON list.")
def runs(*, every: bool, as_json: bool) -> None:
    """List the latest run directories, oldest first, as they say of themselves; `belljar verdict`
    judges one by its evidence.

    RECORDED is the verdict that an evaluation's own process recorded when it sealed the run.
    """
    from belljar.ledger.listing import list_runs
    from belljar.store.home import belljar_home

    found, count = list_runs(belljar_home(), limit=None if every else _MAX_RUNS)
    if len(found) < count:
        click.echo(f"belljar: the latest {len(found)} of {count} runs; --all lists all", err=True)
    if as_json:
        print_json([run.to_json() for run in found])
        return
    rows = [("RUN", "STARTED (UTC)", "KIND", "WHAT", "OUTCOME", "RECORDED")]
    for run in found:
        code = f" ({run.exit_code})" if run.exit_code else ""
        outcome = f"{run.outcome}{code}{', killed' if run.killed else ''}"
        what = printable(run.what, max_chars=MAX_WHAT_CHARS)
        about = ((run.started or "-")[:19], run.kind, what, outcome, run.verdict or "-")
        rows.append((run.run_id, *about))
    click.echo("\n".join(table_lines(rows)))
