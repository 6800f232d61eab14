"""`belljar export`, `replay` and `share`: the record for other tools and other people."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from belljar.cli import console
from belljar.cli.ledger import judged, new_file, run_path, write_lines
from belljar.errors import HostError, LedgerError
from belljar.ledger import redaction
from belljar.ledger.files import digest_file, open_beneath, open_directory
from belljar.ledger.keys import load_or_make_key
from belljar.ledger.listing import read_body, read_events, summarise
from belljar.ledger.redaction import CLASSES
from belljar.store.home import belljar_home
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.ledger.schema import BodyRef

FORMATS: Final = ("jsonl", "timesketch", "ocsf", "otlp", "intoto", "cast", "pcap")
# A player holds a whole recording in memory.
_MAX_BODY_BYTES: Final = 16 << 20
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_SEND_TIMEOUT_S: Final = 5.0  # of one request; a collector that hangs is tried again
_GRACE_S: Final = 5.0  # after the run's end, for what is left


@click.command()
@console.run_argument
@click.option("--format", "kind", type=click.Choice(FORMATS), default="jsonl", show_default=True)
@click.option("--cell", "place", default="", help="For cast and pcap: which cell, or range.")
@click.option("--endpoint", metavar="URL", help="For otlp: send there, until the run's end.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A new file. Default: standard output.",
)
@console.key_option
def export(
    run: str,
    kind: str,
    place: str,
    endpoint: str | None,
    output: Path | None,
    fingerprint: str | None,
) -> int:
    """Write RUN in another tool's format.

    \b
    jsonl       the events, byte for byte as they were chained
    timesketch  a line per event, for Timesketch's importer
    ocsf        OCSF 1.5 events: processes, files, network, HTTP, DNS, detection findings
    otlp        traces: run, samples, commands, requests (extra `otel`)
    intoto      the verdict as a signed in-toto statement in a DSSE envelope
    cast        a cell's commands and terminals as an asciicast
    pcap        a range's packets

    The record is not verified, except for intoto. Exit codes: 0 written; 1 intoto was asked for and
    the record does not verify; 3 it can't be written.
    """
    path = run_path(run)
    if kind != "intoto":
        _report_gaps(path, is_followed=bool(endpoint))
    with console.reading(path):
        if kind == "intoto":
            return _export_statement(path, run, fingerprint, output)
        if kind == "otlp":
            if not endpoint:
                raise console.MisuseError("otlp is sent to a collector")
            return _send(path, endpoint)
        with new_file(output) as file:
            if kind == "jsonl":
                write_lines(path, file, escape=output is None and sys.stdout.isatty())
            elif kind == "pcap":
                _copy_packets(path, place, file)
            else:
                file.writelines(
                    json.dumps(each).encode() + b"\n" for each in _documents(path, kind, place)
                )
            file.flush()
    return 0


@click.command()
@console.run_argument
@click.option("--cell", "place", default="", help="Which cell. Default: the only one.")
@click.option("--idle", "idle_s", type=click.FloatRange(0), default=2.0, help="Longest pause.")
def replay(run: str, place: str, idle_s: float) -> None:
    """Play a cell's commands and terminals in this terminal, with their pauses.

    Colours are left out; whatever else could act on the terminal is shown as text.
    """
    path = run_path(run)
    with console.reading(path):
        for after_s, code, data in islice(_documents(path, "cast", place), 1, None):
            sys.stdout.flush()
            time.sleep(min(after_s, idle_s))
            click.echo(_safe(data) if code == "o" else f"[exit {printable(data)}]\n", nl=False)


def _safe(text: str) -> str:
    lines = re.split(r"\r\n|\n|\r", _COLOUR.sub("", text))
    return "\n".join(printable(line, max_chars=len(line)) for line in lines)


def _documents(path: Path, kind: str, place: str) -> Iterable[Any]:
    if kind != "cast":
        from belljar.export.ocsf import ocsf, timesketch

        first = next(read_events(path), None)
        # As the record says: a copy's directory may have any name.
        run_id = "" if first is None else str(first.data.get("run_id", ""))
        return (ocsf if kind == "ocsf" else timesketch)(read_events(path), run_id)
    from belljar.export.cast import cast

    def read(body: BodyRef) -> bytes:
        try:
            return read_body(path, body, max_bytes=_MAX_BODY_BYTES)
        except (OSError, LedgerError) as error:
            # In place of the body: the others are still played.
            return f"[{body.name}: {error}]".encode()

    commands = (line.cell for line in read_events(path) if line.kind == "exec.started")
    return cast(read_events(path), _one(commands, place, "cell with commands"), read)


def _one(found: Iterable[str | None], place: str, what: str) -> str:
    """Return the one that is meant. Raises `MisuseError`."""
    meant = [each for each in dict.fromkeys(found) if each and each.startswith(place)]
    if len(meant) != 1:
        hint = f"name one with --cell: {', '.join(map(printable, meant[:20]))}" if meant else ""
        raise console.MisuseError(f"{len(meant)} are meant: {what}", hint=hint)
    return meant[0]


def _report_gaps(path: Path, *, is_followed: bool) -> None:
    if (path / "units").is_dir():
        console.notice("of a fleet, this has what the head did; units/*.tar are its units' runs")
    endless = {"unfinished": "it was cut off", "broken": "it is empty or can't be read"}
    endless |= {} if is_followed else {"running": "it still runs"}
    if why := endless.get(summarise(path).outcome):
        console.notice(f"the record has no end, as {why}: this is all there is")


def _send(path: Path, endpoint: str) -> int:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult

        from belljar.export.otlp import follow
    except ImportError as error:
        hint = "install Belljar with the extra `otel`"
        raise HostError(f"{error.name} is not installed", hint=hint) from error

    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # it logs each attempt
    os.nice(10)  # an evaluation that lasts comes first
    os.environ |= {"NO_PROXY": "*", "no_proxy": "*"}  # the record names the collector, and no proxy
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_SEND_TIMEOUT_S)
    sent, lost = follow(
        path, lambda found: exporter.export(found) is SpanExportResult.SUCCESS, grace_s=_GRACE_S
    )
    click.echo(f"{sent} spans were sent{f', {lost} were NOT' if lost else ''}")
    return HostError.exit_code if lost else 0


def _copy_packets(path: Path, place: str, file: BinaryIO) -> None:
    packets = {each.parent.name: each for each in sorted(path.glob("ranges/*/*.pcapng"))}
    name = _one(packets, place, "range with packets")
    inside = str(packets[name].relative_to(path))
    with open_directory(path) as root, open_beneath(root, inside) as source:
        shutil.copyfileobj(source, file, 1 << 20)


def _export_statement(path: Path, run: str, fingerprint: str | None, output: Path | None) -> int:
    from belljar.export.statement import statement
    from belljar.ledger.verification import Status
    from belljar.report.samples import collect

    evidence, findings, _ = judged(path, run, fingerprint)
    checked = evidence.verification
    if checked is None or evidence.ledger is not Status.VERIFIED:
        console.notice(f"not signed: {evidence.ledger_problem}")
        return 1
    key = load_or_make_key(belljar_home())
    if key.fingerprint != checked.key:
        raise HostError(
            "only the key that sealed the run signs its statement",
            where=str(path),
            hint="export it on the host that made the run",
        )
    if findings.unsealed_logs:
        raise HostError(
            "its verdict rests on a log outside of the record, which anybody may have changed",
            where=printable(findings.unsealed_logs[0], max_chars=200),
            hint="only a run of `belljar run` has a statement",
        )
    logs = {}
    for log in sorted(path.glob("inspect/*")):  # as verified: all are in the manifest
        with log.open("rb") as file:
            logs[f"inspect/{log.name}"] = digest_file(file)[0]
    signed = statement(checked.run_id or "", checked.root, logs, collect(findings), key)
    with new_file(output) as target:
        target.write(json.dumps(signed).encode() + b"\n")
        target.flush()
    return 0


# --- share


@click.command()
@console.run_argument
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--redact",
    "classes",
    multiple=True,
    required=True,
    type=click.Choice((*CLASSES, "all")),
    help="Leave out this class of contents. Repeatable.",
)
@console.json_option()
def share(run: str, out: Path, classes: tuple[str, ...], *, as_json: bool) -> None:
    """Copy RUN to the new directory OUT, without the classes named.

    \b
    requests  bodies of requests and answers; with them packets and logs, which quote them
    outputs   what commands printed; with it logs
    inputs    what commands read, and what an operator typed; with it logs
    files     contents of files that were read and written; with them logs
    other     bodies of other events, as of containment tests
    packets   packet records
    logs      Inspect's logs
    secrets   the key that decoys are made with
    all       all of these

    The events stay whole, with arguments, paths, addresses, headers and sizes: read them before you
    give the copy away. It says what is missing, signed by the key that sealed the run; `belljar
    ledger verify` and `belljar-verify` report it as partial.
    """
    path, key = run_path(run), load_or_make_key(belljar_home())
    with console.reading(path):
        chosen = redaction.choose(path, CLASSES if "all" in classes else classes)
        # Inside of the run it would become part of what is copied.
        if out.exists() or not out.parent.is_dir() or path.resolve() in out.resolve().parents:
            hint = "name a new directory in one that exists, outside of the run"
            raise console.MisuseError(f"{printable(str(out))} can't be made", hint=hint)
        with console.writing(out):
            redaction.share(path, out, chosen, key)
    if as_json:
        about = {"path": str(out), "classes": list(chosen.classes), "bodies": len(chosen.bodies)}
        console.print_json({**about, "files": sorted(chosen.files)})
        return
    what = f"{len(chosen.bodies)} bodies and {len(chosen.files)} files"
    click.echo(f"{printable(str(out))}: {what} left out")
    click.echo(f"  classes: {', '.join(chosen.classes)}; the events themselves stay")
