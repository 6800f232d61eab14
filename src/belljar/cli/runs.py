"""`belljar runs`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.ledger.listing import RunSummary

_STYLES: Final = {"completed": "green", "failed": "red", "broken": "red", "running": "cyan"}
_VERDICTS: Final[dict[str, dict[str, Any]]] = {
    "contained": {"fg": "green"},
    "void": {"fg": "yellow"},
    "breached": {"fg": "red", "bold": True},
}
MAX_WHAT_CHARS: Final = 60
"""A longer task or command line is cut; `--json` has it whole."""


@click.command()
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="Only the latest so many.",
)
@click.option("--all", "every", is_flag=True, help="Every run, however many there are.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
def runs(limit: int, *, every: bool, as_json: bool) -> None:
    """List the latest run directories, oldest first, as they say of themselves; `belljar verdict`
    judges one by its evidence.

    RECORDED is the verdict that an evaluation's own process recorded when it sealed the run.
    """
    from belljar.ledger.listing import list_runs
    from belljar.store.home import belljar_home

    home = belljar_home()
    found, count = list_runs(home, limit=None if every else limit)
    if len(found) < count:
        click.echo(f"belljar: the latest {limit} of {count} runs; --all lists every one", err=True)
    if as_json:
        click.echo(json.dumps([run.to_json() for run in found], indent=2))
    elif found:
        _print(found)
    else:
        click.echo("no runs yet; try `belljar exec -- uname -a`")


def _print(found: list[RunSummary]) -> None:
    rows = [
        ("RUN", "STARTED (UTC)", "KIND", "WHAT", "OUTCOME", "RECORDED", "SIZE"),
        *map(_row, found),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        padded[-1] = row[-1].rjust(widths[-1])
        if number:
            run = found[number - 1]
            padded[4] = click.style(padded[4], fg=_STYLES.get(run.outcome, "yellow"))
            padded[5] = click.style(padded[5], **_VERDICTS.get(run.verdict, {}))
        click.echo("  ".join(padded))


def _row(run: RunSummary) -> tuple[str, ...]:
    started = run.started[:19].replace("T", " ") if run.started else "-"
    code = f" ({run.exit_code})" if run.exit_code else ""
    killed = ", killed" if run.killed else ""
    words = (
        run.run_id,
        started,
        run.kind,
        run.what,
        f"{run.outcome}{code}{killed}",
        run.verdict or "-",
    )
    return (
        *(printable(word, max_chars=MAX_WHAT_CHARS) for word in words),
        format_size(run.size_bytes),
    )
