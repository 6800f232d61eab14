"""`belljar share`: a copy of a run without its contents, which still verifies."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from belljar.cli.console import MisuseError, json_option, print_json, reading, run_argument, writing
from belljar.ledger import redaction
from belljar.ledger.keys import load_or_make_key
from belljar.ledger.redaction import CLASSES
from belljar.units import format_size, printable

_OFFERED: Final = (*CLASSES, "all")


@click.command()
@run_argument
@click.argument("out", type=click.Path(path_type=Path))
@click.option(
    "--redact",
    "classes",
    multiple=True,
    required=True,
    type=click.Choice(_OFFERED),
    help="Leave out this class of contents. Repeatable.",
)
@json_option()
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
    from belljar.cli.ledger import run_path
    from belljar.store.home import belljar_home

    path, key = run_path(run), load_or_make_key(belljar_home())
    with reading(path, "RUN"):
        chosen = redaction.choose(path, CLASSES if "all" in classes else classes)
        # Inside of the run it would become part of what is copied.
        if out.exists() or not out.parent.is_dir() or path.resolve() in out.resolve().parents:
            hint = "name a new directory in one that exists, outside of the run"
            raise MisuseError(f"{printable(str(out))} can't be made", param="OUT", hint=hint)
        with writing(out):
            redaction.share(path, out, chosen, key)
    if as_json:
        about = {"path": str(out), "classes": list(chosen.classes), "bodies": len(chosen.bodies)}
        print_json({**about, "files": sorted(chosen.files), "bytes": chosen.bytes})
        return
    what = f"{len(chosen.bodies)} bodies and {len(chosen.files)} files"
    click.echo(f"{printable(str(out))}: {what} ({format_size(chosen.bytes)}) left out")
    click.echo(f"  classes: {', '.join(chosen.classes)}; the events themselves stay")
