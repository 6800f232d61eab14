"""A compose file's volumes: which directories and copies each service's cell gets.

A volume that one service alone has is a directory of its cell: it is empty or the image's at first,
and ends with the sample, as Inspect's ends. A file or directory below the task's own directory is
copied into the cell before its program starts. Any other path of this host is refused.
Cells share nothing that either can write, so a volume of several services is refused too, but where
one service fills it and ends before the others start: they get a copy.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from belljar.compose.order import Condition, Wait
from belljar.compose.task_files import TaskFiles, reason
from belljar.compose.words import CannotKeepError, Refusals, mapping, refusal, switch, text
from belljar.differences import Difference, Kind
from belljar.policy.directories import Tree
from belljar.policy.task_data import MAX_BYTES, MAX_ENTRIES, TakenVolume, TaskFile
from belljar.units import format_size, printable

_HOST: Final = "nothing of this host is shown in a cell but files below the task's own directory"
_HINT_HOST: Final = "put the files beside the compose file, or into the image"
_NO_DIRECTORY: Final = "the compose configuration is not a file, so the task's directory is not known"
_PLAIN: Final = frozenset({"name", "labels"})
_LONG: Final = frozenset({"type", "source", "target", "read_only", "volume", "bind", "tmpfs", "consistency"})
_LONG_BIND: Final = frozenset({"create_host_path", "selinux"})
_OPTIONS: Final = frozenset({"rw", "ro", "z", "Z", "cached", "delegated", "consistent", "nocopy"})
_SHARED: Final = "cells share no directory, so one service would not see what another writes"
_HINT_SHARED: Final = "let one service fill it and end (`service_completed_successfully`) before the others start"


@dataclass(slots=True)
class Mounts:
    """What one service's volumes are in its cell: empty directories, copies, and what differs."""

    service: str
    directories: list[str] = field(default_factory=list)
    files: list[TaskFile] = field(default_factory=list)
    volumes: list[TakenVolume] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    entries: int = 0
    total_bytes: int = 0

    def add(self, file: TaskFile, tree: Tree) -> None:
        """Take one copy over. Raises `ValueError` where all of the service's are too many."""
        self.entries += len(tree.entries)
        self.total_bytes += tree.total_bytes
        if self.entries > MAX_ENTRIES or self.total_bytes > MAX_BYTES:
            most = f"{MAX_ENTRIES:,} files and {format_size(MAX_BYTES)}"
            raise ValueError(f"a cell is given at most {most} of its task's directory")
        self.files.append(file)

    def changed(self, key: str, detail: str) -> None:
        """Note what is there in another form."""
        where = f"service {self.service}"
        self.differences.append(Difference(kind=Kind.CHANGED, where=where, key=key, detail=detail))


@dataclass(frozen=True, slots=True)
class _Mount:
    """One line as it is written. `source`: "" for a volume without a name."""

    source: str
    target: str
    is_bind: bool
    read_only: bool = False
    must_exist: bool = False
    is_tmpfs: bool = False


