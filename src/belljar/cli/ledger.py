"""`belljar ledger`: what a record says."""

from __future__ import annotations

import base64
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from belljar.cli import console
from belljar.errors import LedgerError
from belljar.ledger.files import read_raw
from belljar.ledger.keys import local_fingerprint, parse_fingerprint
from belljar.ledger.listing import find_run, read_body, read_lines, run_ids
from belljar.ledger.verification import (
    HINT_KEY,
    parse_line,
    row,
    verification_json,
    verification_text,
)
from belljar.ledger.verification import verify as verify_run
from belljar.store.home import belljar_home
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.fleet.record import Shown
    from belljar.ledger.schema import BodyRef, Line
    from belljar.report.samples import RunFindings
    from belljar.report.verdict import Evidence


@click.group()
def ledger() -> None:
    """Verify or show the record of a run.

    RUN is a run id, the beginning of one, `last`, or the path of a run directory.
    """


@ledger.command()
@console.run_argument
@console.key_option
@click.option("--strict", is_flag=True, help="Only a whole run and a known key will do.")
@console.json_option()
def verify(run: str, fingerprint: str | None, *, strict: bool, as_json: bool) -> int:
    """Check every event, signature, body and file of RUN, offline.

    \b
    Exit codes:
      0  nothing is wrong
      1  something is wrong: the first bad line or file is named

    A run whose process died is "unfinished", and a copy without parts is "partial": what is there
    is checked, and the exit code is 0, or 1 with --strict. On a host without a key of its own
    --strict needs --key: anyone can sign a forged record with a new key.
    """
    path = run_path(run)
    expected, origin = expected_key(fingerprint)
    with console.reading(path):
        result = verify_run(path, expected_key=expected, expected_run=expected_run(run, path))
    if as_json:
        console.print_json(
            {
                **verification_json(result, strict=strict),
                "path": str(path),
                "key_compared_with": origin or None,
            }
        )
    else:
        click.echo(verification_text(result, path, origin))
    if strict and not result.key_checked and not as_json:
        click.echo(f"  hint: {HINT_KEY}", err=True)
    return 0 if result.passes(strict=strict) else 1


@ledger.command()
@console.run_argument
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Kinds that begin so.")
@click.option("--cell-id", "cell", metavar="ID", help="Only events of the cell whose id begins so.")
@click.option("--output", is_flag=True, help="Also bodies, escaped.")
@click.option("--probes", is_flag=True, help="Also what Belljar's probes tried of a network.")
@console.json_option("One JSON object per line, beyond ASCII escaped.")
def show(
    run: str, kinds: tuple[str, ...], cell: str | None, *, output: bool, probes: bool, as_json: bool
) -> None:
    """Print the events of RUN. Does not verify them.

    The mark before each event's kind is its source: `g` was reported by the cell's guest, `·`
    observed by the host.

    What Belljar's own probes tried is hidden without --probes or --json.

    With --output each body follows its event, at most 64 KiB of it, line by line and escaped; with
    --json it is the body's `content_base64`. `belljar ledger verify` checks that it is unchanged.

    \b
    Example:
      belljar ledger show last --kind exec --output
    """
    from belljar.report.reading import ProbeTracker

    path, tracker, number, hidden, is_empty = run_path(run), ProbeTracker(), 0, 0, True
    with console.reading(f"{path}: no ledger to read"):
        for number, event in read_lines(path):
            if isinstance(event, ValueError):
                is_empty = False
                click.echo(f"line {number}: not an event: {printable(str(event))}", err=True)
                continue
            tracker.take(event)
            is_kind = any(f"{event.kind}.".startswith(f"{kind}.") for kind in kinds or [event.kind])
            if not (is_kind and (event.cell or "").startswith(cell or "")):
                continue
            if not (probes or as_json) and tracker.is_of_probe(event):
                hidden += 1
                continue
            is_empty = False
            _show_event(event, path, with_output=output, as_json=as_json)
    if hidden:
        click.echo(f"{hidden} events of Belljar's own probes are hidden; add --probes", err=True)
    elif is_empty and not as_json:
        click.echo(f"no events of that kind or cell ({number} events)", err=True)


