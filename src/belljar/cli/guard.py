"""`belljar guard scan|test`: what the egress guard sees in files, and how well it does on cases."""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from belljar.units import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from belljar.signals.cases import Case, Outcome, Score
    from belljar.signals.streams import StreamScanner
    from belljar.signals.values import Hit, KnownValue

CHUNK_BYTES: Final = 16 << 20
TIME_S: Final = 60.0
"""For each chunk: an operator waits longer than a request does."""
INCOMPLETE_CODE: Final = 2

_POLICY = click.option(
    "--policy",
    metavar="POLICY",
    help="Look for what this policy protects and for its classes. Default: credentials alone.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object.")


@click.group()
def guard() -> None:
    """Try the egress guard: scan files, or test it with cases.

    \b
    Examples:
      belljar guard scan --policy policy.yaml notes.txt
      belljar guard test cases.jsonl
    """


@guard.command()
@_POLICY
@_JSON
@click.argument("files", nargs=-1, required=True, metavar="FILE…|-")
def scan(files: tuple[str, ...], policy: str | None, *, as_json: bool) -> int:
    """Say what the guard finds in each FILE, and how it was encoded. `-` is standard input.

    The values themselves are never printed. Exit code 1 when something was found, 0 when nothing
    was, 2 or more on an error or where a bound ended the scan (as grep's).
    """
    stream = _stream(policy)
    found = [_scan_file(stream, name) for name in files]
    if as_json:
        click.echo(json.dumps({"files": found}, indent=2))
    else:
        for one in found:
            _print_file(one)
    if any(one["hits"] for one in found):
        return 1
    return 0 if all(one["complete"] for one in found) else INCOMPLETE_CODE


@guard.command()
@_POLICY
@click.option(
    "--live", is_flag=True, help="Carry the cases out from inside cells, through a real gateway."
)
@_JSON
@click.argument("cases", metavar="CASES.jsonl")
def test(cases: str, policy: str | None, *, live: bool, as_json: bool) -> int:
    """Hand each case of a file to the guard, and print how many it got right.

    A case is one line of JSON; the guide to the guard shows the format. With --live each case is
    sent, read or printed in a cell of its own, by its Python, under the policy's guard and
    isolation (default: risk low), and counts as found when the run's record says so.

    Exit code 0 when each case was as it expects, 1 when one was not, 4 when the file is wrong.
    """
    from belljar.signals.cases import MAX_FILE_BYTES, read_cases, scan_case, score

    with _opened(cases) as file:
        content = file.read(MAX_FILE_BYTES + 1)
    if len(content) > MAX_FILE_BYTES:
        raise click.BadParameter(
            f"more than {MAX_FILE_BYTES >> 20} MiB: split the file", param_hint="CASES.jsonl"
        )
    found = read_cases(content, printable(cases))
    if live:
        from belljar.cli._async import run_async

        outcomes, run_dir = run_async(_carry_out, found, policy)
        result = score(outcomes)
    else:
        stream, run_dir = _stream(policy), None
        result = score(scan_case(case, stream) for case in found)
    if as_json:
        where = {} if run_dir is None else {"run_dir": str(run_dir)}
        click.echo(json.dumps(result.to_json() | where, indent=2))
    else:
        _print_score(result)
        if run_dir is not None:
            click.echo(f"run {run_dir.name}: {printable(str(run_dir))}")
    return 1 if result.failed else 0


def _print_score(result: Score) -> None:
    click.echo(
        f"{result.cases} cases: precision {result.precision:.3f}, recall {result.recall:.3f}, "
        f"false positives {result.false_positive_rate:.3f}"
    )
    for outcome in result.failed:
        case = outcome.case
        was = (
            f"found {', '.join(outcome.classes)}"
            if outcome.classes
            else outcome.problem or "not found"
        )
        wanted = f"{'flag' if case.flags else 'pass'}{f' as {case.cls}' if case.cls else ''}"
        shown = printable(f"{case.id} ({case.channel.value}): expected {wanted}, {was}")
        click.echo(f"  {shown}")
    for what, misses in (
        ("class", result.misses(lambda case: case.cls or "any")),
        ("channel", result.misses(lambda case: case.channel.value)),
    ):
        if misses:
            click.echo(
                f"misses by {what}: "
                + ", ".join(f"{printable(name)} {n}" for name, n in misses.items())
            )


