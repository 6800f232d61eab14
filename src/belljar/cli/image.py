"""`belljar image`: build, import, name, list, inspect and remove images."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from belljar.cli import console
from belljar.errors import HostError, PolicyError
from belljar.image.build import build_image, recipe
from belljar.image.dockerfile import MAX_BYTES, base_images
from belljar.image.oci import ImportLimits, WantedImage, import_image, obtain
from belljar.image.store import MADE_HERE, Store
from belljar.store.home import belljar_home
from belljar.units import format_size, parse_size, printable

if TYPE_CHECKING:
    from belljar.compose.data import ServiceBuild
    from belljar.image.oci import ImportLimits, Obtained, WantedImage
    from belljar.image.store import Image, Store

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
    NAME:TAG, NAME@sha256:DIGEST), or a digest of `belljar image ls`; its first characters do if
    they are unique.
    """


@image.command(name="import")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option("--from-compose", "is_compose", is_flag=True, help="All images of compose files.")
@click.option("--from-task", "is_task", is_flag=True, help="All images of an Inspect task.")
@console.task_args_option
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
@console.json_option()
def import_(
    *,
    sources: tuple[str, ...],
    is_compose: bool,
    is_task: bool,
    task_args: list[str],
    name: str,
    max_size: int,
    keep_setuid: bool,
    as_json: bool,
) -> None:
    """Import container images from a registry, a file, Docker or Podman.

    \b
    SOURCE is one of:
      docker://[REGISTRY/]NAME[:TAG][@sha256:DIGEST]   in a registry
      docker-daemon:NAME[:TAG]                         in Docker
      docker-archive:FILE, oci-archive:FILE            in a file
      oci:DIRECTORY                                    in a directory

    The image is checked before it is stored. Its entrypoint, command, environment, user and working
    directory are kept.

    With --from-compose or --from-task, images that are in the store are skipped. The others come
    from Docker or Podman if one has them, otherwise from their registries.
    """
    limits = ImportLimits(max_bytes=max_size)
    if is_compose or is_task:
        if name or keep_setuid or (is_compose and is_task):
            what = "--from-compose, --from-task, --name and --keep-setuid exclude each other"
            raise console.MisuseError(what)
        wanted = wanted_by_files(sources) if is_compose else wanted_by_tasks([*sources, *task_args])
        obtain_all(_store(), wanted, limits, as_json=as_json)
        return
    if len(sources) > 1:
        raise console.MisuseError(
            "only one SOURCE can be imported at a time", hint="run it once for each"
        )
    store = _store()
    report = console.progress(f"Importing {sources[0]}", quiet=as_json)
    made = import_image(
        store.home, sources[0], name=name, limits=limits, keep_setuid=keep_setuid, report=report
    )
    print_image(made, as_json=as_json)


@image.command()
@click.argument("ref")
@click.argument("name")
@console.json_option("Print the image as one JSON object.")
def tag(*, ref: str, name: str, as_json: bool) -> None:
    """Give the image REF an additional NAME; another image that has the name loses it.

    Policies and tasks that name no image use the name `default`.
    """
    store = _store()
    print_image(store.name(store.find(ref), name), as_json=as_json)


@image.command()
@console.json_option("Print a JSON list.")
def ls(*, as_json: bool) -> None:
    """List the images in the store."""
    images = _store().list()
    if as_json:
        console.print_json([entry.to_json() for entry in images])
        return
    rows = [_COLUMNS]
    for entry in images:
        names, size = ", ".join(entry.names) or "-", format_size(entry.size_bytes)
        rows.append((names, entry.digest[:_DIGEST_CHARS], size, entry.created, entry.source))
    click.echo("\n".join(console.table_lines(rows)))


@image.command()
@click.argument("ref")
@console.json_option()
def inspect(ref: str, *, as_json: bool) -> None:
    """Show the image REF."""
    found = _store().find(ref)
    if as_json:
        print_image(found, as_json=True)
        return
    for name, value in found.to_json().items():
        text = value if isinstance(value, str) else json.dumps(value)
        click.echo(f"{name:11} {printable(text)}")


@image.command()
@click.argument("ref")
@console.json_option("Print what was removed as one JSON object.")
def rm(ref: str, *, as_json: bool) -> None:
    """Remove an image, or one of its names.

    Removing its last name, or its digest, removes the image.
    """
    store = _store()
    removed = store.remove(ref)
    gone = all(entry.digest != removed.digest for entry in store.list())
    if as_json:
        console.print_json({"digest": removed.digest, "ref": ref, "image_removed": gone})
    else:
        what = f"image {removed.digest[:_DIGEST_CHARS]}" if gone else f"name {printable(ref)}"
        click.echo(f"removed the {what}")


def _store() -> Store:
    return Store(belljar_home())


