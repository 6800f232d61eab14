"""Gives services their parts of a task's files: volumes, variables, builds.

Cells share nothing that one can write. A service's volume is a directory of its cell, a task's file
is copied, and a volume of several services is refused. Pure but for the files it reads.

Source: compose-spec 05-services.md and build.md.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Final

from belljar.compose.document import HOME_KEY, files_named_by, services_of
from belljar.compose.interpolate import MAX_VARIABLES, interpolate, read_dotenv
from belljar.compose.keys import INSPECTS_IMAGE, Converted, image_of
from belljar.compose.model import Build, Mount, Volume, parse, read_part
from belljar.compose.values import (
    TMPFS,
    CannotKeepError,
    Refusals,
    mapping,
    refusal,
    text,
    tmpfs_of,
)
from belljar.dataclass import dataclass, field
from belljar.policy.files import reason
from belljar.policy.reference import parse_reference
from belljar.policy.sections import TaskFile
from belljar.units import format_size, printable

_NO_DIRECTORY: Final = (
    "the compose configuration is not a file, so the task's directory is not known"
)
_SHARED: Final = "cells share no directory, so one service would not see what another writes"


# ---- volumes


def add_volumes(converted: Mapping[str, Converted], volumes: object, refused: Refusals) -> None:
    """Add each service's volumes; what cells can't keep goes to `refused`."""
    declared = mapping(volumes, "volumes")
    for name, settings in declared.items():
        where = f"volume {name}"
        with refused.collected():
            parse(Volume, mapping(settings, where), where, refused)
    used: dict[str, list[Converted]] = {}
    for cell in converted.values():
        for mount in cell.model.volumes:
            try:
                if mount.type == "bind":
                    _copy(cell, mount)
                else:
                    _make(cell, mount, declared)
            except (OSError, ValueError) as error:
                shown = printable(mount.source or mount.target, max_chars=100)
                why = f"{shown}: {printable(reason(error))}"
                refused.add(cell.where, "volumes", why)
            else:
                if mount.type == "volume" and mount.source:
                    used.setdefault(mount.source, []).append(cell)
    for name, cells in used.items():
        if len(cells) > 1:
            both = ", ".join(dict.fromkeys(cell.service for cell in cells))
            why = f"{printable(name)}: {printable(both)} have it: {_SHARED}"
            refused.add(cells[-1].where, "volumes", why)


def _make(cell: Converted, mount: Mount, declared: Mapping[str, Any]) -> None:
    """A directory of the cell."""
    if mount.read_only:
        raise ValueError("its service can't write to it, so it stays empty")
    if mount.source and mount.source not in declared:
        raise ValueError(f"there is no volume {mount.source} in the file")
    if mount.type == "tmpfs":
        cell.directories.append(tmpfs_of(mount.target))
        cell.changed("volumes", f"{mount.target} {TMPFS}")
    else:
        cell.directories.append(mount.target)


def _copy(cell: Converted, mount: Mount) -> None:
    if cell.home is None:
        raise ValueError(_NO_DIRECTORY)
    target, path = mount.target, cell.home.path(mount.source)
    try:
        tree = cell.home.tree(path)
    except FileNotFoundError:
        if mount.read_only:  # Compose makes any other missing source
            raise
        cell.directories.append(target)
        cell.changed("volumes", f"{mount.source} does not exist: {target} is an empty directory")
        return
    cell.add_file(TaskFile(target=target, source=path), tree)
    later = (
        "root of the cell could change the copy"
        if mount.read_only
        else "what is written there ends with the cell and does not reach this host"
    )
    size = format_size(tree.total_bytes)
    cell.changed("volumes", f"{mount.source} is copied to {target} ({size}): {later}")


# ---- variables


def add_env_files(cell: Converted) -> None:
    """Add a service's `env_file` below its `environment`. Raises `CannotKeepError`."""
    found = dict[str, str]()
    for file in cell.model.env_file:
        path = printable(file.path)
        try:
            if cell.home is None:
                raise ValueError(_NO_DIRECTORY)
            read = read_dotenv(cell.home.read_text(cell.home.path(file.path)))
        except (OSError, ValueError) as error:
            why = f"{path}: {printable(reason(error))}"
            is_missing = isinstance(error, FileNotFoundError)
            if is_missing and not file.required:
                cell.changed("env_file", f"{path} does not exist, and is not required")
                continue
            hint = "make it; an example is often beside it" if is_missing else ""
            raise refusal(cell.where, "env_file", why, hint=hint) from error
        found |= {name: value for name, value in read.items() if value is not None}
        if unset := ", ".join(sorted(name for name, value in read.items() if value is None)):
            cell.changed("env_file", f"{path}: variables without a value are not set ({unset})")
    if len(found) > MAX_VARIABLES:
        raise refusal(cell.where, "env_file", f"more than {MAX_VARIABLES:,} variables")
    if cell.model.env_file:
        # As in Compose, `environment` wins over `env_file`.
        cell.words["env"] = {**found, **cell.words.get("env", {})}


