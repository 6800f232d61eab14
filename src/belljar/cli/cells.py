"""`belljar ps` and `belljar reap`: the cells of this host's journal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

import click

from belljar.cli.complete import cells
from belljar.cli.failures import Misuse
from belljar.units import format_duration, format_size, printable

if TYPE_CHECKING:
    from belljar.isolation import CellListing


@click.command("ps")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def ps(as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """List the cells that exist or whose owner crashed.

    `orphaned` cells belong to a process that is gone: `belljar reap` removes what is left of them.
    MEMORY is in use of what the policy grants. Columns that don't fit a terminal (or COLUMNS) are
    left out, the last first; a pipe gets all of them.
    """
    from belljar.isolation import list_cells

    cells = list_cells()
    warn_if_held()
    if as_json:
        click.echo(json.dumps([asdict(cell) for cell in cells], indent=2))
        return 0
    if not cells:
        click.echo("no cells")
        return 0
    for line in table(cells, columns_of(sys.stdout)):
        click.echo(line)
    return 0


def warn_if_held() -> bool:
    """On standard error, when no cell may be made; whether that is so."""
    from belljar.isolation.hold import RELEASE_HINT, read_hold
    from belljar.store.home import belljar_home

    if (held := read_hold(belljar_home())) is not None:
        click.echo(f"belljar: {printable(str(held))}\n  hint: {RELEASE_HINT}", err=True)
    return held is not None


def columns_of(stream: TextIO) -> int | None:
    """How wide lines may be: COLUMNS, else the terminal's width; None for a pipe or file."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else None


def table(cells: Sequence[CellListing], width: int | None) -> list[str]:
    """A header and a line for each cell, with as many columns as fit, at least the first two."""
    names = ("CELL", "STATE", "AGE", "TIER", "SAMPLE", "MEMORY", "POLICY", "RUN", "OWNER", "KIND")
    rows = [names, *(_row(cell) for cell in cells)]
    widths = [max(len(row[index]) for row in rows) for index in range(len(names))]
    shown = len(names)
    while width is not None and shown > 2 and sum(widths[:shown]) + 2 * (shown - 1) > width:
        shown -= 1
    return ["  ".join(map(str.ljust, row[:shown], widths)).rstrip() for row in rows]


def _row(cell: CellListing) -> tuple[str, ...]:
    about = cell.about
    used = format_size(cell.memory_bytes) if cell.memory_bytes is not None else "-"
    limit = f" of {format_size(about.memory_limit_bytes)}" if about.memory_limit_bytes else ""
    of_range = f"{about.name} of {about.range_id}" if about.name and about.name != "default" else ""
    sample = f"{about.sample} epoch {about.epoch}" if about.epoch > 1 else about.sample
    said = (
        cell.cell_id,
        cell.state,
        format_duration(cell.started_s_ago),
        about.tier,
        " ".join(word for word in (sample, of_range) if word),
        used + limit,
        about.policy,
        about.run_id,
        str(cell.owner_pid or "-"),
        cell.kind,
    )
    return tuple(printable(word, max_chars=40) or "-" for word in said)


@click.command("reap")
@click.argument("cell", required=False, metavar="[CELL]", shell_complete=cells)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def reap(cell: str | None, as_json: bool) -> int:  # noqa: FBT001 - click passes options by name
    """Remove what crashed owners left behind: processes, control groups, mounts, files.

    Cells of living owners are not touched.

    Exit code 2 when something could not be removed.
    """
    from belljar.cli._async import run_async
    from belljar.harness.attach import remove_dead_sockets
    from belljar.isolation import list_cells
    from belljar.isolation.reap import reap as reap_cells
    from belljar.probe.witness import sweep_watches

    known = {one.cell_id: one.state for one in list_cells()}
    if cell is not None and known.get(cell) != "orphaned":
        if cell in known:
            raise Misuse(
                f"{cell} is in use",
                param="CELL",
                hint="end the process that owns it (`belljar ps`)",
            )
        raise Misuse(
            f"there is no cell {cell} here", param="CELL", hint="`belljar ps` lists the cells"
        )
    reaped = run_async(reap_cells, None, cell_id=cell)
    remove_dead_sockets()
    sweep_watches()
    if as_json:
        click.echo(json.dumps([asdict(one) for one in reaped], indent=2))
    else:
        for one in reaped:
            click.echo(printable(str(one)))
        if not reaped:
            click.echo("nothing to reap")
    return 2 if any(one.remaining for one in reaped) else 0