async def _carry_out(cases: Sequence[Case], policy: str | None) -> tuple[Sequence[Outcome], Path]:
    from belljar.cell import open_cell, start_run
    from belljar.cli.exec import typed_policy
    from belljar.harness.guard_live import carry_out

    loaded = typed_policy(policy or "low", None, announces=False)
    is_terminal = sys.stderr.isatty()

    def tell(done: int) -> None:
        if is_terminal or done in (1, len(cases)) or done % 25 == 0:
            click.echo(f"belljar: {done} of {len(cases)} cases", err=True)

    with start_run("guard test", loaded.source, sys.argv[1:]) as run:
        outcomes = await carry_out(
            cases, loaded, run=run, opening=lambda each: open_cell(each, run=run), tell=tell
        )
        run.finish("completed", exit_code=0)
    return outcomes, run.path


def _stream(policy: str | None) -> StreamScanner:
    """A scanner of what a policy protects. Raises PolicyError, HostError."""
    from belljar.signals.scanner import Scanner
    from belljar.signals.streams import StreamScanner
    from belljar.signals.values import ScanBounds, read_protected, spec_of

    classes: tuple[str, ...] = ()
    values: tuple[KnownValue, ...] = ()
    if policy is not None:
        from belljar.policy import resolve_policy

        loaded = resolve_policy(policy)
        classes = loaded.policy.guard_rules.classes
        values = read_protected(loaded)
    return StreamScanner(
        Scanner(spec_of(values, classes, (), secrets.token_bytes(32), ScanBounds(time_s=TIME_S)))
    )


def _opened(name: str) -> BinaryIO:
    if name == "-":
        return sys.stdin.buffer
    try:
        return Path(name).open("rb")
    except OSError as error:
        raise click.BadParameter(
            printable(f"{name}: {error.strerror}"), param_hint="FILE"
        ) from error


def _scan_file(stream: StreamScanner, name: str) -> dict[str, Any]:
    from belljar.signals.values import Channel

    hits: list[dict[str, Any]] = []
    at, problem = 0, ""
    with _opened(name) as file:
        try:
            while chunk := file.read(CHUNK_BYTES):
                result = stream.feed(name, Channel.FILE, "data", chunk)
                hits += [_hit(hit, at) for hit in result.hits]
                problem = problem or result.problem
                at += len(chunk)
        except OSError as error:
            raise click.BadParameter(
                printable(f"{name}: {error.strerror}"), param_hint="FILE"
            ) from error
    stream.end(name)
    return {"file": name, "bytes": at, "complete": not problem, "problem": problem, "hits": hits}


def _hit(hit: Hit, at: int) -> dict[str, Any]:
    return {
        "class": hit.cls,
        "value": hit.value_id,
        "source": hit.source,
        "start": hit.start + at,
        "end": hit.end + at,
        "decoding": list(hit.decoding),
        "digest": hit.digest,
    }


def _print_file(found: dict[str, Any]) -> None:
    name = printable(found["file"])
    for hit in found["hits"]:
        how = f", decoded from {' > '.join(hit['decoding'])}" if hit["decoding"] else ""
        value = f" {hit['value']}" if hit["value"] else ""
        click.echo(
            f"{name}: bytes {hit['start']}-{hit['end']}: {printable(hit['class'] + value)}{how}"
        )
    if not found["complete"]:
        click.echo(f"{name}: not scanned to the end: {found['problem']}", err=True)
