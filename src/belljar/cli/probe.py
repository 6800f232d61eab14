"""`belljar probe`: try, from inside a fresh cell, what a workload that wants out would try, and say
what held.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from belljar.cli.complete import policies
from belljar.cli.exec import TIERS, typed_policy
from belljar.cli.failures import Misuse
from belljar.units import printable

if TYPE_CHECKING:
    from rich.console import Console

    from belljar.ledger import RunDirectory
    from belljar.policy import LoadedPolicy
    from belljar.probe.model import Finding, Probe, ProbeReport
    from belljar.report.containment import TierResult

_COLOURS: Final = {"contained": "green", "void": "yellow", "breached": "bold red"}
_ROOT: Final = {"", "0", "root"}
_CODES: Final = {"contained": 0, "void": 2, "breached": 2}


@click.command("probe", options_metavar="[OPTIONS]")
@click.argument("policy", required=False, metavar="[POLICY|PRESET]", shell_complete=policies)
@click.option(
    "--tier",
    type=click.Choice(TIERS),
    help="Exactly this tier, at or above what the policy demands.",
)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Every probe, and once more as root of the cell. Default: the quick set.",
)
@click.option(
    "--group",
    "groups",
    multiple=True,
    metavar="GROUP",
    help="Only this group, or this probe; may be repeated.",
)
@click.option(
    "--user", help="Try as this user of the image. Default: the policy's, as the workload."
)
@click.option(
    "--list",
    "listing",
    is_flag=True,
    help="Print the catalogue (what is tried, why, what a breach looks like); no cell.",
)
@click.option(
    "--table",
    "page",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Probe every tier this host has and write the results there, as Markdown.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def probe(
    policy: str | None,
    tier: str | None,
    every: bool,  # noqa: FBT001 - click passes options by name
    groups: tuple[str, ...],
    user: str | None,
    listing: bool,  # noqa: FBT001 - as above
    page: Path | None,
    as_json: bool,  # noqa: FBT001 - as above
) -> int:
    """Try to get out of a fresh cell, from inside, and let the host judge what came of it.

    POLICY is a policy file or a preset; default: high. The host looks as well: at a canary file,
    listeners, a sentinel process, and the ids, namespaces and routes of the cell's processes. What
    the cell says can make a breach, never hide one. Recorded: `belljar ledger show last`.

    \b
    Exit codes:
      0  contained
      2  breached, or void: evidence is missing
      3  this host can't
      4  the policy is wrong

    \b
    Examples:
      belljar probe
      belljar probe critical --all
      belljar probe low --tier gvisor --all --json
      belljar probe --group fingerprint
      belljar probe --list --group network
    """
    from belljar.cli._async import run_async

    wanted = _wanted(every=every or page is not None, groups=groups)
    if listing:
        return _list(groups, as_json=as_json)
    if page is not None:
        return run_async(_write_page, page, policy or "low")
    return run_async(_probe, policy, tier, wanted, user, as_json=as_json)


def _wanted(*, every: bool, groups: tuple[str, ...]) -> str | list[str]:
    from belljar.probe.catalogue import PROBES
    from belljar.probe.run import ALL, QUICK, chosen

    wanted: str | list[str] = list(groups) if groups else ALL if every else QUICK
    try:
        chosen(PROBES, wanted)
    except ValueError as error:
        raise Misuse(
            str(error), param="--group", hint="`belljar probe --list` lists them"
        ) from None
    return wanted


async def _probe(
    policy: str | None,
    tier: str | None,
    wanted: str | list[str],
    user: str | None,
    *,
    as_json: bool,
) -> int:
    from belljar.cell import start_run

    with start_run("probe", policy or "high", sys.argv[1:]) as run:
        result = await _tried(typed_policy(policy, tier), run, wanted, user)
        verdict = result.verdict.value
        if not as_json:
            _show(result)
        run.finish("completed" if verdict == "contained" else "failed", exit_code=_CODES[verdict])
    if as_json:
        click.echo(json.dumps({**_as_object(result), "run_dir": str(run.path)}, indent=2))
    return _CODES[verdict]


async def _tried(
    loaded: LoadedPolicy, run: RunDirectory, wanted: str | list[str], user: str | None
) -> TierResult:
    """The probes as `user`, else as the policy's; all of them also as root, which a harness may ask
    a cell for. Each in a cell of its own.
    """
    from belljar.probe.run import ALL

    first = await _tried_once(loaded, run, wanted, user)
    if user is not None or wanted != ALL or first.user in _ROOT:
        return first
    second = await _tried_once(loaded, run, wanted, "root")
    return replace(first, reports=(*first.reports, *second.reports))


async def _tried_once(
    loaded: LoadedPolicy, run: RunDirectory, wanted: str | list[str], user: str | None
) -> TierResult:
    from belljar.cell import open_cell
    from belljar.events import Actor
    from belljar.probe.run import probe_cell
    from belljar.report.containment import TierResult

    async with open_cell(loaded, run=run) as cell:
        report = await probe_cell(
            cell, which=wanted, recorder=run.recorder, user=user, actor=Actor.OPERATOR
        )
        layers = tuple(layer.name for layer in cell.plan.layers)
        return TierResult(
            tier=cell.tier,
            emulated=cell.emulated,
            layers=layers,
            user=cell.plan.user,
            reports=(report,),
        )


def _as_object(result: TierResult) -> dict[str, Any]:
    return {
        "verdict": result.verdict.value,
        "tier": result.tier,
        "emulated": result.emulated,
        "layers": list(result.layers),
        "reports": [each.to_json() for each in result.reports],
    }


def _show(result: TierResult) -> None:
    from rich.console import Console

    console = Console(
        highlight=False,
        soft_wrap=not sys.stdout.isatty(),
        width=None if sys.stdout.isatty() else 160,
    )
    for report in result.reports:
        console.print(
            f"\nas {printable(report.user or result.user) or 'root'}", style="bold", markup=False
        )
        _show_report(console, report)
        if report.problem:
            console.print(f"problem: {report.problem}", markup=False, style=_COLOURS["void"])
    tried = sum(len(report.findings) for report in result.reports)
    took_ms = sum(report.duration_ms for report in result.reports)
    emulated = (
        "; emulated: this host has no hardware virtualisation that works" if result.emulated else ""
    )
    verdict = result.verdict.value
    console.print(
        f"\n{verdict}: {tried} attempts in {took_ms:.0f} ms, {result.tier} tier{emulated}",
        markup=False,
        style=_COLOURS[verdict],
    )


def _show_report(console: Console, report: ProbeReport) -> None:
    """A line for each probe, and for a breach what it means."""
    from rich.markup import escape
    from rich.table import Table

    from belljar.probe.catalogue import PROBES

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("probe", "verdict", "said", "seen by", "what decided"):
        table.add_column(name, overflow="fold")
    for finding in report.findings:
        table.add_row(
            *(cell if n == 1 else escape(printable(cell)) for n, cell in enumerate(_row(finding)))
        )
    console.print(table)
    explained = {each.name: each for each in PROBES}
    for finding in report.findings:
        if finding.verdict.value == "breached" and finding.name in explained:
            console.print(
                _breach(explained[finding.name]), markup=False, style=_COLOURS["breached"]
            )


def _row(finding: Finding) -> tuple[str, ...]:
    said = f"{finding.outcome.value if finding.outcome else '-'} {finding.detail}".strip()
    verdict = finding.verdict.value
    shown = f"[{_COLOURS[verdict]}]{verdict}{', known' if finding.known else ''}[/]"
    return (finding.name, shown, said, finding.seen_by.value, finding.known or finding.seen)


def _breach(about: Probe) -> str:
    return f"{about.name}: {about.tries} A breach: {about.breach} Why it matters: {about.why}"


def _list(groups: tuple[str, ...], *, as_json: bool) -> int:
    from belljar.probe.catalogue import PROBES

    found = [each for each in PROBES if not groups or each.group in groups or each.name in groups]
    if as_json:
        click.echo(json.dumps([_entry(each) for each in found], indent=2))
        return 0
    for each in found:
        seen = "the host" if each.witness else "the cell"
        click.echo(
            f"{each.name}{'  (quick)' if each.quick else ''}\n  tries   {each.tries}\n  why     "
            f"{each.why}\n  breach  {each.breach}\n  seen by {seen}"
        )
        for tier, why in each.expected.items():
            click.echo(f"  known   {tier}: {why}")
    click.echo(f"\n{len(found)} probes, {sum(each.quick for each in found)} of them quick")
    return 0


def _entry(each: Probe) -> dict[str, Any]:
    return {
        "name": each.name,
        "group": each.group,
        "tries": each.tries,
        "why": each.why,
        "breach": each.breach,
        "side": each.side.value,
        "quick": each.quick,
        "expected": dict(each.expected),
    }


async def _write_page(page: Path, policy: str) -> int:
    """All probes in a cell of every tier that the policy may have on this host; a tier that it
    can't have is in the page with the reason.
    """
    import anyio

    from belljar.cell import start_run
    from belljar.probe.model import Verdict, worst
    from belljar.report.containment import containment_page

    with start_run("probe", policy, sys.argv[1:]) as run:
        results = [await _tier_result(policy, tier, run) for tier in TIERS]
        text = containment_page(results, _catalogue(), _host_words())
        await anyio.Path(page).write_text(text, encoding="utf-8")
        verdict = worst(report.verdict for result in results for report in result.reports)
        run.finish(
            "completed" if verdict is Verdict.CONTAINED else "failed",
            exit_code=_CODES[verdict.value],
        )
    click.echo(f"{verdict.value}: {printable(str(page))}", err=True)
    return _CODES[verdict.value]


async def _tier_result(policy: str, tier: str, run: RunDirectory) -> TierResult:
    from belljar.errors import HostError
    from belljar.probe.run import ALL
    from belljar.report.containment import TierResult

    try:
        return await _tried(typed_policy(policy, tier), run, ALL, None)
    except HostError as error:
        return TierResult(tier=tier, refused=error.what)


def _catalogue() -> Sequence[Probe]:
    from belljar.probe.catalogue import PROBES

    return PROBES


def _host_words() -> dict[str, str]:
    """What of this host bears on the results; nothing that names it."""
    import os
    import platform

    unified = Path("/sys/fs/cgroup/cgroup.controllers")
    delegated = unified.exists() and bool(unified.read_text().split())
    return {
        "kernel": f"Linux {'.'.join(platform.release().split('.')[:2])}, {platform.machine()}",
        "control groups": "version 2" if delegated else "version 1",
        "as": "root" if os.geteuid() == 0 else "an ordinary user",
    }
