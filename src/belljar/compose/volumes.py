"""A compose file's volumes. Pure.

A volume that one service alone has is a directory of its cell: it is empty or the image's at first, and ends with the sample, as Inspect's ends. Whatever is
a directory of this host, or of two services, is refused.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, Final

from belljar.compose.words import CannotKeepError, Refusals, mapping, refusal, switch, text
from belljar.units import printable

_HOST: Final = "no directory of this host is shown in a cell"
_PLAIN: Final = frozenset({"name", "labels"})
_LONG: Final = frozenset({"type", "source", "target", "read_only", "volume", "consistency"})


def directories_of(services: Mapping[str, Mapping[str, Any]], volumes: object) -> dict[str, list[str]]:
    """The directories that each service's volumes are in its cell. Raises `CannotKeepError` for any other kind of volume, by the service's name."""
    declared = {name: mapping(settings, f"volume {name}") for name, settings in mapping(volumes, "volumes").items()}
    refused = Refusals()
    for name, settings in declared.items():
        with refused.collected():
            _check_plain(name, settings)
    owner: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for name, service in services.items():
        with refused.collected():
            found[name] = _directories(name, service.get("volumes"), declared, owner)
    refused.raise_all()
    return found


def tmpfs_of(tmpfs: object) -> list[str]:
    """The directories that a service's `tmpfs` are in its cell, without their options. Raises `ValueError` for what is none."""
    listed = [] if tmpfs is None else [tmpfs] if isinstance(tmpfs, str) else tmpfs
    if not isinstance(listed, list):
        raise ValueError("no list of directories")
    return [_place(text(item).partition(":")[0]) for item in listed]


def _place(target: str) -> str:
    found = posixpath.normpath(target)
    if not target.startswith("/") or found in ("/", "//"):
        raise ValueError("its place is no directory below /")
    return found


def _check_plain(name: str, settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        is_usual = key == "driver" and value in (None, "local")
        is_off = key in ("external", "driver_opts") and value in (None, False, "false", {})
        if key not in _PLAIN and not key.startswith("x-") and not is_usual and not is_off:
            raise refusal(f"volume {name}", key, _HOST)


def _directories(name: str, mounts: object, declared: Mapping[str, Any], owner: dict[str, str]) -> list[str]:
    if mounts is None:
        return []
    if not isinstance(mounts, list):
        raise _refused(name, mounts, "they are no list")
    refused = Refusals()
    found: list[str] = []
    for mount in mounts:
        with refused.collected():
            found.append(_checked(name, mount, declared, owner))
    refused.raise_all()
    return found


def _checked(name: str, mount: object, declared: Mapping[str, Any], owner: dict[str, str]) -> str:
    try:
        return _directory(name, mount, declared, owner)
    except CannotKeepError:
        raise
    except (TypeError, ValueError) as error:
        raise _refused(name, mount, str(error)) from error


def _directory(name: str, mount: object, declared: Mapping[str, Any], owner: dict[str, str]) -> str:
    source, target = _long(name, mount) if isinstance(mount, Mapping) else _short(name, mount)
    if source.startswith((".", "/", "~", "\\")) or source[1:2] == ":":
        raise _refused(name, mount, _HOST)
    if source and source not in declared:
        raise _refused(name, mount, f"there is no volume {source} in the file")
    if source and source in owner:
        raise _refused(name, mount, f"{source} is {owner[source]}'s already, and cells share no directory")
    try:
        place = _place(target)
    except ValueError as error:
        raise _refused(name, mount, str(error)) from error
    if source:
        owner[source] = name
    return place


def _short(name: str, mount: object) -> tuple[str, str]:
    """`[SOURCE:]TARGET[:rw]`."""
    parts = text(mount).split(":")
    if len(parts) == 1:
        return "", parts[0]
    if len(parts) > 3 or (len(parts) == 3 and parts[2] != "rw"):
        raise _refused(name, mount, _HOST if parts[0].startswith((".", "/", "~")) else "only `rw` can be asked for")
    return parts[0], parts[1]


def _long(name: str, mount: Mapping[str, Any]) -> tuple[str, str]:
    extra = sorted(str(key) for key in mount if key not in _LONG and not str(key).startswith("x-"))
    if mount.get("type") != "volume" or extra:
        raise _refused(
            name, mount, _HOST if mount.get("type") == "bind" else "only plain volumes can be directories of a cell"
        )
    if switch(mount.get("read_only") or False) or set(mapping(mount.get("volume"), "volumes")) - {"nocopy", "labels"}:
        raise _refused(name, mount, "only plain volumes can be directories of a cell")
    return text(mount.get("source") or ""), text(mount.get("target") or "")


def _refused(name: str, mount: object, why: str) -> CannotKeepError:
    return refusal(f"service {name}", "volumes", f"{printable(str(mount), max_chars=100)}: {why}")
