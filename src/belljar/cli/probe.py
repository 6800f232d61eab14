"""`belljar probe`: tries to escape from a fresh cell."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import click

from belljar.cli.console import (
    STYLES,
    MisuseError,
    json_option,
    policy_argument,
    print_json,
    run_async,
    table_lines,
    tier_option,
)
from belljar.cli.exec import typed_policy
from belljar.errors import breach_stands
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.cell.cell import Cell
    from belljar.ledger.rundir import RunDirectory
    from belljar.policy.loaded import LoadedPolicy
    from belljar.probe.model import ProbeReport

# Void is no better than breached: a caller that only looks at the code must not take it for a pass.
_EXIT_CODES: Final = {"contained": 0, "void": 2, "breached": 2}


@click.command("probe", options_metavar="[OPTIONS]")
@policy_argument()
@tier_option()
@click.option("--all", "every", is_flag=True, help="Every probe, and once more as root.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="Or one probe's name.")
@json_option()
def probe(
    policy: str | None, tier: str | None, *, every: bool, groups: tuple[str, ...], as_json: bool
) -> int:
    """Try to get out of a fresh cell, from inside, and let the host judge what came of it.

    POLICY is a policy file or a preset; default: high. The host looks as well: at a canary file,
    listeners, a sentinel process, and the ids, namespaces and routes of the cell's processes. What
    the cell says can make a breach, never hide one. Recorded: `belljar ledger show last`.

    \b
    Exit codes:
      0  contained
      2  breached, or void: evidence is missing
      3  this host lacks something
      4  the policy is wrong

    \b
    Examples:
      belljar probe
      belljar probe critical --all
      belljar probe low --tier gvisor --all --json
      belljar probe --group fingerprint
    """
    from belljar.probe.catalogue import PROBES
    from belljar.probe.run import ALL, QUICK, chosen

    wanted: str | list[str] = list(groups) if groups else ALL if every else QUICK
    try:
        chosen(PROBES, wanted)
    except ValueError as error:
        hint = f"use one of {', '.join(sorted({each.group for each in PROBES}))}, or a probe's name"
        raise MisuseError(str(error), param="--group", hint=hint) from None
    return run_async(_probe, policy, tier, wanted, as_json=as_json)


async def _probe(
    policy: str | None, tier: str | None, wanted: str | list[str], *, as_json: bool
) -> int:
    from belljar.cell.parts import start_run
    from belljar.probe.model import worst
    from belljar.probe.run import ALL

    with ExitStack() as told:  # left after the run, whose sealing may fail
        with start_run("probe", policy or "high", sys.argv[1:]) as run:
            loaded = typed_policy(policy, tier)
            hint = f"see `belljar ledger show {run.run_id} --kind probe`"
            cell, report = await _tried(loaded, run, wanted, None)
            told.enter_context(breach_stands(report.verdict.value, hint=hint))
            reports = [report]
            # A workload that is root has tried as root already.
            if wanted == ALL and cell.plan.user not in {"", "0", "root"}:
                reports.append((await _tried(loaded, run, wanted, "root"))[1])
            verdict = worst(report.verdict for report in reports).value
            told.enter_context(breach_stands(verdict, hint=hint))
            code = _EXIT_CODES[verdict]
            run.finish("completed" if verdict == "contained" else "failed", exit_code=code)
        if as_json:
            print_json(
                {
                    "verdict": verdict,
                    "tier": cell.tier,
                    "emulated": cell.emulated,
                    "layers": [layer.name for layer in cell.plan.layers],
                    "reports": [each.to_json() for each in reports],
                    "run_dir": str(run.path),
                }
            )
        else:
            _show(cell, reports, verdict)
    return code


async def _tried(
    loaded: LoadedPolicy, run: RunDirectory, wanted: str | list[str], user: str | None
) -> tuple[Cell, ProbeReport]:
    """Probe a fresh cell as `user`, or the policy's; the cell is destroyed."""
    from belljar.cell.open import open_range
    from belljar.events import Actor
    from belljar.probe.run import probe_cell

    async with open_range(loaded, run=run) as opened:
        cell = opened.cell
        report = await probe_cell(
            cell,
            which=wanted,
            recorder=run.recorder,
            router=opened.routers.get(cell.id),
            user=user,
            actor=Actor.OPERATOR,
        )
    return cell, report


def _show(cell: Cell, reports: Sequence[ProbeReport], verdict: str) -> None:
    for report in reports:
        name = printable(report.user or cell.plan.user) or "root"
        click.echo(f"\nas {name}")
        _show_report(report)
        if report.problem:
            click.echo(click.style(printable(f"problem: {report.problem}"), **STYLES["void"]))
    tried = sum(len(report.findings) for report in reports)
    took_ms = sum(report.duration_ms for report in reports)
    emulated = "; emulated: this host has no hardware virtualisation that works"
    total = f"{verdict}: {tried} attempts in {took_ms:.0f} ms, {cell.tier} tier"
    total += emulated if cell.emulated else ""
    click.echo("\n" + click.style(total, **STYLES[verdict]))


def _show_report(report: ProbeReport) -> None:
    """A line for each probe; breaches are explained."""
    from belljar.probe.catalogue import PROBES

    rows: list[tuple[str, ...]] = [("probe", "verdict", "outcome", "seen by", "what decided")]
    for finding in report.findings:
        reported = f"{finding.outcome.value if finding.outcome else '-'} {finding.detail}".strip()
        verdict = f"{finding.verdict.value}{', known' if finding.known else ''}"
        decided = finding.known or finding.seen
        rows.append((finding.name, verdict, reported, finding.seen_by.value, decided))
    click.echo("\n".join(table_lines(rows, styled=1)))
    explained = {each.name: each for each in PROBES}
    for finding in report.findings:
        about = explained.get(finding.name)
        if finding.verdict.value == "breached" and about is not None:
            text = (
                f"{about.name}: {about.tries} A breach: {about.breach} Why it matters: {about.why}"
            )
            click.echo(click.style(text, **STYLES["breached"]))
