"""`belljar image build`: Belljar's own images, a Dockerfile, or packages on top of a base."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from belljar.cli.failures import Misuse
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.image import Image


def _pairs(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """`K=V`; `K` alone is taken from the environment, as Docker does."""
    import os

    pairs = {}
    for word in value:
        name, equals, text = word.partition("=")
        if not name or not (equals or name in os.environ):
            raise click.BadParameter(f"{printable(word)!r} is not NAME=VALUE", ctx=ctx, param=param)
        pairs[name] = text if equals else os.environ[name]
    return pairs


def _words(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word.strip() for part in value for word in part.split(",") if word.strip())


@click.command()
@click.argument("context", default="", metavar="[CONTEXT]")
@click.option(
    "-f", "--file", "dockerfile", default="", help="The Dockerfile [default: CONTEXT/Dockerfile]."
)
@click.option(
    "-t", "--tag", "name", default="", help="The image's name [default: the context's directory]."
)
@click.option("--network", is_flag=True, help="Let the build steps use this host's network.")
@click.option(
    "--build-arg", "args", multiple=True, callback=_pairs, metavar="NAME=VALUE", help="An argument."
)
@click.option("--target", default="", metavar="STAGE", help="Build up to this stage.")
@click.option(
    "--keep-setuid", is_flag=True, help="Keep setuid and setgid bits and file capabilities."
)
@click.option(
    "--base",
    default="default",
    show_default=True,
    help="With --apt or --pip: the image to start from.",
)
@click.option(
    "--apt",
    multiple=True,
    callback=_words,
    metavar="NAME,…",
    help="Debian packages to install; needs --network.",
)
@click.option(
    "--pip",
    multiple=True,
    callback=_words,
    metavar="NAME,…",
    help="Python packages to install; needs --network.",
)
@click.option(
    "--mirror",
    default="",
    metavar="URL",
    help="Debian mirror of Belljar's own images [default: this host's].",
)
@click.option("--json", "as_json", is_flag=True, help="Print the image as one JSON object.")
def build(
    context: str,
    dockerfile: str,
    name: str,
    network: bool,  # noqa: FBT001 - click passes options by name
    args: dict[str, str],
    target: str,
    keep_setuid: bool,  # noqa: FBT001
    base: str,
    apt: tuple[str, ...],
    pip: tuple[str, ...],
    mirror: str,
    as_json: bool,  # noqa: FBT001
) -> None:
    """Build an image from a Dockerfile in CONTEXT, without Docker.

    \b
    belljar image build -t tools:1 DIRECTORY           a Dockerfile; needs buildah
    belljar image build -t tools:1 --network --apt jq  packages on top of --base
    belljar image build default                        Belljar's own: default, debian-dev

    The bases must be in the store (`belljar image import`). Build steps have no network unless
    --network is given. A build with the same Dockerfile, context, arguments and bases is not made
    again. `belljar setup --with build` installs buildah.
    """
    from belljar.cli.image import print_image

    if (apt or pip) and (context or dockerfile or target):
        raise Misuse(
            "--apt and --pip take no CONTEXT, --file or --target",
            hint="add packages to an image with --base IMAGE, or put them into the Dockerfile",
        )
    if apt or pip:
        made = _packages(name, base, apt, pip, has_network=network, quiet=as_json)
    elif not (dockerfile or name or context) or context in {"default", "debian-dev"}:
        made = _own(context or "default", mirror, quiet=as_json)
    else:
        made = _dockerfile(
            context or ".", dockerfile, name, args, target, network, keep_setuid, quiet=as_json
        )
    print_image(made, as_json=as_json)


def _own(name: str, mirror: str, *, quiet: bool) -> Image:
    from belljar.cli.image import progress
    from belljar.image.build import build_image, recipe
    from belljar.store.home import belljar_home

    with progress(f"Building {name}", quiet=quiet) as report:
        return build_image(belljar_home(), recipe(name), mirror=mirror, report=report)


def _dockerfile(
    context: str,
    dockerfile: str,
    name: str,
    args: dict[str, str],
    target: str,
    has_network: bool,  # noqa: FBT001 - as typed
    keep_setuid: bool,  # noqa: FBT001
    *,
    quiet: bool,
) -> Image:
    from belljar.image.buildah import BuildRequest, build_dockerfile
    from belljar.interrupts import termination_as_interrupt
    from belljar.store.home import belljar_home

    directory = Path(context).absolute()
    request = BuildRequest(
        context=directory,
        dockerfile=Path(dockerfile).absolute() if dockerfile else None,
        name=name or directory.resolve().name.lower(),
        args=args,
        target=target,
        has_network=has_network,
        keep_setuid=keep_setuid,
    )
    with termination_as_interrupt():
        made, is_new = build_dockerfile(
            belljar_home(), request, report=lambda line: say(line, quiet=quiet)
        )
    if not is_new:
        say("unchanged: the store has this build", quiet=quiet)
    return made


def say(line: str, *, quiet: bool) -> None:
    """A line of the build on standard error."""
    if not quiet:
        print(printable(line, max_chars=400), file=sys.stderr, flush=True)


def _packages(
    name: str,
    base: str,
    apt: tuple[str, ...],
    pip: tuple[str, ...],
    *,
    has_network: bool,
    quiet: bool,
) -> Image:
    from belljar.image.packages import build_packages
    from belljar.interrupts import termination_as_interrupt
    from belljar.store.home import belljar_home

    if not name:
        raise Misuse("the image needs a name", hint="add -t NAME")
    if not has_network:
        raise Misuse("--apt and --pip fetch packages, which needs a network", hint="add --network")
    with termination_as_interrupt():
        return build_packages(
            belljar_home(),
            name,
            base=base,
            apt=apt,
            pip=pip,
            report=lambda line: say(line, quiet=quiet),
        )
