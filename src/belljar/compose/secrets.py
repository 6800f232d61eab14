"""A compose file's `secrets` and `configs`: files that a service's cell gets.

Pure but for their sizes.

Source: compose-spec 08-configs.md and 09-secrets.md; where and how a service sees them is
05-services.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from belljar.compose.task_files import TaskFiles, reason
from belljar.compose.volumes import Mounts, place_of
from belljar.compose.words import CannotKeepError, Refusals, mapping, refusal, text
from belljar.policy.directories import Entry, EntryKind, Tree
from belljar.policy.task_data import TaskFile
from belljar.units import printable

_LONG: Final = frozenset({"source", "target", "uid", "gid", "mode"})
_SETTINGS: Final = frozenset({"file", "content", "name", "labels"})
_DEFAULT_MODE: Final = 0o444
_PLACES: Final[Mapping[str, str]] = {"secrets": "/run/secrets/", "configs": "/"}
_NO_SOURCE: Final = "its contents come from a `file` of the task, or are written as `content`"
_MAX_ID: Final = 65_535


def add_granted(
    mounts: Mounts, service: Mapping[str, Any], document: Mapping[str, Any], files: TaskFiles | None
) -> None:
    """Give a service's cell its secrets and configs.

    Raises `CannotKeepError` for each that it can't get.
    """
    refused = Refusals()
    for key in ("secrets", "configs"):
        declared = mapping(document.get(key), key)
        written = service.get(key)
        for item in written if isinstance(written, list) else [] if written is None else [written]:
            with refused.collected():
                try:
                    mounts.add(*_granted(key, item, declared, files))
                except CannotKeepError:
                    raise
                except (OSError, TypeError, ValueError) as error:
                    shown = printable(str(item), max_chars=100)
                    why = f"{shown}: {printable(reason(error) if isinstance(error, OSError) else str(error))}"
                    raise refusal(f"service {mounts.service}", key, why) from error
    refused.raise_all()


def _granted(key: str, item: object, declared: Mapping[str, Any], files: TaskFiles | None) -> tuple[TaskFile, Tree]:
    fields = {"source": item} if isinstance(item, str) else mapping(item, key)
    if set(fields) - _LONG:
        raise ValueError(f"only {', '.join(sorted(_LONG))} are read")
    name = text(fields.get("source") or "")
    if name not in declared:
        raise ValueError("it is not declared in the file")
    settings = mapping(declared[name], f"{key} {name}")
    if set(settings) - _SETTINGS or len(set(settings) & {"file", "content"}) != 1:
        raise ValueError(_NO_SOURCE)
    file = TaskFile(
        key=key,
        target=_target(key, name, fields),
        mode=_mode(fields.get("mode")),
        owner=f"{_id(fields.get('uid'))}:{_id(fields.get('gid'))}",
        is_secret=key == "secrets",
    )
    if "content" in settings:
        content = text(settings["content"])
        entry = Entry(path="", kind=EntryKind.FILE, size_bytes=len(content.encode()))
        return file.model_copy(update={"content": content}), Tree(source="", entries=(entry,))
    if files is None:
        raise ValueError("the compose configuration is not a file, so its directory is not known")
    path = files.path(text(settings["file"]))
    tree = files.tree(path)
    if tree.is_directory:
        raise ValueError("it is a directory")
    return file.model_copy(update={"source": path}), tree


def _target(key: str, name: str, fields: Mapping[str, Any]) -> str:
    target = text(fields.get("target") or name)
    return place_of(target if target.startswith("/") else f"{_PLACES[key]}{target}")


def _id(value: object) -> int:
    number = int(text(value or 0))
    if not 0 <= number <= _MAX_ID:
        raise ValueError(f"an id from 0 to {_MAX_ID} is needed")
    return number


def _mode(value: object) -> int:
    """Octal digits, also without quotes: YAML 1.2 reads `0440` as the number 440."""
    if value is None:
        return _DEFAULT_MODE
    mode = int(text(value), 8)
    if not 0 <= mode <= 0o777:
        raise ValueError("a mode from 0000 to 0777 is needed")
    return mode
