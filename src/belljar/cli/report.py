"""`belljar report`, and the page at the end of `belljar run`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import click

from belljar.cli.console import key_option, log_option, notice, reading
from belljar.cli.ledger import judged, run_path
from belljar.errors import BelljarError, HostError, LedgerError
from belljar.ledger.files import LEDGER, is_being_written, open_directory, read_beneath
from belljar.ledger.listing import read_body
from belljar.ledger.rundir import RUNS
from belljar.store.home import belljar_home
from belljar.units import printable
from belljar.waiting import reported_if_slow

REPORTS: Final = "reports"
# A run has one file for each policy; beyond the first they are named by digest.
_POLICY: Final = re.compile(r"policy(-[0-9a-f]{12})?\.yaml")
_MAX_FILES_BYTES: Final = 16 << 20  # of policies, plans and facts together
# A page shows layers of so many policies; more of them than that no reader compares.
MAX_PLANS: Final = 50


@click.command("report")
@click.argument("run", default="last")
@log_option
@key_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Where to write it. Default: RUN.html in `reports` of the store; beside a run directory "
    "that is named by its path.",
)
def report(run: str, logs: tuple[Path, ...], fingerprint: str | None, output: Path | None) -> int:
    """Write the report of RUN: one HTML file that loads nothing from anywhere.

    RUN is a run id, the beginning of one, `last` (the default), or the path of a run directory.
    `belljar run` writes the page when it ends. Making it again gives the same bytes.

    \b
    Exit codes:
      0  the page is written, whatever the verdict in it
      1  the page is written, and says that the record does not verify with a known key
      3  the page can't be written
    """
    path = run_path(run)
    page, is_good = make_page(path, run, logs, fingerprint)
    target = output or page_path(path)
    write_page(target, page)
    click.echo(printable(str(target)))
    return 0 if is_good else 1


def page_path(run_dir: Path) -> Path:
    here = run_dir.resolve()
    home = belljar_home()
    if here.parent == (home / RUNS).resolve():
        with suppress(OSError):  # writing there says why it can't be
            (home / REPORTS).mkdir(mode=0o700, exist_ok=True)
        return home / REPORTS / f"{here.name}.html"
    return here.with_name(f"{here.name}.html")


def make_page(
    path: Path, ref: str, logs: Sequence[Path] = (), fingerprint: str | None = None
) -> tuple[bytes, bool]:
    """Return the page, and whether its record is reliable. Raises `MisuseError`."""
    from belljar.fleet.record import Shown
    from belljar.ledger.verification import Status
    from belljar.report.page import RunSource, page_facts, render
    from belljar.report.timeline import Timelines

    def keep(unit: Path) -> None:
        if len(plans) < MAX_PLANS:
            plans.update(_read_facts(unit)[1])

    shown = Shown(Timelines(), keep)
    with reading(path), reported_if_slow("reading the whole record for the report"):
        # Asked before the record is read: a run that ends meanwhile may have lines that were not
        # read.
        is_running = is_being_written(path)
        (host, versions), plans = _read_facts(path)
        evidence, findings, _ = judged(path, ref, fingerprint, logs=logs, shown=shown)
    if evidence.verification is None:
        raise ValueError("stored evidence is always verified")
    source = RunSource(
        verification=evidence.verification,
        read=lambda body, size: read_body(path, body, max_bytes=size),
        timelines=shown.timelines,
        plans=plans,
        host=host,
        versions=versions,
        alarm=evidence.ledger_problem if evidence.ledger is Status.BAD else "",
        is_running=is_running,
    )
    return render(page_facts(findings, source)), not source.alarm


def write_page(target: Path, page: bytes) -> None:
    """Write it whole or not at all; a link is followed. Raises `HostError`."""
    import tempfile

    def refused(why: str) -> HostError:
        hint = "name a place with room that you may write: --output FILE"
        return HostError(f"the report can't be written: {why}", where=str(target), hint=hint)

    part = None
    try:
        if target.exists() and not target.is_file():
            raise refused("a device, pipe or directory is there")  # a rename would replace it
        place = target.resolve()
        if any((each / LEDGER).exists() for each in place.parents):
            raise refused("it is inside of a run directory, which would no longer verify")
        # 0600: it quotes what cells printed
        fd, name = tempfile.mkstemp(dir=place.parent, prefix=".report-")
        part = Path(name)
        with os.fdopen(fd, "wb") as file:
            file.write(page)
        part.replace(place)
    except (OSError, RuntimeError) as error:  # a loop of links is the latter
        raise refused(getattr(error, "strerror", "") or str(error)) from error
    finally:
        if part is not None:
            with suppress(OSError):
                part.unlink()


def report_of_run(path: Path) -> Path | None:
    """Write the page of an ended run. A failure is only reported."""
    try:
        target = page_path(path)
        write_page(target, make_page(path, path.name)[0])
    except BelljarError as error:
        why = error.what
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the verdict stands
        why = f"the report was not written: {type(error).__name__} {error}"
    else:
        return target
    notice(f"{why}; `belljar report {path.name}` makes it again")
    return None


def _read_facts(path: Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """Return host and versions, and the plans by the digests of their policies. Raises `OSError`.

    What can't be read is empty: the verification names it.
    """
    import hashlib
    import json

    room = _MAX_FILES_BYTES
    policies = (each.name for each in path.iterdir() if _POLICY.fullmatch(each.name))
    with open_directory(path) as root:

        def read(name: str) -> bytes:
            nonlocal room
            try:
                content = read_beneath(root, name, max_bytes=room)
            except (OSError, LedgerError, ValueError):
                return b""
            room -= len(content)
            return content

        def parsed(name: str) -> dict[str, Any]:
            try:
                value = json.loads(read(name))
            # Deeply nested JSON raises RecursionError, and a run directory may be anybody's.
            except (ValueError, RecursionError):
                return {}
            return value if isinstance(value, dict) else {}

        facts = [parsed("host.json"), parsed("versions.json")]
        plans = {
            hashlib.sha256(content).hexdigest(): parsed(
                f"plan{name.removeprefix('policy').removesuffix('.yaml')}.json"
            )
            for name in sorted(policies)[:MAX_PLANS]
            if (content := read(name))
        }
    return facts, plans
