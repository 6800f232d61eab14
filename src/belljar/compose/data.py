"""What services take from a task's files: volumes, variables, builds.

Cells share nothing that one can write. A service's volume is a directory of its cell, a task's file
is copied. A volume of several services is refused, unless one fills it and ends before the others
start: these get copies. Pure but for the files it reads.

Source: compose-spec 05-services.md and build.md.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from belljar.compose.document import HOME_KEY, files_named_by, services_of
from belljar.compose.interpolate import MAX_VARIABLES, interpolate, read_dotenv
from belljar.compose.keys import STAND_INS, Converted
from belljar.compose.model import Build, Condition, Mount, Volume, parse, read_part, reasons_of
from belljar.compose.values import (
    CannotKeepError,
    OutsideTaskError,
    Refusals,
    mapping,
    refusal,
    text,
)
from belljar.policy.files import reason
from belljar.policy.reference import IMAGE_ID, parse_reference
from belljar.policy.task_data import TakenVolume, TaskFile
from belljar.units import format_size, printable

_NO_DIRECTORY: Final = (
    "the compose configuration is not a file, so the task's directory is not known"
)
_SHARED: Final = "cells share no directory, so one service would not see what another writes"
_NOT_WRITTEN: Final = "its service can't write to it, so it stays empty"


@dataclass(frozen=True, slots=True)
class Wait:
    """`service` starts when `needed` has reached `condition`."""

    service: str
    needed: str
    condition: Condition


# ---- volumes


def add_volumes(
    converted: Mapping[str, Converted],
    volumes: object,
    refused: Refusals,
    *,
    waits: Sequence[Wait] = (),
    default: str = "",
) -> None:
    """Add each service's volumes; what cells can't keep goes to `refused`.

    `default`: the service that starts last.
    """
    declared = mapping(volumes, "volumes")
    for name, settings in declared.items():
        where = f"volume {name}"
        with refused.collected():
            parse(Volume, mapping(settings, where), where, refused, reasons_of(Volume))
    used: dict[str, list[tuple[Converted, Mount]]] = {}
    for cell in converted.values():
        for mount in cell.model.volumes:
            place = mount.target
            with _refused_item(refused, cell, "volumes", mount.source or place):
                if mount.type == "bind":
                    _copy(cell, mount)
                    continue
                # A directory of the cell
                if not mount.source and mount.read_only:
                    raise ValueError(_NOT_WRITTEN)
                if mount.source and mount.source not in declared:
                    raise ValueError(f"there is no volume {mount.source} in the file")
                cell.directories.append(place)
                if mount.type == "tmpfs":
                    why = "is a directory of the cell; the options of a tmpfs are not kept"
                    cell.changed("volumes", f"{place} {why}")
                if mount.source:
                    used.setdefault(mount.source, []).append((cell, mount))
    for name, uses in used.items():
        with refused.collected():
            _share(name, uses, waits, default)


@contextmanager
def _refused_item(refused: Refusals, cell: Converted, key: str, shown: str) -> Iterator[None]:
    """A fault in the block refuses this item of the service's key."""
    try:
        yield
    except (OSError, TypeError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        hint = error.hint if isinstance(error, OutsideTaskError) else ""
        detail = f"{printable(shown, max_chars=100)}: {printable(why)}"
        refused.add(cell.where, key, detail, hint=hint)


def _copy(cell: Converted, mount: Mount) -> None:
    if cell.home is None:
        raise ValueError(_NO_DIRECTORY)
    target, path = mount.target, cell.home.path(mount.source)
    try:
        tree = cell.home.tree(path)
    except FileNotFoundError:
        if mount.read_only or (mount.bind is not None and not mount.bind.create_host_path):
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


def _share(
    name: str, used: Sequence[tuple[Converted, Mount]], waits: Sequence[Wait], default: str
) -> None:
    """Copy a volume that one service fills before the others start."""
    if len(used) == 1 and not used[0][1].read_only:
        return
    ends = [wait for wait in waits if wait.condition is Condition.COMPLETED]
    for index, (first, filled) in enumerate(used):
        others, writer = [*used[:index], *used[index + 1 :]], first.service
        later = {wait.service for wait in ends if wait.needed == writer}
        is_seen = len(others) == 1 or all(mount.read_only for _, mount in others)
        starts_later = all(cell.service in {*later, default} - {writer} for cell, _ in others)
        if later and not filled.read_only and is_seen and starts_later:
            for cell, mount in others:
                cell.volumes.append(
                    TakenVolume(name=name, writer=writer, source=filled.target, target=mount.target)
                )
                why = f"{mount.target} is a copy of {name} as {writer} leaves it"
                cell.changed("volumes", why)
            return
    hint, why = "", _NOT_WRITTEN
    if len(used) > 1:
        names = ", ".join(dict.fromkeys(cell.service for cell, _ in used))
        why = f"{names} have it: {_SHARED}"
        hint = (
            f"let one service fill it and end (`{Condition.COMPLETED.value}`) before the others "
            f"start"
        )
    shown = printable(name, max_chars=100)
    raise refusal(used[-1][0].where, "volumes", f"{shown}: {printable(why)}", hint=hint)


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
        except FileNotFoundError as error:
            if file.required:
                hint = "make it; an example is often beside it"
                why = f"{path}: it does not exist"
                raise refusal(cell.where, "env_file", why, hint=hint) from error
            cell.changed("env_file", f"{path} does not exist, and is not required")
            continue
        except (OSError, ValueError) as error:
            why = f"{path}: {printable(reason(error))}"
            raise refusal(cell.where, "env_file", why) from error
        found |= {name: value for name, value in read.items() if value is not None}
        if unset := ", ".join(sorted(name for name, value in read.items() if value is None)):
            cell.changed("env_file", f"{path}: variables without a value are not set ({unset})")
    if len(found) > MAX_VARIABLES:
        raise refusal(cell.where, "env_file", f"more than {MAX_VARIABLES:,} variables")
    if cell.model.env_file:
        cell.words["env"] = {**found, **cell.words.get("env", {})}


# ---- images and builds


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBuild:
    """An image to build; paths are below `root`. `inline`: the Dockerfile's text, if it is one."""

    image: str
    root: str
    context: str
    dockerfile: str
    args: Mapping[str, str]
    target: str = ""
    inline: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceImage:
    """What a service runs (`image` normalised); or why that is not known."""

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
        made = interpolate({"services": {name: only}}, {}, blanks=True).document
        settled = made["services"][name]
        image = text(settled.get("image") or "")
        if image and IMAGE_ID.fullmatch(image) is None:
            image = parse_reference(image).familiar
        if "build" in settled and image in STAND_INS:
            raise CannotKeepError("it is built, and nothing names what is built")
        build = read_build(name, settled, document, image)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        return ServiceImage(service=name, why=printable(str(error), max_chars=300))
    return ServiceImage(service=name, image="default" if image in STAND_INS else image, build=build)