def print_image(made: Image, *, as_json: bool) -> None:
    """Its names, digest and size, or all of it."""
    if as_json:
        console.print_json(made.to_json())
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
@click.option("--mirror", default="", metavar="URL", help="Debian's, for Belljar's own images.")
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
    mirror: str,
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

    home = _store().home
    if apt or pip:
        if context or dockerfile or target or not (name and network):
            hint = "add packages to an image with -t NAME --network [--base IMAGE] --apt PACKAGE"
            raise console.MisuseError(
                "--apt and --pip need --tag and --network, and no CONTEXT", hint=hint
            )
        from belljar.image.packages import build_packages

        with termination_as_interrupt():
            made = build_packages(home, name, base=base, apt=apt, pip=pip, report=report)
    elif not (dockerfile or name or context) or context in MADE_HERE:
        from belljar.image.build import build_image, recipe

        own = context or "default"
        report_line = console.progress(f"Building {own}", quiet=as_json)
        made = build_image(home, recipe(own), mirror=mirror, report=report_line)
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


# --- import of all images of compose files or tasks


def wanted_by_files(files: Sequence[str]) -> list[WantedImage]:
    """Raises `PolicyError` for a file that can't be read."""
    from belljar.compose.data import service_images
    from belljar.compose.document import read_document
    from belljar.compose.values import CannotKeepError

    wanted = []
    for file in files:
        try:
            found = service_images(read_document(Path(file)))
        except CannotKeepError as error:
            raise PolicyError(str(error), where=printable(file)) from error
        wanted += [
            WantedImage(
                image=each.image or f"{file}, service {each.service}",
                build=each.build,
                bases=_bases(each.build) if each.build else (),
                why=each.why,
            )
            for each in found
        ]
    return wanted


def _bases(build: ServiceBuild) -> tuple[str, ...]:
    """The images that a Dockerfile starts from, if it can be read."""
    from belljar.policy.files import read_regular
    from belljar.policy.reference import parse_reference

    try:
        content = build.inline or read_regular(
            Path(build.root), build.dockerfile, MAX_BYTES
        ).decode("utf-8")
        found = base_images(content, build.args, target=build.target)
        return tuple(parse_reference(image).familiar for image in found.images)
    # A Dockerfile that can't be read is reported when it is built.
    except (OSError, ValueError):
        return ()


def wanted_by_tasks(inspect_args: Sequence[str]) -> list[WantedImage]:
    """The images of all samples of tasks, loaded but not run.

    The tasks' changes to the environment (a `.env` file's, too) end here. Raises `PolicyError`;
    `ContainmentBreach` when another sandbox provider was about to be used.
    """
    from belljar.harness.evaluate import load_only

    before = dict(os.environ)
    try:
        previews = load_only(inspect_args, {})[-1]
    finally:
        os.environ.clear()
        os.environ.update(before)

    wanted: dict[WantedImage, None] = {}
    refused: dict[str, str] = {}
    for each in previews:
        if each.policy is not None:
            builds = {build.image: build for build in each.builds}
            for image in each.policy.policy.images:
                build = builds.get(image)
                bases = _bases(build) if build else ()
                wanted[WantedImage(image=image, build=build, bases=bases)] = None
        elif each.error is not None:
            refused.setdefault(each.error.what, f"task {each.task}, sample {each.sample}")
    return [*wanted, *(WantedImage(image=where, why=what) for what, where in refused.items())]


def obtain_all(
    store: Store, wanted: Iterable[WantedImage], limits: ImportLimits, *, as_json: bool
) -> None:
    """Get them, a line for each. Raises one `HostError` for all that failed.

    Before anything is got: `PolicyError` for different builds of one name.
    """
    from belljar.harness.source import build_missing, running_builds

    def build(missing: WantedImage, report: console.Report) -> None:
        if missing.image in MADE_HERE:
            build_image(store.home, recipe(missing.image), report=report)
            return
        build_missing(
            [missing.build] if missing.build else [], {missing.image}, store.home, report=report
        )

    results: list[Obtained] = []
    todo = list(dict.fromkeys(wanted))
    running_builds((each.build for each in todo if each.build), {each.image for each in todo})
    report = console.progress(f"Importing {len(todo)} images", quiet=as_json)
    for result in obtain(store.home, todo, limits=limits, build=build, report=report):
        results.append(result)
        if not as_json:
            how = "  missing"
            if result.image is not None:
                digest = f"sha256:{result.image.digest[:12]}"
                how = f"  {'in the store' if result.was_there else 'imported'}  {digest}"
            click.echo(printable(result.wanted.image + how, max_chars=1000))
    failed = [
        f"  {each.wanted.image}: {each.error.what}"
        + f" ({each.error.hint})" * bool(each.error.hint)
        for each in results
        if each.error
    ]
    if failed:
        lines = [f"{len(failed)} of {len(results)} images could not be imported", *failed]
        raise HostError("\n".join(printable(line, max_chars=1000) for line in lines))
    if as_json:
        console.print_json(
            [
                {
                    "image": each.wanted.image,
                    "digest": each.image.digest if each.image else None,
                    "was_there": each.was_there,
                }
                for each in results
            ]
        )
