"""Builds images of compose files and Dockerfiles that a run needs and the store lacks."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Set
from pathlib import Path
from typing import TYPE_CHECKING

from belljar.errors import PolicyError
from belljar.image.buildah import BuildRequest, StepError, build_dockerfile, read_recipe
from belljar.image.store import MADE_HERE, Store
from belljar.policy.files import check_below
from belljar.store.locks import locked
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.compose.document import ServiceBuild


def build_missing(
    builds: Iterable[ServiceBuild], images: Set[str], home: Path, *, report: Callable[[str], None]
) -> None:
    """Build those of `builds` in `images` that are missing, or were built here and changed.

    Raises `PolicyError` for a failed build or two of one name, `HostError` without buildah.
    """
    store = Store(home)
    running = [each for each in dict.fromkeys(builds) if each.image in images]
    names = [each.image for each in running]
    for name in names:
        # Else a sample would run in another's image.
        if names.count(name) > 1 or name in MADE_HERE:
            what = f"several builds, or an image of Belljar's own, are called {printable(name)}"
            hint = "give each of them an `image` of its own in its compose file"
            raise PolicyError(what, hint=hint)
    for each in running:
        root = Path(each.root)
        context, dockerfile = root / each.context, root / each.dockerfile
        for path in (context / "in", dockerfile):
            check_below(path, root)
        request = BuildRequest(
            context=context,
            name=each.image,
            dockerfile=dockerfile,
            inline=each.inline,
            args=each.args,
            target=each.target,
            keep_setuid=True,  # what of it works in a cell is its tier's to say
        )
        if _is_current(store, request):
            continue
        with locked(home, "image-builds"):  # samples that begin together share one build
            if _is_current(store, request):
                continue
            report(f"building the image {printable(request.name)}")
            try:
                build_dockerfile(home, request, report=report)
            except StepError as error:
                network = f"if its steps need the network: {command_of(each, network=True)}"
                hint = network if error.wants_network else error.hint
                raise PolicyError(error.what, where=error.where, hint=hint) from error


def _is_current(store: Store, request: BuildRequest) -> bool:
    if store.missing(request.name) is not None:
        return False
    built = store.find(request.name).built  # with whatever options
    return not built or bool(built.get("recipe") == read_recipe(store, request).built["recipe"])


def command_of(build: ServiceBuild, *, network: bool = False) -> str:
    root = Path(build.root)
    command = ["belljar", "image", "build", *(["--network"] if network else []), "--keep-setuid"]
    command += ["-t", build.image, "-f"]
    # The text is in the compose file: the user has to write it into a file first.
    command += ["FILE" if build.inline else str(root / build.dockerfile)]
    for name, value in build.args.items():
        command += ["--build-arg", f"{name}={value}"]
    command += ["--target", build.target] if build.target else []
    return shlex.join([*command, str(root / build.context)])
