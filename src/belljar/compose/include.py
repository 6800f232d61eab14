"""Compose files that another names: `include`, and `extends` with a `file`.

Read below the task's root.

Source: compose-spec 14-include.md: what is included is read with its own directory, then put beside
what includes it; a name that both have, with different contents, is an error.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from belljar.compose.extends import merged, with_extended
from belljar.compose.task_files import TaskFiles, reason
from belljar.compose.words import CannotKeepError, mapping, refusal, text
from belljar.units import printable

MAX_FILES: Final = 32
"""Read for one compose file; one that is named twice counts twice."""
MAX_DEPTH: Final = 8
_SECTIONS: Final = ("services", "volumes", "networks", "secrets", "configs")
_INCLUDE: Final = frozenset({"path", "project_directory"})
_NO_VARIABLES: Final = "variables are not read for an included file: write its values out"


@dataclass
class _Reading:
    """One compose file with all that it names. `chain`: the files that led here, by their paths."""

    parse: Callable[[str], Any]
    chain: tuple[str, ...] = ()
    count: list[int] = field(default_factory=lambda: [0])

    def into(self, path: str) -> _Reading:
        """For a file that is read now. Raises `ValueError` for a circle, and for too many."""
        self.count[0] += 1
        if path in self.chain:
            raise ValueError("it includes itself")
        if len(self.chain) >= MAX_DEPTH or self.count[0] > MAX_FILES:
            raise ValueError(f"at most {MAX_FILES} files, {MAX_DEPTH} deep, are read for one")
        return replace(self, chain=(*self.chain, path))


def with_others(
    document: Mapping[str, Any], name: str, files: TaskFiles, parse: Callable[[str], Any]
) -> dict[str, Any]:
    """A parsed compose file with what it takes from others in its place.

    Args:
        name: the file's own name in the directory of `files`.
        parse: YAML to values; what it raises passes.

    Raises:
        CannotKeepError: one can't be read, is outside of the task's root, or conflicts.
    """
    return _with_others(document, files, _Reading(parse, (posixpath.join(files.directory, name),)))


def _with_others(document: Mapping[str, Any], files: TaskFiles, reading: _Reading) -> dict[str, Any]:
    whole = {key: value for key, value in document.items() if key != "include"}
    if isinstance(services := whole.get("services"), Mapping):
        whole["services"] = {name: _with_base(str(name), service, files, reading) for name, service in services.items()}
    written = document.get("include")
    if written is None:
        return whole
    for item in written if isinstance(written, list) else [written]:
        _put_beside(whole, _included(item, files, reading))
    return whole


def _included(item: object, files: TaskFiles, reading: _Reading) -> dict[str, Any]:
    fields = {"path": item} if isinstance(item, str) else mapping(item, "include")
    if "env_file" in fields:
        raise refusal("", "include", _NO_VARIABLES)
    if set(fields) - _INCLUDE:
        raise refusal("", "include", "only `path` and `project_directory` are read")
    paths = fields.get("path")
    together: dict[str, Any] = {}
    home = fields.get("project_directory")
    for path in map(text, paths if isinstance(paths, list) else [paths]):
        home = posixpath.dirname(path) or "." if home is None else home
        together = merged(together, _read(path, text(home), files, reading, key="include"))
    return together


def _with_base(name: str, service: Any, files: TaskFiles, reading: _Reading) -> Any:  # noqa: ANN401 - YAML
    asked = service.get("extends") if isinstance(service, Mapping) else None
    if not isinstance(asked, Mapping) or asked.get("file") is None:
        return service
    path, base = text(asked["file"]), text(asked.get("service") or "")
    if set(asked) - {"file", "service"}:
        raise refusal(f"service {name}", "extends", "only `file` and `service` are read")
    home = posixpath.dirname(path) or "."
    other = _read(path, home, files, reading, key="extends", where=f"service {name}")
    services = mapping(other.get("services"), "services")
    if base not in services:
        why = f"{printable(path)} has no service {printable(base)}"
        raise refusal(f"service {name}", "extends", why)
    named = {each: mapping(of, f"service {each}") for each, of in services.items()}
    own = {key: value for key, value in service.items() if key != "extends"}
    return merged(with_extended(named)[base], own)


def _read(path: str, home: str, files: TaskFiles, reading: _Reading, *, key: str, where: str = "") -> dict[str, Any]:
    """A file with its paths as seen from the file that names it."""
    try:
        if "$" in path or "$" in home:
            raise ValueError("its path has a reference, which is not known yet")
        found = files.path(path)
        parsed = reading.parse(files.read_text(found))
        if not isinstance(parsed, Mapping):
            raise ValueError("it is not a compose file")
        inner = TaskFiles(files.root, files.path(home))
        whole = _with_others(parsed, inner, reading.into(found))
    except CannotKeepError:
        raise
    except (OSError, ValueError) as error:
        raise refusal(where, key, f"{printable(path)}: {printable(reason(error))}") from error
    return _moved(whole, home)


def _put_beside(whole: dict[str, Any], other: Mapping[str, Any]) -> None:
    for key, value in other.items():
        if key in ("version", "name") or str(key).startswith("x-"):
            continue
        if key not in _SECTIONS:
            whole.setdefault(key, value)  # refused by its name, later
            continue
        section = dict(mapping(whole.get(key), key))
        for name, settings in mapping(value, key).items():
            if name in section and section[name] != settings:
                raise refusal("", "include", f"{key}: {printable(name)} is there twice")
            section[name] = settings
        whole[key] = section


# ---- paths


def _moved(document: Mapping[str, Any], home: str) -> dict[str, Any]:
    """The same with its relative paths written from the directory that `home` is relative to."""
    if posixpath.normpath(home) == ".":
        return dict(document)
    whole = dict(document)
    for section in ("secrets", "configs"):
        whole |= {section: _each(whole[section], home, _with_file)} if section in whole else {}
    if "services" in whole:
        whole["services"] = _each(whole["services"], home, _service)
    return whole


def _each(section: Any, home: str, move: Callable[[dict[str, Any], str], dict[str, Any]]) -> Any:  # noqa: ANN401 - YAML
    if not isinstance(section, Mapping):
        return section
    return {
        name: move(dict(settings), home) if isinstance(settings, Mapping) else settings
        for name, settings in section.items()
    }


def _path(written: Any, home: str) -> Any:  # noqa: ANN401 - YAML
    is_elsewhere = not isinstance(written, str) or written.startswith(("/", "~", "\\")) or "://" in written
    if is_elsewhere:
        return written
    joined = f"{home}/{written}"
    return f"./{joined if '$' in joined else posixpath.normpath(joined)}"


def _with_file(settings: dict[str, Any], home: str) -> dict[str, Any]:
    return settings | ({"file": _path(settings["file"], home)} if "file" in settings else {})


def _service(service: dict[str, Any], home: str) -> dict[str, Any]:
    build, listed = service.get("build"), service.get("env_file")
    if isinstance(build, str):
        service["build"] = _path(build, home)
    elif isinstance(build, Mapping):
        service["build"] = {**build, "context": _path(build.get("context", "."), home)}
    if listed is not None:
        service["env_file"] = [
            {**item, "path": _path(item.get("path"), home)} if isinstance(item, Mapping) else _path(item, home)
            for item in (listed if isinstance(listed, list) else [listed])
        ]
    if isinstance(mounts := service.get("volumes"), list):
        service["volumes"] = [_volume(mount, home) for mount in mounts]
    return service


def _volume(mount: Any, home: str) -> Any:  # noqa: ANN401 - YAML
    if isinstance(mount, str):
        source, colon, rest = mount.partition(":")
        return f"{_path(source, home)}{colon}{rest}" if colon and source.startswith(".") else mount
    if isinstance(mount, Mapping) and mount.get("type") == "bind":
        return {**mount, "source": _path(mount.get("source"), home)}
    return mount
