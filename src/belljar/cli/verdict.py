"""`belljar verdict`: what the evidence of a run says, judged again from its files."""

from __future__ import annotations

import json
from pathlib import Path

import click

from belljar.cli.complete import runs
from belljar.units import printable


@click.command("verdict")
@click.argument("run", shell_complete=runs)
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Where Inspect's log is now, for a run of `inspect eval`. Repeatable. Default: where it "
    "was written.",
)
@click.option(
    "--key",
    "fingerprint",
    metavar="FINGERPRINT",
    help="The key that must have signed. Default: this host's, if it has one.",
)
@click.option(
    "-v", "--verbose", is_flag=True, help="The evidence of each signal, and what could not be seen."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def verdict(
    run: str, logs: tuple[Path, ...], fingerprint: str | None, *, verbose: bool, as_json: bool
) -> None:
    """Judge RUN offline, by its ledger and Inspect's log. Both are verified first.

    RUN is a run id, the beginning of one, `last`, or the path of a run directory; of `belljar run`
    or of `inspect eval --sandbox belljar`. A void or breached sample is listed with its reasons.

    \b
    Exit codes, as those of `belljar run`:
      0        all samples are contained
      1        the evaluation had errors
      2        containment was breached, or evidence of it is missing
      3, 4, 5  the run was refused
      130      the run was interrupted
    """
    from belljar.cli.ledger import expected_key, is_path, run_path
    from belljar.cli.run import findings_json, show_findings
    from belljar.harness.evidence import stored_evidence
    from belljar.report.verdict import judge

    path = run_path(run)
    key, _ = expected_key(fingerprint)
    try:
        evidence = stored_evidence(
            path,
            logs=[str(log.resolve()) for log in logs],
            expected_key=key,
            expected_run=None if is_path(run) else path.name,
        )
    except OSError as error:
        raise click.BadParameter(
            printable(f"{path}: {error.strerror}"), param_hint="RUN"
        ) from error
    findings = judge(evidence)
    if as_json:
        click.echo(json.dumps(findings_json(findings, path), indent=2))
    else:
        show_findings(findings, path, verbose=verbose)
    click.get_current_context().exit(findings.exit_code)
