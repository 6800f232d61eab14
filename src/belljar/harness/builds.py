"""Builds the images that tasks bring as Dockerfiles, before any sample needs them."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Set
from pathlib import Path
from typing import Any

from belljar.errors import PolicyError
from belljar.harness.config import check_below
from belljar.image.buildah import BuildRequest, StepError, build_dockerfile, is_built
from belljar.image.store import Store
from belljar.units import printable


def build_missing(
    builds: Iterable[str],
    images: Set[str],
    home: Path,
    *,
    report: Callable[[str], None] = lambda _line: None,
) -> None:
    """Build what is among `images`; `builds` as `BelljarConfig.builds`.

    An image of that name that Belljar did not build is used as it is; so is one that was built of
    the same files, with or without network. Raises `PolicyError` for a build that fails and for
    different builds of one name, `HostError` without buildah or a base.
    """
    store = Store(home)
    for each in running_builds(builds, images):
        root = Path(each["root"])
        context, dockerfile = root / each["context"], root / each["dockerfile"]
        for path in (context / "in", dockerfile):
            check_below(path, root)
        request = BuildRequest(
            context=context,
            name=each["image"],
            dockerfile=dockerfile,
            args=each["args"],
            target=each["target"],
            keep_setuid=True,  # what of it works in a cell is its tier's to say
        )
        if store.missing(request.name) is None:
            found = store.find(request.name)
            if not found.built or is_built(store, found, request):
                continue
        report(f"building the image {printable(request.name)}")
        try:
            build_dockerfile(home, request, report=report)
        except StepError as error:
            hint = f"if its steps need the network: {command_of(each, network=True)}"
            raise PolicyError(error.what, where=error.where, hint=hint) from error


def running_builds(builds: Iterable[str], images: Set[str]) -> list[dict[str, Any]]:
    """Those that are among `images`, each once; `builds` as `BelljarConfig.builds`. Raises
    `PolicyError` for different ones of one name. Pure.
    """
    wanted = {
        json.dumps(each, sort_keys=True): each
        for text in builds
        if text
        for each in json.loads(text)
    }
    running = [each for each in wanted.values() if each["image"] in images]
    for name, count in Counter(each["image"] for each in running).items():
        if count > 1:
            what = (
                f"{count} different builds are called {printable(name)}: a sample would run in "
                f"another's image"
            )
            raise PolicyError(
                what, hint="give each of them an `image` of its own in its compose file"
            )
    return running


def command_of(build: Mapping[str, Any], *, network: bool = False) -> str:
    """The command line that builds one, as JSON of `ServiceBuild`."""
    root = Path(build["root"])
    command = ["belljar", "image", "build", *(["--network"] if network else []), "--keep-setuid"]
    command += ["-t", build["image"], "-f", str(root / build["dockerfile"])]
    for name, value in build["args"].items():
        command += ["--build-arg", f"{name}={value}"]
    command += ["--target", build["target"]] if build["target"] else []
    return shlex.join([*command, str(root / build["context"])])
