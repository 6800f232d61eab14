"""`belljar image import --from-compose` and `--from-task`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from belljar.cli.console import Report, of_error, print_json, progress
from belljar.errors import BelljarError, HostError
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.compose.data import ServiceBuild
    from belljar.image import Store
    from belljar.image.oci import ImportLimits, Obtained, Wanted


def wanted_by_files(files: Sequence[str]) -> list[Wanted]:
    """Raises `PolicyError` for a file that can't be read."""
    from belljar.compose.data import service_images
    from belljar.compose.document import read_document
    from belljar.compose.values import CannotKeepError
    from belljar.errors import PolicyError
    from belljar.image.oci import Wanted

    wanted = []
    for file in files:
        try:
            found = service_images(read_document(Path(file)))
        except CannotKeepError as error:
            raise PolicyError(str(error), where=printable(file)) from error
        wanted += [
            Wanted(
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
    from belljar.image.dockerfile import MAX_BYTES, base_images
    from belljar.policy.files import read_regular
    from belljar.policy.reference import parse_reference

    try:
        content = build.inline or read_regular(
            Path(build.root), build.dockerfile, MAX_BYTES
        ).decode("utf-8")
        found = base_images(content, build.args, target=build.target)
        return tuple(parse_reference(image).familiar for image in found.images)
    except (OSError, ValueError):
        return ()


def wanted_by_tasks(inspect_args: Sequence[str]) -> list[Wanted]:
    """The images of all samples of tasks, loaded but not run.

    The tasks' changes to the environment (a `.env` file's, too) end here. Raises `PolicyError`;
    `ContainmentBreach` when another sandbox provider was about to be used.
    """
    from belljar.harness.evaluate import check_tasks

    before = dict(os.environ)
    try:
        previews = check_tasks(inspect_args, {})
    finally:
        os.environ.clear()
        os.environ.update(before)
    from belljar.image.oci import Wanted

    wanted: dict[Wanted, None] = {}
    refused: dict[str, str] = {}
    for each in previews:
        if each.policy is not None:
            builds = {build.image: build for build in each.builds}
            for image in each.policy.policy.images:
                build = builds.get(image)
                bases = _bases(build) if build else ()
                wanted[Wanted(image=image, build=build, bases=bases)] = None
        elif each.error is not None:
            refused.setdefault(each.error.what, f"task {each.task}, sample {each.sample}")
    return [*wanted, *(Wanted(image=where, why=what) for what, where in refused.items())]


def obtain_all(
    store: Store, wanted: Iterable[Wanted], limits: ImportLimits, *, as_json: bool
) -> None:
    """Get them, a line for each. Raises one `HostError` for all that failed.

    Before anything is got: `PolicyError` for different builds of one name.
    """
    from belljar.harness.source import build_missing, running_builds
    from belljar.image.build import build_image, recipe
    from belljar.image.oci import obtain
    from belljar.image.store import MADE_HERE

    def build(missing: Wanted, report: Report) -> None:
        if missing.image in MADE_HERE:
            build_image(store.home, recipe(missing.image), report=report)
            return
        build_missing(
            [missing.build] if missing.build else [], {missing.image}, store.home, report=report
        )

    results: list[Obtained] = []
    todo = list(dict.fromkeys(wanted))
    running_builds((each.build for each in todo if each.build), {each.image for each in todo})
    with progress(f"Importing {len(todo)} images", quiet=as_json) as report:
        for result in obtain(store.home, todo, limits=limits, build=build, report=report):
            results.append(result)
            if not as_json:
                how = "  missing"
                if result.image is not None:
                    digest = f"sha256:{result.image.digest[:12]}"
                    how = f"  {'in the store' if result.was_there else 'imported'}  {digest}"
                click.echo(printable(result.wanted.image + how, max_chars=1000))
    failed = [(each.wanted.image, each.error) for each in results if each.error is not None]
    error = None
    if failed:
        listed = "".join(f"\n  {printable(image)}: {_why(each)}" for image, each in failed)
        what = f"{len(failed)} of {len(results)} images could not be imported{listed}"
        error = HostError(what)
    if as_json:
        images = [
            {
                "image": result.wanted.image,
                "digest": result.image.digest if result.image else None,
                "was_there": result.was_there,
                "error": result.error.what if result.error else None,
                "hint": result.error.hint if result.error else None,
            }
            for result in results
        ]
        print_json(images if error is None else {**of_error(error).as_object(), "images": images})
        click.get_current_context().exit(0 if error is None else error.exit_code)
    if error is not None:
        raise error


def _why(error: BelljarError) -> str:
    hint = f" ({printable(error.hint, max_chars=300)})" if error.hint else ""
    return printable(error.what, max_chars=600) + hint