# ---- images and builds


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBuild:
    """An image to build; paths are below `root`. `inline`: the Dockerfile's text, if it is one."""

    image: str
    root: str
    context: str
    dockerfile: str
    args: Mapping[str, str] = field(hash=False)
    target: str = ""
    inline: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceImage:
    """A service's image, by its normalised name; or the reason why it is not known."""

    service: str
    image: str = ""
    build: ServiceBuild | None = None
    why: str = ""


def read_build(
    name: str, service: Mapping[str, Any], document: Mapping[str, Any], image: str
) -> ServiceBuild | None:
    """A service's build, if any. Raises `CannotKeepError`."""
    files, written = files_named_by(document), service.get("build")
    if written is None or files is None:
        return None
    files, context = files.of(service), ""
    try:
        build = read_part(Build, {"context": written} if isinstance(written, str) else written)
        context = build.context or "."
        # Compose also takes a repository's address, which would need a network.
        if "://" in context or context.startswith(("git@", "github.com/")):
            raise ValueError("a build's context is a directory of the task")
        return ServiceBuild(
            image=image,
            root=str(files.root),
            context=files.path(context),
            dockerfile=files.path(posixpath.join(context, build.dockerfile or "Dockerfile")),
            args=build.args,
            target=build.target,
            inline=build.dockerfile_inline,
        )
    except ValueError as error:
        why = f"{context}: {error}" if context else str(error)
        raise refusal(f"service {name}", "build", why) from None


def builds_of(document: Mapping[str, Any]) -> tuple[ServiceBuild, ...]:
    """The builds of the services. Raises `CannotKeepError`."""
    found = []
    for name, service in services_of(document).items():
        if image := text(service.get("image") or ""):
            found.append(read_build(name, service, document, parse_reference(image).familiar))
    return tuple(build for build in found if build is not None)


def service_images(document: Mapping[str, Any]) -> tuple[ServiceImage, ...]:
    """Each service's image. Raises `CannotKeepError`."""
    return tuple(_image(name, of, document) for name, of in services_of(document).items())


def _image(name: str, service: Mapping[str, Any], document: Mapping[str, Any]) -> ServiceImage:
    keys = ("image", "build", HOME_KEY)
    only = {key: service[key] for key in keys if service.get(key) is not None}
    try:
        # Only what decides the image: other keys may need metadata that only a sample has.
        made = interpolate({"services": {name: only}}, {}, blanks=True).document
        settled = made["services"][name]
        written = text(settled.get("image") or "")
        image = image_of(written) or "default"
        if "build" in settled and written.removesuffix(":latest") in ("", INSPECTS_IMAGE):
            raise CannotKeepError("it is built, and nothing names what is built")
        build = read_build(name, settled, document, image)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        return ServiceImage(service=name, why=printable(str(error), max_chars=300))
    return ServiceImage(service=name, image=image, build=build)