@dataclass(slots=True)
class _Volumes:
    """The declared volumes, and who has each: services, and the places of each in their cells."""

    declared: Mapping[str, Any]
    used: dict[str, list[_Use]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Use:
    """One service's place for a volume."""

    mounts: Mounts
    place: str
    read_only: bool


def mounts_of(
    services: Mapping[str, Mapping[str, Any]],
    volumes: object,
    files: TaskFiles | None,
    *,
    waits: Sequence[Wait] = (),
    default: str = "",
) -> dict[str, Mounts]:
    """What each service's volumes are in its cell.

    Args:
        files: the task's; None: it has none.
        waits: what the services wait for; `default`, the one that the sample works in, waits for
            all.

    Raises `CannotKeepError` for any other kind of volume, by the service's name.
    """
    declared = {name: mapping(settings, f"volume {name}") for name, settings in mapping(volumes, "volumes").items()}
    refused = Refusals()
    for name, settings in declared.items():
        with refused.collected():
            _check_plain(name, settings)
    together = _Volumes(declared)
    found = {name: Mounts(name) for name in services}
    for name, service in services.items():
        with refused.collected():
            _read_all(found[name], service.get("volumes"), together, files)
    for name, used in together.used.items():
        with refused.collected():
            _share(name, used, waits, default)
    refused.raise_all(fact for each in found.values() for fact in each.differences)
    return found


def _share(name: str, used: Sequence[_Use], waits: Sequence[Wait], default: str) -> None:
    """Copy a volume that one service fills before the others start.

    Raises `CannotKeepError` for one that several have in another way, and for one that nobody can
    write.
    """
    if len(used) == 1 and not used[0].read_only:
        return
    ends = [(wait.who, wait.what) for wait in waits if wait.condition is Condition.COMPLETED]
    for first in used:
        others = [use for use in used if use is not first]
        writer = first.mounts.service
        ended = not first.read_only and any(what == writer for _, what in ends)
        later = {*(who for who, what in ends if what == writer), default}
        is_seen = len(others) == 1 or all(use.read_only for use in others)
        if ended and is_seen and all(use.mounts.service in later - {writer} for use in others):
            for use in others:
                taken = TakenVolume(name=name, writer=writer, source=first.place, target=use.place)
                use.mounts.volumes.append(taken)
                use.mounts.changed("volumes", f"{use.place} is a copy of {name} as {writer} leaves it")
            return
    names = ", ".join(dict.fromkeys(use.mounts.service for use in used))
    shared = len(used) > 1
    why = f"{names} have it: {_SHARED}" if shared else "its service can't write to it, so it stays empty"
    raise _refused(used[-1].mounts.service, name, why, hint=_HINT_SHARED if shared else "")


def tmpfs_of(tmpfs: object) -> list[str]:
    """The directories that a service's `tmpfs` are in its cell, without their options.

    Raises `ValueError` for what is none.
    """
    listed = [] if tmpfs is None else [tmpfs] if isinstance(tmpfs, str) else tmpfs
    if not isinstance(listed, list):
        raise ValueError("no list of directories")
    return [place_of(text(item).partition(":")[0]) for item in listed]


def place_of(target: str) -> str:
    """An absolute path in a cell, written in one way.

    Raises `ValueError` for another, and for `/`.
    """
    found = posixpath.normpath(target)
    if not target.startswith("/") or found in ("/", "//") or "\0" in found:
        raise ValueError("its place is no directory below /")
    return found


def _check_plain(name: str, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        is_usual = key == "driver" and value in (None, "local")
        is_off = key in ("external", "driver_opts") and value in (None, False, "false", {})
        if key not in _PLAIN and not key.startswith("x-") and not is_usual and not is_off:
            raise refusal(f"volume {name}", key, _HOST)


def _read_all(
    mounts: Mounts,
    written: object,
    volumes: _Volumes,
    files: TaskFiles | None,
) -> None:
    if written is None:
        return
    if not isinstance(written, list):
        raise _refused(mounts.service, written, "they are no list")
    refused = Refusals()
    for item in written:
        with refused.collected():
            try:
                mount = _long(item) if isinstance(item, Mapping) else _short(item)
                if mount.is_bind:
                    _copy(mounts, mount, files)
                else:
                    _volume(mounts, mount, volumes)
            except CannotKeepError:
                raise
            except (OSError, TypeError, ValueError) as error:
                why = reason(error) if isinstance(error, OSError) else str(error)
                hint = _HINT_HOST if why == _HOST else ""
                raise _refused(mounts.service, item, why, hint=hint) from error
    refused.raise_all()


def _volume(mounts: Mounts, mount: _Mount, volumes: _Volumes) -> None:
    """A directory of the cell's own."""
    if not mount.source and mount.read_only:
        raise ValueError("its service can't write to it, so it stays empty")
    if mount.source and mount.source not in volumes.declared:
        raise ValueError(f"there is no volume {mount.source} in the file")
    place = place_of(mount.target)
    mounts.directories.append(place)
    if mount.is_tmpfs:
        mounts.changed("volumes", f"{place} is a directory of the cell; the options of a tmpfs are not kept")
    if mount.source:
        volumes.used.setdefault(mount.source, []).append(_Use(mounts, place, mount.read_only))


def _copy(mounts: Mounts, mount: _Mount, files: TaskFiles | None) -> None:
    """A file or directory of the task, copied."""
    target = place_of(mount.target)
    if mount.source.startswith(("/", "~", "\\")) or mount.source[1:2] == ":":
        raise ValueError(_HOST)
    if files is None:
        raise ValueError(_NO_DIRECTORY)
    path = files.path(mount.source)
    try:
        tree = files.tree(path)
    except FileNotFoundError:
        if mount.read_only or mount.must_exist:
            raise
        mounts.directories.append(target)
        mounts.changed("volumes", f"{mount.source} does not exist: {target} is an empty directory")
        return
    mounts.add(TaskFile(key="volumes", target=target, source=path), tree)
    later = (
        "root of the cell could change the copy"
        if mount.read_only
        else "what is written there ends with the cell and does not reach this host"
    )
    size = format_size(tree.total_bytes)
    mounts.changed("volumes", f"{mount.source} is copied to {target} ({size}): {later}")


def _short(item: object) -> _Mount:
    """`[SOURCE:]TARGET[:OPTIONS]`."""
    parts = text(item).split(":")
    if len(parts) == 1:
        return _Mount("", parts[0], is_bind=False)
    options = set(parts[2].split(",")) if len(parts) == 3 else set()
    is_bind = parts[0].startswith((".", "/", "~", "\\"))
    if len(parts) > 3 or parts[1].startswith("\\"):
        raise ValueError(_HOST)
    if options - _OPTIONS:
        raise ValueError(f"the options {', '.join(sorted(options - _OPTIONS))} are not read")
    return _Mount(parts[0], parts[1], is_bind=is_bind, read_only="ro" in options)


def _long(mount: Mapping[str, Any]) -> _Mount:
    kind = mount.get("type")
    extra = sorted(str(key) for key in mount if key not in _LONG and not str(key).startswith("x-"))
    if kind not in ("volume", "bind", "tmpfs") or extra:
        raise ValueError("only volumes and files of the task can be directories of a cell")
    source, target = text(mount.get("source") or ""), text(mount.get("target") or "")
    read_only = switch(mount.get("read_only") or False)
    if kind == "bind":
        bind = mapping(mount.get("bind"), "volumes")
        if set(bind) - _LONG_BIND or mount.get("volume"):
            raise ValueError("a copy of a file has no such options")
        must_exist = not switch(bind.get("create_host_path", True))
        return _Mount(source, target, is_bind=True, read_only=read_only, must_exist=must_exist)
    if kind == "tmpfs":
        if source or mount.get("volume") or mount.get("bind"):
            raise ValueError("a tmpfs has no source")
        return _Mount("", target, is_bind=False, is_tmpfs=True)
    if mount.get("tmpfs") or set(mapping(mount.get("volume"), "volumes")) - {"nocopy", "labels"} or mount.get("bind"):
        raise ValueError("only plain volumes can be directories of a cell")
    if source.startswith((".", "/", "~", "\\")) or source[1:2] == ":":
        raise ValueError(_HOST)
    return _Mount(source, target, is_bind=False, read_only=read_only)


def _refused(name: str, mount: object, why: str, *, hint: str = "") -> CannotKeepError:
    shown = printable(str(mount), max_chars=100)
    return refusal(f"service {name}", "volumes", f"{shown}: {printable(why)}", hint=hint)
