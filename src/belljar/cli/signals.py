"""`belljar decoy`: whose decoy a value is."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from belljar.cli.console import json_option, print_json
from belljar.units import printable

if TYPE_CHECKING:
    from pathlib import Path

# A line of a log, or a file of them: all of it is looked through for values.
MAX_TEXT_BYTES: Final = 1 << 20
# What parts values in a log's line; a URL's pieces are taken apart by the next one.
_WORD: Final = re.compile(r"[^\s\"'`=,;<>()\[\]{}]+")
_PIECE: Final = re.compile(r"[:/@?&|]+")


@click.group()
def decoy() -> None:
    """Tell whose decoy a value is."""


@decoy.command()
@click.option(
    "--run", "refs", multiple=True, metavar="RUN", help="Look only in this run. Default: all here."
)
@json_option()
@click.argument("value", metavar="VALUE|-")
def find(value: str, refs: tuple[str, ...], *, as_json: bool) -> int:
    """Name the run, sample and decoy that VALUE was minted for.

    `-` reads standard input, at most 1 MiB: a value, or text with one in it, such as a line of a
    log. It must be as it was minted, not encoded. Only the user who made a run has its key.

    Exit code 0 when it is a decoy's, 1 when it is of none of these runs.
    """
    from belljar.cli.ledger import run_path
    from belljar.ledger.listing import run_ids
    from belljar.ledger.rundir import RUNS
    from belljar.store.home import belljar_home

    text = (
        sys.stdin.buffer.read(MAX_TEXT_BYTES).decode("utf-8", "replace") if value == "-" else value
    )
    home = belljar_home()
    runs = [run_path(ref) for ref in refs] or [
        home / RUNS / name for name in reversed(run_ids(home))
    ]
    found = [one for run in runs for one in _find(run, candidates(text))]
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


def candidates(text: str) -> tuple[str, ...]:
    """The text, its lines, words and URL pieces. Pure."""
    lines, words = [line.strip() for line in text.splitlines()], _WORD.findall(text)
    pieces = [piece for word in words for piece in _PIECE.split(word)]
    return tuple(dict.fromkeys(one for one in (text.strip(), *lines, *words, *pieces) if one))


def _find(run: Path, texts: tuple[str, ...]) -> Iterator[dict[str, str]]:
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
    known = origins(placed)
    for text in texts:
        if (origin := known.get(digest(key, text))) is not None:
            yield {
                "run_id": run.name,
                "cell_id": origin.cell_id,
                "sample": samples.get(origin.cell_id, ""),
                "decoy": origin.decoy,
                "value": origin.value,  # its name in the decoy
            }
