"""`belljar image`: build, import, name, list, inspect and remove images."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from belljar.cli.failures import Misuse
from belljar.errors import PolicyError
from belljar.units import format_size, parse_size, printable

if TYPE_CHECKING:
    from belljar.image import Image, Store

_DIGEST_CHARS = 12


def _size(ctx: click.Context, param: click.Parameter, value: str) -> int:
    """A size as people write it."""
    try:
        return parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx=ctx, param=param) from error


@click.group()
def image() -> None:
    """Build, import, name, list, inspect and remove images.

    An image is an immutable root file system. It is named by a reference, as Docker writes it
    (NAME, NAME:TAG, NAME@sha256:DIGEST), by its digest here, or by a unique beginning of that.
    """


@image.command(name="import")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True)
@click.option(
    "--from-compose",
    "is_compose",
    is_flag=True,
    help="Each SOURCE is a compose file: get all images it runs.",
)
@click.option(
    "--from-task",
    "is_task",
    is_flag=True,
    help="Each SOURCE is an Inspect task: get all images its samples run.",
)
@click.option(
    "-T", "task_args", multiple=True, metavar="KEY=VALUE", help="An argument of the tasks."
)
@click.option("--name", default="", help="The image's name [default: those its source has for it].")
@click.option(
    "--max-size",
    callback=_size,
    metavar="SIZE",
    default="8GiB",
    show_default=True,
    help="Most that an image may hold, uncompressed.",
)
@click.option(
    "--keep-setuid", is_flag=True, help="Keep setuid and setgid bits and file capabilities."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def import_(
    *,
    sources: tuple[str, ...],
    is_compose: bool,
    is_task: bool,
    task_args: tuple[str, ...],
    name: str,
    max_size: int,
    keep_setuid: bool,
    as_json: bool,
) -> None:
    """Import the container image SOURCE, or all images of compose files or tasks.

    \b
    docker://[REGISTRY/]NAME[:TAG][@sha256:DIGEST]   docker-daemon:NAME[:TAG]
    docker-archive:FILE[:NAME]   oci-archive:FILE   oci:DIRECTORY[:TAG]

    What an image holds is checked before anything of it is used; entrypoint, command, environment,
    user and working directory are kept. With --from-compose or --from-task, images in the store are
    skipped, and each other one is taken from a Docker daemon or Podman if one has it, else from its
    registry.
    """
    from belljar.image.oci import ImportLimits, import_image

    limits = ImportLimits(max_bytes=max_size)
    if is_compose or is_task:
        if name or keep_setuid or (is_compose and is_task):
            raise Misuse(
                "--from-compose, --from-task, --name and --keep-setuid don't go together",
                hint="give only one of --from-compose and --from-task, without the other two",
            )
        from belljar.cli.image_obtain import obtain_all, wanted_by_files, wanted_by_tasks

        words = [word for argument in task_args for word in ("-T", argument)]
        wanted = wanted_by_files(sources) if is_compose else wanted_by_tasks([*sources, *words])
        obtain_all(_store(), wanted, limits, as_json=as_json)
        return
    if len(sources) > 1:
        raise Misuse("one image is imported at a time", hint="run it once for each SOURCE")
    store = _store()
    with progress(f"Importing {sources[0]}", quiet=as_json) as report:
        made = import_image(
            store.home, sources[0], name=name, limits=limits, keep_setuid=keep_setuid, report=report
        )
    print_image(made, as_json=as_json)


@image.command()
@click.argument("ref")
@click.argument("name")
@click.option("--force", is_flag=True, help="Also take the name `default` from another image.")
@click.option("--json", "as_json", is_flag=True, help="Print the image as one JSON object.")
def tag(*, ref: str, name: str, force: bool, as_json: bool) -> None:
    """Give the image REF one more NAME, taken from whichever image had it.

    `default` is what policies and tasks run that name no image: it is taken from another image only
    with --force.
    """
    from belljar.image.store import check_name
    from belljar.policy.model import Policy

    store = _store()
    image = store.find(ref)
    default = Policy.model_fields["image"].default
    if check_name(name) == check_name(default) and not force and store.missing(default) is None:
        had = store.find(default)
        if had.digest != image.digest:
            raise PolicyError(
                f"`{default}` is another image, which runs where a policy names none",
                where=printable(name),
                hint="choose another name, or take this one with --force",
            )
    print_image(store.name(image, name), as_json=as_json)


@image.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def ls(as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """List the images."""
    images = _store().list()
    if as_json:
        click.echo(json.dumps([entry.to_json() for entry in images], indent=2))
    elif not images:
        click.echo("No images. `belljar setup` builds the default one.", err=True)
    else:
        _show_table(images)


@image.command()
@click.argument("ref")
@click.option("--verify", is_flag=True, help="Hash the image's bytes again.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(ref: str, verify: bool, as_json: bool) -> None:  # noqa: FBT001
    """Show the image REF."""
    from belljar.image import verify as verify_image

    found = _store().find(ref)
    if verify:
        verify_image(found)
    if as_json:
        print_image(found, as_json=True)
        return
    for name, value in found.to_json().items():
        click.echo(f"{name:11} {_shown(name, value)}")


@image.command()
@click.argument("ref")
@click.option("--json", "as_json", is_flag=True, help="Print what was removed as one JSON object.")
def rm(ref: str, as_json: bool) -> None:  # noqa: FBT001 - click passes options by name
    """Remove the name REF, and with its last name (or by digest) the image."""
    store = _store()
    removed = store.remove(ref)
    gone = all(entry.digest != removed.digest for entry in store.list())
    if as_json:
        click.echo(
            json.dumps({"digest": removed.digest, "ref": ref, "image_removed": gone}, indent=2)
        )
    else:
        what = f"image {removed.digest[:_DIGEST_CHARS]}" if gone else f"name {printable(ref)}"
        click.echo(f"removed the {what}")


def _store() -> Store:
    from belljar.image import Store
    from belljar.store.home import belljar_home

    return Store(belljar_home())


def print_image(made: Image, *, as_json: bool) -> None:
    """One image, for a person or a program."""
    if as_json:
        click.echo(json.dumps(made.to_json(), indent=2))
    else:
        names = printable(", ".join(made.names))
        click.echo(f"{names}  sha256:{made.digest[:_DIGEST_CHARS]}  {format_size(made.size_bytes)}")


def _shown(name: str, value: object) -> str:
    if name == "size_bytes" and isinstance(value, int):
        return f"{format_size(value)} ({value} bytes)"
    return printable(value if isinstance(value, str) else json.dumps(value))


_COLUMNS = ("NAME", "DIGEST", "SIZE", "CREATED", "SOURCE")


def _show_table(images: Sequence[Image]) -> None:
    """Nothing is cut, but a long source in a terminal; in a pipe each image is one line."""
    rows = [_row(entry) for entry in images]
    if not sys.stdout.isatty():
        widths = [max(map(len, column)) for column in zip(_COLUMNS, *rows, strict=True)]
        for row in (_COLUMNS, *rows):
            click.echo(
                "  ".join(
                    cell.ljust(width) for cell, width in zip(row, widths, strict=True)
                ).rstrip()
            )
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(
            column, overflow="ellipsis" if column == "SOURCE" else "fold", no_wrap=column != "NAME"
        )
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(highlight=False).print(table)


def _row(entry: Image) -> tuple[str, ...]:
    names, size = ", ".join(entry.names) or "-", format_size(entry.size_bytes)
    cells = (names, entry.digest[:_DIGEST_CHARS], size, entry.created, entry.source)
    return tuple(printable(cell, max_chars=100_000) for cell in cells)


@contextmanager
def progress(title: str, *, quiet: bool) -> Iterator[Callable[[str], None]]:
    """A line that says what is being done, and what its tool said last, while somebody watches."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, quiet=quiet, highlight=False)
    shown = escape(printable(title, max_chars=200))
    if not console.is_terminal:
        yield lambda _line: None
        return
    with console.status(shown) as status:
        yield lambda line: status.update(
            f"{shown}  [dim]{escape(printable(line, max_chars=70))}[/dim]"
        )


from belljar.cli.image_build import build  # noqa: E402 - it uses what stands above

image.add_command(build)
