"""`belljar runs`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Final

import click

from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.ledger.listing import RunSummary

_STYLES: Final = {"completed": "green", "failed": "red", "broken": "red", "running": "cyan"}
_VERDICTS: Final = {"contained": "green", "void": "yellow", "breached": "bold red"}


@click.command()
@click.option("--limit", type=click.IntRange(min=1), help="Only the latest so many.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
def runs(limit: int | None, *, as_json: bool) -> None:
    """List run directories, oldest first, as they say of themselves; `belljar verdict` judges one by its evidence.

    RECORDED is the verdict that an evaluation's own process recorded when it sealed the run.
    """
    from belljar.host.home import belljar_home
    from belljar.ledger.listing import list_runs

    home = belljar_home()
    found = list_runs(home, limit=limit)
    if as_json:
        click.echo(json.dumps([run.to_json() for run in found], indent=2))
    elif found:
        _print(found)
    else:
        click.echo(f"no runs under {printable(str(home))}")


def _print(found: list[RunSummary]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("RUN", "STARTED (UTC)", "KIND", "WHAT", "OUTCOME", "RECORDED"):
        table.add_column(name, no_wrap=name in {"RUN", "STARTED (UTC)"}, overflow="fold")
    table.add_column("SIZE", justify="right", no_wrap=True)
    for run in found:
        started = run.started[:19].replace("T", " ") if run.started else "-"
        code = f" ({run.exit_code})" if run.exit_code else ""
        cells = (run.run_id, started, run.kind, run.what)
        shown = [Text(printable(text, max_chars=120)) for text in cells]
        outcome = Text(printable(f"{run.outcome}{code}"), style=_STYLES.get(run.outcome, "yellow"))
        recorded = Text(printable(run.verdict or "-"), style=_VERDICTS.get(run.verdict, ""))
        table.add_row(*shown, outcome, recorded, Text(format_size(run.size_bytes)))
    # Piped into a file or a pager there is no terminal to fit.
    Console(width=None if sys.stdout.isatty() else 200).print(table)
