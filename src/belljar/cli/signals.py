"""`belljar guard` and `belljar decoy`."""

from __future__ import annotations

import re
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from belljar.cli.console import json_option, print_json, reading
from belljar.units import printable

if TYPE_CHECKING:
    from pathlib import Path

    from belljar.signals.streams import StreamScanner
    from belljar.signals.values import KnownValue


CHUNK_BYTES: Final = 16 << 20
# For each chunk: an operator waits longer than a request does.
TIME_S: Final = 60.0
INCOMPLETE_CODE: Final = 2

_POLICY = click.option(
    "--policy",
    metavar="POLICY",
    help="Look for what this policy protects and for its classes. Default: credentials alone.",
)


@click.group()
def guard() -> None:
    """Try the egress guard on files.

    \b
    Example:
      belljar guard scan --policy policy.yaml notes.txt
    """


@guard.command()
@_POLICY
@json_option()
@click.argument("files", nargs=-1, required=True, metavar="FILE…|-")
def scan(files: tuple[str, ...], policy: str | None, *, as_json: bool) -> int:
    """Say what the guard finds in each FILE, and how it was encoded. `-` is standard input.

    The values themselves are never printed. Exit code 1 when something was found, 0 when nothing
    was, 2 or more on an error or where a bound ended the scan (as grep's).
    """
    stream = _stream(policy)
    found = [_scan_file(stream, name) for name in files]
    if as_json:
        print_json({"files": found})
    else:
        for one in found:
            name = printable(one["file"])
            for hit in one["hits"]:
                how = f", decoded from {' > '.join(hit['decoding'])}" if hit["decoding"] else ""
                value = printable(hit["class"] + (f" {hit['value']}" if hit["value"] else ""))
                click.echo(f"{name}: bytes {hit['start']}-{hit['end']}: {value}{how}")
            if not one["complete"]:
                click.echo(f"{name}: not scanned to the end: {one['problem']}", err=True)
    if any(one["hits"] for one in found):
        return 1
    if not as_json and sys.stdout.isatty():
        click.echo("nothing found", err=True)
    return 0 if all(one["complete"] for one in found) else INCOMPLETE_CODE


def _stream(policy: str | None) -> StreamScanner:
    """Scans for a policy's values. Raises PolicyError, HostError."""
    from belljar.signals.scanner import Scanner
    from belljar.signals.streams import StreamScanner
    from belljar.signals.values import ScanBounds, read_protected, spec_of

    classes: tuple[str, ...] = ()
    values: tuple[KnownValue, ...] = ()
    if policy is not None:
        from belljar.policy.load import resolve_policy

        loaded = resolve_policy(policy)
        classes = loaded.policy.guard_rules.classes
        values = read_protected(loaded)
    return StreamScanner(
        Scanner(spec_of(values, classes, (), secrets.token_bytes(32), ScanBounds(time_s=TIME_S)))
    )


def _opened(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    with reading(name, "FILE"):
        return Path(name).open("rb")


def _scan_file(stream: StreamScanner, name: str) -> dict[str, Any]:
    from belljar.signals.values import Channel

    hits: list[dict[str, Any]] = []
    at, problem = 0, ""
    with _opened(name) as file, reading(name, "FILE"):
        while chunk := file.read(CHUNK_BYTES):
            result = stream.feed(name, Channel.FILE, "data", chunk)
            hits += [
                {
                    "class": hit.cls,
                    "value": hit.value_id,
                    "source": hit.source,
                    "start": hit.start + at,
                    "end": hit.end + at,
                    "decoding": list(hit.decoding),
                    "digest": hit.digest,
                }
                for hit in result.hits
            ]
            problem = problem or result.problem
            at += len(chunk)
    stream.end(name)
    return {"file": name, "bytes": at, "complete": not problem, "problem": problem, "hits": hits}


MAX_TEXT_BYTES: Final = 1 << 20
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
