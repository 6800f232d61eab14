"""`belljar ps` and `belljar reap`: the cells of this host's journal."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from belljar.cli.failures import Misuse
from belljar.units import format_duration, printable


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def ps(as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """List the cells that exist or whose owner crashed.

    `orphaned` cells belong to a process that is gone: `belljar reap` removes what is left of them.
    """
    from belljar.isolation import list_cells

    cells = list_cells()
    if as_json:
        click.echo(json.dumps([asdict(cell) for cell in cells], indent=2))
        return 0
    if not cells:
        click.echo("no cells")
        return 0
    click.echo(f"{'CELL':16} {'STATE':11} {'KIND':9} {'OWNER':>8} {'AGE':>9}")
    for cell in cells:
        owner = str(cell.owner_pid or "-")
        age = format_duration(cell.started_s_ago)
        click.echo(f"{printable(cell.cell_id):16} {cell.state:11} {cell.kind:9} {owner:>8} {age:>9}")
    return 0


@click.command("reap")
@click.argument("cell", required=False, metavar="[CELL]")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def reap(cell: str | None, as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Remove what crashed owners left behind: processes, control groups, mounts, files. Cells of living owners are not touched.

    Exit code 2 when something could not be removed.
    """
    from belljar.cli._async import run_async
    from belljar.harness.release import sweep_doors
    from belljar.isolation import list_cells
    from belljar.isolation.reap import reap as reap_cells
    from belljar.probe.witness import sweep_watches

    known = {one.cell_id: one.state for one in list_cells()}
    if cell is not None and known.get(cell) != "orphaned":
        if cell in known:
            raise Misuse(f"{cell} is in use", param="CELL", hint="end the process that owns it (`belljar ps`)")
        raise Misuse(f"there is no cell {cell} here", param="CELL", hint="`belljar ps` lists the cells")
    reaped = run_async(reap_cells, None, cell_id=cell)
    sweep_doors()
    sweep_watches()
    if as_json:
        click.echo(json.dumps([asdict(one) for one in reaped], indent=2))
    else:
        for one in reaped:
            click.echo(printable(str(one)))
        if not reaped:
            click.echo("nothing to reap")
    return 2 if any(one.remaining for one in reaped) else 0
