"""`belljar image`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from belljar.cli import console
from belljar.dataclass import json_of
from belljar.image.oci import ImportLimits, import_image
from belljar.image.store import MADE_HERE, Store
from belljar.store.home import belljar_home
from belljar.units import format_size, parse_size, printable

if TYPE_CHECKING:
    from belljar.image.store import Image

# As Docker shows digests: enough to tell the images of a store apart.
_DIGEST_CHARS = 12
_COLUMNS = ("NAME", "DIGEST", "SIZE", "CREATED", "SOURCE")
_KEEP_SETUID = click.option(
    "--keep-setuid", is_flag=True, help="Keep setuid and setgid bits and file capabilities."
)


@click.group()
def image() -> None:
    """Build, import, name, list, inspect and remove images.

    An image is the read-only root file system of cells. REF is a name as in Docker (NAME,
    NAME:TAG, NAME@sha256:DIGEST), or a digest of `belljar image ls --json`.
    """


@image.command(name="import")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--name", default="", help="Name of the image [default: its names in SOURCE].")
@click.option(
    "--max-size",
    callback=console.parsed_by(parse_size),
    metavar="SIZE",
    default="8GiB",
    show_default=True,
    help="Refuse images that are larger, uncompressed.",
)
@_KEEP_SETUID
@console.json_option("Print a JSON object for each image.")
def import_(
    *, sources: tuple[str, ...], name: str, max_size: int, keep_setuid: bool, as_json: bool
) -> None:
    """Import container images from a registry, a file, Docker or Podman.

    \b
    SOURCE is one of:
      docker://[REGISTRY/]NAME[:TAG][@sha256:DIGEST]   in a registry
      docker-daemon:NAME[:TAG]                         in Docker
      docker-archive:FILE, oci-archive:FILE            in a file

    The image is checked before it is stored. Its entrypoint, command, environment, user and working
    directory are kept.
    """
    if name and len(sources) > 1:
        raise console.MisuseError(
            "several images can't have one name", hint="give --name with one SOURCE"
        )
    home, limits = belljar_home(), ImportLimits(max_bytes=max_size)
    for source in sources:
        report = console.progress(f"Importing {source}", quiet=as_json)
        made = import_image(
            home, source, name=name, limits=limits, keep_setuid=keep_setuid, report=report
        )
        print_image(made, as_json=as_json)


@image.command()
@click.argument("ref")
@click.argument("name")
def tag(ref: str, name: str) -> None:
    """Give the image REF an additional NAME; another image that has the name loses it.

    Policies and tasks that name no image use the name `default`.
    """
    store = Store(belljar_home())
    print_image(store.name(store.find(ref), name), as_json=False)


@image.command()
@console.json_option("Print a JSON list.")
def ls(*, as_json: bool) -> None:
    """List the images in the store."""
    images = Store(belljar_home()).list()
    if as_json:
        console.print_json([json_of(entry) for entry in images])
        return
    rows = [_COLUMNS]
    for entry in images:
        names, size = ", ".join(entry.names) or "-", format_size(entry.size_bytes)
        digest = entry.digest[:_DIGEST_CHARS] if entry.names else entry.digest
        rows.append((names, digest, size, entry.created, entry.source))
    click.echo("\n".join(console.table_lines(rows)))


@image.command()
@click.argument("ref")
def inspect(ref: str) -> None:
    """Print the image REF as one JSON object."""
    print_image(Store(belljar_home()).find(ref), as_json=True)


@image.command()
@click.argument("ref")
def rm(ref: str) -> None:
    """Remove an image, or one of its names.

    Removing its last name, or its digest, removes the image.
    """
    store = Store(belljar_home())
    removed = store.remove(ref)
    gone = all(entry.digest != removed.digest for entry in store.list())
    what = f"image {removed.digest[:_DIGEST_CHARS]}" if gone else f"name {printable(ref)}"
    click.echo(f"removed the {what}")


def print_image(made: Image, *, as_json: bool) -> None:
    if as_json:
        console.print_json(json_of(made))
        return
    names = printable(", ".join(made.names))
    click.echo(f"{names}  sha256:{made.digest[:_DIGEST_CHARS]}  {format_size(made.size_bytes)}")


# --- build


def _words(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.strip() for part in value for word in part.split(",") if word.strip())


@image.command()
@click.argument("context", default="", metavar="[CONTEXT]")
@click.option("-f", "--file", "dockerfile", default="", help="Default: CONTEXT/Dockerfile.")
@click.option("-t", "--tag", "name", default="", help="Default: CONTEXT's own name.")
@click.option("--network", is_flag=True, help="Let the build steps use this host's network.")
@console.variables_option("--build-arg", "args", "Set an ARG of the Dockerfile.")
@click.option("--target", default="", metavar="STAGE", help="Build only up to this stage.")
@_KEEP_SETUID
@click.option("--base", default="default", help="What --apt and --pip add their packages to.")
@click.option("--apt", multiple=True, callback=_words, metavar="NAME,…", help="Of Debian.")
@click.option("--pip", multiple=True, callback=_words, metavar="NAME,…", help="Of Python.")
@console.json_option("Print the image as one JSON object.")
def build(
    context: str,
    *,
    dockerfile: str,
    name: str,
    network: bool,
    args: dict[str, str],
    target: str,
    keep_setuid: bool,
    base: str,
    apt: tuple[str, ...],
    pip: tuple[str, ...],
    as_json: bool,
) -> None:
    """Build an image from the Dockerfile in CONTEXT, without Docker.

    Needs buildah: see `belljar setup`. Base images must be in the store: see `belljar
    image import`. Build steps have no network unless --network is given. If Dockerfile, context,
    arguments and base images are unchanged, nothing is built.

    \b
    Examples:
      belljar image build -t tools:1 DIRECTORY           from a Dockerfile
      belljar image build -t tools:1 --network --apt jq  packages added to --base
      belljar image build default                        Belljar's own: default, debian-dev, inspect
    """
    from belljar.interrupts import termination_as_interrupt

    def report(line: str) -> None:
        if not as_json:
            print(printable(line, max_chars=400), file=sys.stderr, flush=True)

    home = belljar_home()
    if apt or pip:
        if context or dockerfile or target or not (name and network):
            hint = "add packages to an image with -t NAME --network [--base IMAGE] --apt PACKAGE"
            raise console.MisuseError(
                "--apt and --pip need --tag and --network, and no CONTEXT", hint=hint
            )
        from belljar.image.build import build_packages

        with termination_as_interrupt():
            made = build_packages(home, name, base=base, apt=apt, pip=pip, report=report)
    elif not (dockerfile or name or context) or context in MADE_HERE:
        from belljar.image.build import RECIPES, build_image

        own = context or "default"
        report_line = console.progress(f"Building {own}", quiet=as_json)
        made = build_image(home, RECIPES[own], report_line)
    else:
        from belljar.image.buildah import BuildRequest, build_dockerfile

        directory = Path(context or ".").absolute()
        request = BuildRequest(
            context=directory,
            dockerfile=Path(dockerfile).absolute() if dockerfile else None,
            name=name or directory.resolve().name.lower(),
            args=args,
            target=target,
            has_network=network,
            keep_setuid=keep_setuid,
        )
        with termination_as_interrupt():
            made, is_new = build_dockerfile(home, request, report=report)
        if not is_new:
            report("unchanged: this image is in the store already")
    print_image(made, as_json=as_json)
