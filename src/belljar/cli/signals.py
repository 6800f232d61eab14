"""`belljar decoy`: whose decoy a value is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from belljar.cli.console import json_option, print_json
from belljar.units import printable

if TYPE_CHECKING:
    from pathlib import Path


@click.group()
def decoy() -> None:
    """Tell whose decoy a value is."""


@decoy.command()
@click.option("--run", "refs", multiple=True, metavar="RUN", help="Only this run. Default: all.")
@json_option()
@click.argument("value")
def find(value: str, refs: tuple[str, ...], *, as_json: bool) -> int:
    """Name the run, sample and decoy that VALUE was minted for.

    It must be as it was minted, not encoded. Only the user who made a run has its key.

    Exit code 0 when it is a decoy's, 1 when it is of none of these runs.
    """
    from belljar.cli.ledger import run_path
    from belljar.ledger.listing import run_ids
    from belljar.ledger.rundir import RUNS
    from belljar.store.home import belljar_home

    home = belljar_home()
    runs = [run_path(ref) for ref in refs] or [
        home / RUNS / name for name in reversed(run_ids(home))
    ]
    found = [one for run in runs for one in _find(run, value)]
    if as_json:
        print_json({"found": found})
    elif not found:
        click.echo("no decoy of these runs has this value", err=True)
    else:
        for one in found:
            sample = f"sample {printable(one['sample'])}, " if one["sample"] else ""
            value = printable(one["value"])
            click.echo(f"{one['run_id']}: {sample}cell {one['cell_id']}, decoy {value}")
    return 0 if found else 1


def _find(run: Path, value: str) -> Iterator[dict[str, str]]:
    """Matches in a run's record. Raises `LedgerError`, `OSError`."""
    from belljar.cell.decoys import KEY_FILE, read_key
    from belljar.events import Kind
    from belljar.ledger.listing import read_events
    from belljar.signals.decoys import digest, origins

    # No key: nothing was minted there, or the key was left out or deleted since.
    if not (run / KEY_FILE).exists():
        return
    key = read_key(run)
    placed, samples = [], {}
    for event in read_events(run):
        if event.kind is Kind.DECOY_PLACED and event.cell:
            placed.append((event.cell, event.data["decoy"], event.data["values"]))
        elif event.kind is Kind.SAMPLE_STARTED and event.cell:
            samples[event.cell] = str(event.data["sample"])
    if (origin := origins(placed).get(digest(key, value))) is not None:
        yield {
            "run_id": run.name,
            "cell_id": origin.cell_id,
            "sample": samples.get(origin.cell_id, ""),
            "decoy": origin.decoy,
            "value": origin.value,  # its name in the decoy
        }