def _show_event(event: Line, path: Path, *, with_output: bool, as_json: bool) -> None:
    bodies = [(body.name, *_content(body, path)) for body in event.bodies if with_output]
    if as_json:
        value = event.to_json()
        # Without `--output` there are no bodies, so the lengths may differ.
        for shown, (_, content, problem) in zip(value["bodies"], bodies, strict=with_output):
            shown["content_base64"] = base64.b64encode(content).decode()
            if problem:
                shown["problem"] = problem
        click.echo(json.dumps(value))
        return
    click.echo(row(event))
    for name, content, problem in bodies:
        for line in content.decode("utf-8", "backslashreplace").splitlines():
            click.echo(f"        {name} | {printable(line)}")
        if problem:
            click.echo(f"        {name}: {printable(problem)}")


def _content(body: BodyRef, path: Path) -> tuple[bytes, str]:
    try:  # a longer one is cut, and its whole is a file of the run directory
        content = read_body(path, body, max_bytes=64 << 10)
    except (OSError, LedgerError) as error:
        return b"", str(error)
    left_out = body.kept_bytes - len(content)
    return content, f"{left_out} more bytes were kept" if left_out > 0 else ""


@contextmanager
def new_file(output: Path | None) -> Iterator[BinaryIO]:
    """Yield standard output, or a new private file, gone if the block fails."""
    if output is None:
        yield sys.stdout.buffer
        return
    try:
        # It quotes what cells printed
        fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise console.MisuseError(f"{output} exists", hint="name a new file") from error
    with console.writing(output), os.fdopen(fd, "wb") as file:
        try:
            yield file
        except BaseException:
            output.unlink(missing_ok=True)  # half of it would be taken for all
            raise


def write_lines(path: Path, target: BinaryIO, *, escape: bool) -> None:
    """Write each complete event; others are named on standard error."""
    for number, raw, complete in read_raw(path):
        try:
            if not complete:
                raise ValueError("incomplete: the event being written when the run ended")
            parse_line(raw)
        except ValueError as error:
            click.echo(f"line {number}: left out: {printable(str(error))}", err=True)
            continue
        # A terminal gets escapes for characters beyond ASCII, a file the bytes that were chained.
        target.write((json.dumps(json.loads(raw)).encode() if escape else raw) + b"\n")


# --- what is meant


def expected_run(ref: str, path: Path) -> str | None:
    """Return the id that was typed, or that a directory is named by.

    A copy by any other name may be of any run.
    """
    is_path = "/" in ref or ref in {".", ".."}
    name = path.absolute().name if path.name else path.resolve().name
    return name if not is_path or re.fullmatch(r"\d{8}-\d{9}-[0-9a-f]{6}", name) else None


def run_path(ref: str) -> Path:
    home = belljar_home()
    try:
        if ref == "last" and not run_ids(home):
            what = f"there are no runs yet in {home}"
            raise console.MisuseError(what, hint="`belljar exec -- uname -a` makes one")
        return find_run(home, ref)
    except OSError as error:
        hint = "`belljar runs --all` lists them"
        raise console.MisuseError(str(error), hint=hint) from error


def judged(
    path: Path,
    ref: str,
    fingerprint: str | None,
    *,
    logs: Sequence[Path] = (),
    shown: Shown | None = None,
) -> tuple[Evidence, RunFindings, list[str]]:
    """Verify and judge a run; return evidence, findings, and a fleet's lines. Raises `OSError`."""
    from belljar.fleet.record import findings_of
    from belljar.harness.evidence import stored_evidence

    evidence = stored_evidence(
        path,
        logs=[str(log.resolve()) for log in logs],
        expected_key=expected_key(fingerprint)[0],
        expected_run=expected_run(ref, path),
        timelines=None if shown is None else shown.timelines,
    )
    return evidence, *findings_of(path, evidence, shown)


def expected_key(fingerprint: str | None) -> tuple[str | None, str]:
    """Return the key to compare with, and its source."""
    if fingerprint is None:
        local = local_fingerprint(belljar_home())
        return local, "this host's key" if local else ""
    try:
        return parse_fingerprint(fingerprint), "the key given"
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--key") from error
