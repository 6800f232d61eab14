"""What services take from a task's files: volumes, secrets, variables, builds.

Cells share nothing that one can write. A service's volume is a directory of its cell, a task's file
is copied. A volume of several services is refused, unless one fills it and ends before the others
start: these get copies. Pure but for the files it reads.

Source: compose-spec 05-services.md, 08-configs.md, 09-secrets.md and build.md.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

from belljar.compose.document import TaskFiles, files_named_by, running_services
from belljar.compose.interpolate import MAX_VARIABLES, interpolate, read_dotenv, read_raw
from belljar.compose.keys import STAND_INS, Converted
from belljar.compose.model import (
    Build,
    Condition,
    Grant,
    Granted,
    Mount,
    Volume,
    parse,
    read_part,
    reasons_of,
)
from belljar.compose.values import (
    TMPFS,
    CannotKeepError,
    OutsideTaskError,
    Refusals,
    mapping,
    place_of,
    refusal,
    text,
    tmpfs_of,
)
from belljar.policy.files import Entry, EntryKind, Tree, reason
from belljar.policy.reference import IMAGE_ID, parse_reference
from belljar.policy.task_data import TakenVolume, TaskFile
from belljar.units import format_size, printable

_NO_DIRECTORY: Final = (
    "the compose configuration is not a file, so the task's directory is not known"
)
_SHARED: Final = "cells share no directory, so one service would not see what another writes"
_NOT_WRITTEN: Final = "its service can't write to it, so it stays empty"
_PLACES: Final[Mapping[str, str]] = {"secrets": "/run/secrets/", "configs": "/"}


@dataclass(frozen=True, slots=True)
class Wait:
    """`service` starts when `needed` has reached `condition`."""

    service: str
    needed: str
    condition: Condition


@dataclass(frozen=True, slots=True)
class _Use:
    """One service's place for a named volume."""

    cell: Converted
    place: str
    read_only: bool


# ---- volumes


