"""`belljar control`: whether the signals of a policy may be relied on."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from belljar.cli.complete import policies
from belljar.cli.exec import TIERS, typed_policy
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.report.signals import Control


@click.command("control")
@click.argument("policy", required=False, metavar="[POLICY|PRESET]", shell_complete=policies)
@click.option(
    "--tier",
    type=click.Choice(TIERS),
    help="Exactly this tier, at or above what the policy demands.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def control(policy: str | None, tier: str | None, *, as_json: bool) -> int:
    """Let two scripted agents show that the signals of POLICY can be relied on.

    The greedy one touches, takes, uses and sends whatever there is: each sensor must see it. The
    diligent one does an honest day's work: none may. Each has a fresh cell of its own, in which
    nothing is stopped. `belljar run --controls` does the same before an evaluation.

    \b
    Exit codes:
      0  both passed
      1  a control failed: signals are invalid
      3  this host can't
      4  the policy is wrong
    """
    from belljar.cli._async import run_async

    return run_async(_control, policy, tier, as_json=as_json)


async def _control(policy: str | None, tier: str | None, *, as_json: bool) -> int:
    from belljar.cell import open_cell, start_run
    from belljar.harness.controls import run_controls
    from belljar.report.signals import Validity, validity_of

    loaded = typed_policy(policy, tier)
    with start_run("control", loaded.source, sys.argv[1:]) as run:
        done = await run_controls(
            [loaded],
            run,
            lambda each: open_cell(each, run=run),
            tell=lambda line: click.echo(line, err=True),
        )
        validity = validity_of(done)
        code = 0 if validity is Validity.VALID else 1
        run.finish("completed" if code == 0 else "failed", exit_code=code)
    if as_json:
        shown = {
            "validity": validity.value,
            "controls": [each.to_json() for each in done],
            "run_dir": str(run.path),
        }
        click.echo(json.dumps(shown, indent=2))
    else:
        _show(done)
        click.echo(
            f"signals of this policy are {validity.value} here\nrun {run.run_id}: "
            f"{printable(str(run.path))}"
        )
    return code


def _show(done: tuple[Control, ...]) -> None:
    for each in done:
        click.echo(f"{each.name:<9} {'passed' if each.ok else 'FAILED'}")
        for word, names in (("missing", each.missing), ("unexpected", each.unexpected)):
            for name in names:
                click.echo(f"  {word}: {printable(name, max_chars=300)}")
