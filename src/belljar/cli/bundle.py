"""`belljar bundle`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from belljar.bundle import Contents, create_bundle, install_bundle, installed, open_bundle
from belljar.cli.console import (
    MisuseError,
    json_option,
    parsed_by,
    print_json,
    progress,
    task_args_option,
)
from belljar.cli.setup import needs
from belljar.compose.data import ServiceBuild
from belljar.errors import PolicyError
from belljar.harness.evaluate import load_only
from belljar.harness.source import build_missing
from belljar.image.config import debian_arch
from belljar.image.dockerfile import MAX_BYTES, base_images
from belljar.ledger.keys import parse_fingerprint
from belljar.policy.files import read_regular
from belljar.policy.load import load_policy
from belljar.policy.reference import parse_reference
from belljar.store.home import belljar_home
from belljar.units import format_size, printable

# A bare Debian has neither Python nor `mount`.
_BASE = ("mount", "python3", "python3-venv")
_BUNDLE = click.argument("bundle", type=click.Path(path_type=Path))
_KEY = click.option(
    "--key",
    metavar="FINGERPRINT",
    callback=parsed_by(lambda text: text and parse_fingerprint(text)),
    help="The key that must have signed. Default: that of the bundle installed last.",
)


@click.group("bundle")
def bundle() -> None:
    """Carry an installation to a host without a network."""


@bundle.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--image", "images", multiple=True, metavar="REF", help="Also this image.")
@click.option("--task", metavar="TASK", help="Also the images of this task's samples.")
@task_args_option
@click.option("--model", "models", multiple=True, metavar="FILE", help="Also this model cell.")
@json_option("Print one JSON object: path, digest, key, size, items.")
def create(
    *,
    out: Path,
    images: tuple[str, ...],
    task: str | None,
    task_args: list[str],
    models: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a bundle, a directory, of everything that a host without a network needs.

    Run it from a checkout. It holds Belljar and its Python packages, Debian packages with their
    dependencies, guest kernel, images, weights, documentation and examples. Refused, with the
    names, if anything is missing. After an interruption, run it again.

    The digest that it prints must reach the other host by another way than the bundle.
    """
    root = Path(__file__).resolve().parents[3]
    cells = [load_policy(each).policy for each in models]
    if others := [path for path, cell in zip(models, cells, strict=True) if cell.model is None]:
        raise MisuseError(f"{others[0]} has no block `model`")
    of_task, builds = images_of_task([task, *task_args]) if task else ([], [])
    tools = [need for need in needs(debian_arch()) if need.command != "buildah"]
    contents = Contents(
        images=(
            *("default", *images, *(image for cell in cells for image in cell.images), *of_task),
            # A run looks at the bases of what was built to see that it is up to date
            *(base for each in builds for base in _bases(each)),
        ),
        packages=(*_BASE, *(need.package for need in tools if not need.backports)),
        newer=tuple(need.package for need in tools if need.backports),
        weights=tuple(cell.model.weights.sha256 for cell in cells if cell.model),
        lock=root / "requirements.lock",
        checkout=root,
    )

    def report(line: str) -> None:
        if not as_json:
            click.echo(f"  {printable(line)}", err=True)

    build_missing(builds, {*of_task}, belljar_home(), report=report)
    made = create_bundle(belljar_home(), out.absolute(), contents, report=report)
    about = {
        "path": str(out),
        "digest": made.digest,
        "key": made.signer,
        "size_bytes": made.about["size_bytes"],
        "items": len(made.digests),
    }
    if as_json:
        print_json(about)
        return
    click.echo(
        f"{out}: {len(made.digests)} items, {format_size(made.about['size_bytes'])}\n"
        f"digest  {made.digest}\nkey     {made.signer}\n"
        "On the other host, in the bundle's directory, with the digest from here:\n"
        f'  echo "{made.digest}  SHA256SUMS" | sha256sum -c && sha256sum -c --quiet SHA256SUMS\n'
        "  sh install.sh"
    )


def images_of_task(inspect_args: Sequence[str]) -> tuple[list[str], list[ServiceBuild]]:
    """The images and builds of all samples of a task, which is loaded but not run.

    Its changes to the environment (a `.env` file's, too) end here. Raises `PolicyError`;
    `ContainmentBreach` when another sandbox provider was about to be used.
    """
    before = dict(os.environ)
    try:
        previews = load_only(inspect_args, {})[-1]
    finally:
        os.environ.clear()
        os.environ.update(before)
    images, builds = list[str](), list[ServiceBuild]()
    for each in previews:
        if each.policy is not None:
            images += each.policy.policy.images
            builds += (one for one in each.builds if one.image in each.policy.policy.images)
        elif each.error is not None:
            where = f"task {each.task}, sample {each.sample}"
            raise PolicyError(each.error.what, where=where)
    return images, builds


def _bases(build: ServiceBuild) -> tuple[str, ...]:
    """The images that a Dockerfile starts from, if it can be read."""
    try:
        content = build.inline or read_regular(
            Path(build.root), build.dockerfile, MAX_BYTES
        ).decode("utf-8")
        found = base_images(content, build.args, target=build.target)
        return tuple(parse_reference(image).familiar for image in found.images)
    # A Dockerfile that can't be read is reported when it is built.
    except (OSError, ValueError):
        return ()


@bundle.command()
@_BUNDLE
@_KEY
def verify(*, bundle: Path, key: str | None) -> None:
    """Check a bundle's signature and every file; install nothing.

    \b
    Exit codes:
      0  it is whole, and signed by the key
      4  it is not
    """
    key = key or installed(belljar_home()).get("signer")
    report = progress("verifying", quiet=False)
    found = open_bundle(bundle, expected_key=key)
    found.verify(report)
    about = found.about
    known = "the key that was expected" if key else "compared with no known key: give --key"
    click.echo(
        f"{printable(str(bundle))}: verified, {len(found.digests)} items, "
        f"{format_size(about['size_bytes'])}\n"
        f"  created {about['created']} by Belljar {about['belljar']}, digest {found.digest}\n"
        f"  signed by {found.signer}\n  {known}"
    )


@bundle.command()
@_BUNDLE
@_KEY
@click.option("--no-packages", is_flag=True, help="Only the store: kernel, images, weights, docs.")
@click.option("--allow-older", is_flag=True, help="Also over a bundle that was made later.")
def install(*, bundle: Path, key: str | None, no_packages: bool, allow_older: bool) -> None:
    """Install a bundle, over an older one if there is one. Needs no network.

    Everything is verified before anything is written. On a host that has no Belljar yet, run the
    bundle's install.sh.
    """
    home = belljar_home()
    expected = key or installed(home).get("signer")
    if expected is None:
        hint = "give --key FINGERPRINT, as `belljar bundle create` printed it"
        raise MisuseError("no key is known that may sign a bundle", hint=hint)
    report = progress("installing the bundle", quiet=False, is_step=True)
    found = install_bundle(
        home,
        bundle,
        expected_key=expected,
        packages=not no_packages,
        allow_older=allow_older,
        report=report,
    )
    click.echo(f"installed {len(found.digests)} items, created {found.about['created']}")
    click.echo(f"documentation and examples: {printable(str(home / 'share'))}")