def add_volumes(
    converted: Mapping[str, Converted],
    volumes: object,
    files: TaskFiles | None,
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
    used: dict[str, list[_Use]] = {}
    for cell in converted.values():
        for mount in cell.model.volumes:
            place = mount.target
            with _refused_item(refused, cell, "volumes", mount.source or place):
                if mount.type == "bind":
                    _copy(cell, mount, files)
                    continue
                # A directory of the cell
                if not mount.source and mount.read_only:
                    raise ValueError(_NOT_WRITTEN)
                if mount.source and mount.source not in declared:
                    raise ValueError(f"there is no volume {mount.source} in the file")
                if mount.type == "tmpfs":
                    if ":" in place:
                        raise ValueError("a tmpfs at a place with a colon")
                    place = tmpfs_of(f"{place}:mode={text(mount.tmpfs.get('mode', '1777'))}")
                    cell.changed("volumes", f"{mount.target} {TMPFS}")
                cell.directories.append(place)
                if mount.source:
                    used.setdefault(mount.source, []).append(_Use(cell, place, mount.read_only))
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


def _copy(cell: Converted, mount: Mount, files: TaskFiles | None) -> None:
    if files is None:
        raise ValueError(_NO_DIRECTORY)
    target, path = mount.target, files.path(mount.source)
    try:
        tree = files.tree(path)
    except FileNotFoundError:
        if mount.read_only or (mount.bind is not None and not mount.bind.create_host_path):
            raise
        cell.directories.append(target)
        cell.changed("volumes", f"{mount.source} does not exist: {target} is an empty directory")
        return
    cell.add_file(TaskFile(key="volumes", target=target, source=path), tree)
    later = (
        "root of the cell could change the copy"
        if mount.read_only
        else "what is written there ends with the cell and does not reach this host"
    )
    size = format_size(tree.total_bytes)
    cell.changed("volumes", f"{mount.source} is copied to {target} ({size}): {later}")


def _share(name: str, used: Sequence[_Use], waits: Sequence[Wait], default: str) -> None:
    """Copy a volume that one service fills before the others start."""
    if len(used) == 1 and not used[0].read_only:
        return
    ends = [wait for wait in waits if wait.condition is Condition.COMPLETED]
    for first in used:
        others = [use for use in used if use is not first]
        writer = first.cell.service
        ended = not first.read_only and any(wait.needed == writer for wait in ends)
        later = {*(wait.service for wait in ends if wait.needed == writer), default}
        is_seen = len(others) == 1 or all(use.read_only for use in others)
        if ended and is_seen and all(use.cell.service in later - {writer} for use in others):
            for use in others:
                taken = TakenVolume(name=name, writer=writer, source=first.place, target=use.place)
                use.cell.volumes.append(taken)
                use.cell.changed(
                    "volumes", f"{use.place} is a copy of {name} as {writer} leaves it"
                )
            return
    where, hint, why = used[-1].cell.where, "", _NOT_WRITTEN
    if len(used) > 1:
        names = ", ".join(dict.fromkeys(use.cell.service for use in used))
        why = f"{names} have it: {_SHARED}"
        hint = (
            f"let one service fill it and end (`{Condition.COMPLETED.value}`) before the others "
            f"start"
        )
    shown = printable(name, max_chars=100)
    raise refusal(where, "volumes", f"{shown}: {printable(why)}", hint=hint)


# ---- secrets and configs


def add_granted(cell: Converted, document: Mapping[str, Any], files: TaskFiles | None) -> None:
    """Add a service's secrets and configs. Raises `CannotKeepError`."""
    refused = Refusals()
    for key, grants in (("secrets", cell.model.secrets), ("configs", cell.model.configs)):
        declared = mapping(document.get(key), key)
        for grant in grants:
            with _refused_item(refused, cell, key, grant.source):
                cell.add_file(*_granted(key, grant, declared, files))
    refused.raise_all()


def _granted(
    key: str, grant: Grant, declared: Mapping[str, Any], files: TaskFiles | None
) -> tuple[TaskFile, Tree]:
    if grant.source not in declared:
        raise ValueError("it is not declared in the file")
    source = read_part(Granted, declared[grant.source])
    target = grant.target or grant.source
    file = TaskFile(
        key=key,
        target=place_of(target if target.startswith("/") else f"{_PLACES[key]}{target}"),
        mode=grant.mode,
        owner=f"{grant.uid}:{grant.gid}",
        is_secret=key == "secrets",
    )
    if source.content is not None:
        size = len(source.content.encode())
        entry = Entry(path="", kind=EntryKind.FILE, size_bytes=size)
        return file.model_copy(update={"content": source.content}), Tree(
            source="", entries=(entry,)
        )
    if files is None:
        raise ValueError(_NO_DIRECTORY)
    path = files.path(source.file or "")
    tree = files.tree(path)
    if tree.is_directory:
        raise ValueError("it is a directory")
    return file.model_copy(update={"source": path}), tree


# ---- variables


def add_env_files(converted: Converted, files: TaskFiles | None) -> None:
    """Add a service's `env_file` below its `environment`. Raises `CannotKeepError`."""
    where, found = f"service {converted.service}", dict[str, str]()
    for file in converted.model.env_file:
        if files is None:
            raise refusal(where, "env_file", _NO_DIRECTORY)
        path = printable(file.path)
        try:
            content = files.read_text(files.path(file.path))
            read = read_raw(content) if file.format else read_dotenv(content, found)
        except FileNotFoundError as error:
            if file.required:
                hint = "make it; an example is often beside it"
                raise refusal(where, "env_file", f"{path}: it does not exist", hint=hint) from error
            converted.changed("env_file", f"{path} does not exist, and is not required")
            continue
        except (OSError, ValueError) as error:
            why = str(error) if isinstance(error, CannotKeepError) else reason(error)
            raise refusal(where, "env_file", f"{path}: {printable(why)}") from error
        found |= {name: value for name, value in read.items() if value is not None}
        if unset := sorted(name for name, value in read.items() if value is None):
            names = ", ".join(unset)
            why = f"{path}: variables without a value are not set ({names})"
            converted.changed("env_file", why)
    if len(found) > MAX_VARIABLES:
        raise refusal(where, "env_file", f"more than {MAX_VARIABLES:,} variables")
    if converted.model.env_file:
        converted.words["env"] = {**found, **converted.words.get("env", {})}


# ---- images and builds


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBuild:
    """An image to build; paths are below `root`."""

    image: str
    root: str
    context: str
    dockerfile: str
    args: Mapping[str, str]
    target: str = ""

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
    context = ""
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
        )
    except ValueError as error:
        why = f"{context}: {error}" if context else str(error)
        raise refusal(f"service {name}", "build", why) from None


def builds_of(document: Mapping[str, Any]) -> tuple[ServiceBuild, ...]:
    """The builds of the services that run. Raises `CannotKeepError`."""
    found = []
    for name, service in running_services(document).items():
        if image := text(service.get("image") or ""):
            found.append(read_build(name, service, document, parse_reference(image).familiar))
    return tuple(build for build in found if build is not None)


def service_images(document: Mapping[str, Any]) -> tuple[ServiceImage, ...]:
    """Each running service's image. Raises `CannotKeepError`."""
    try:
        running = running_services(document)
    except CannotKeepError:
        raise
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        why = printable(str(error), max_chars=200)
        raise CannotKeepError(f"its compose file can't be read: {why}") from error
    return tuple(_image(name, service, document) for name, service in running.items())


def _image(name: str, service: Mapping[str, Any], document: Mapping[str, Any]) -> ServiceImage:
    only = {key: service[key] for key in ("image", "build") if service.get(key) is not None}
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
