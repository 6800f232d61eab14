"""Reads compose files: names, the task's files, `include` and `extends`.

A compose file names files of its task below one root, and nothing else of this host: the Python
package that it is in (tasks of a package share files), else its own directory.

Source: compose-spec 04-version-and-name.md, 05-services.md (extends), 13-merge.md, 14-include.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from belljar.compose.interpolate import MAX_CHARACTERS, MAX_DEPTH, MAX_NODES
from belljar.compose.values import (
    CannotKeepError,
    OutsideTaskError,
    each,
    mapping,
    names_in,
    pairs,
    refusal,
    text,
)
from belljar.errors import PolicyError
from belljar.policy.files import Tree, list_tree, read_regular, reason
from belljar.policy.task_data import MAX_ENTRIES
from belljar.units import format_size, printable

if TYPE_CHECKING:
    from pydantic import BaseModel

COMPOSE_NAMES: Final = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
DIRECTORY_KEY: Final = "x-belljar-directory"
"""Where a parsed file has the directory it was read from."""
MAX_BYTES: Final = 128 << 10
MAX_TEXT_BYTES: Final = 256 << 10
"""Of any further file."""
MAX_FILES: Final = 32
"""Read for one compose file, repeats counted."""
MAX_INCLUDES: Final = 8
_LIKE_COMPOSE: Final = re.compile(r"[-.]compose\.ya?ml$")
_PROJECT: Final = re.compile(r"[a-z0-9_-]")
_SERVICES: Final = re.compile(r"^[\"']?services[\"']?\s*:", re.MULTILINE)
_read_here: Final[set[str]] = set()
"""Directories and roots of the files read so far."""
_MAX_ABOVE: Final = 8
_MERGED_AS_MAPPINGS: Final = frozenset(
    {"environment", "labels", "annotations", "sysctls", "depends_on", "networks", "extra_hosts"}
)
_REPLACED: Final = frozenset({"command", "entrypoint", "test"})  # lists that are one value
_SECTIONS: Final = ("services", "volumes", "networks", "secrets", "configs")


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """A root, and the directory below it that written paths start from."""

    root: Path
    directory: str = "."

    def path(self, written: str) -> str:
        """A written path, from the root. Raises `ValueError`."""
        if not written or written.startswith(("/", "~", "\\")) or written[1:2] == ":":
            raise OutsideTaskError
        found = posixpath.normpath(posixpath.join(self.directory, written))
        if found == ".." or found.startswith("../") or "\0" in found:
            raise OutsideTaskError
        return found

    def read_text(self, path: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
        """A text of at most `max_bytes`. Raises `OSError`, `ValueError`."""
        content = read_regular(self.root, path, max_bytes + 1)
        if len(content) > max_bytes:
            raise ValueError(f"it is larger than {format_size(max_bytes)}")
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError("it is not UTF-8") from None

    def tree(self, path: str) -> Tree:
        """The files at a path below the root. Raises as `list_tree`."""
        return list_tree(self.root, path, max_entries=MAX_ENTRIES)


def files_of(directory: Path) -> TaskFiles:
    """The files of the task whose compose file is here."""
    own = directory.resolve()
    barred = {Path("/"), Path.home().resolve()}  # never a root
    for candidate in [own, *own.parents][: _MAX_ABOVE + 1]:
        if candidate in barred:
            break
        if os.path.lexists(candidate / "__init__.py"):
            return TaskFiles(candidate, own.relative_to(candidate).as_posix())
    return TaskFiles(own)


def mark_read(document: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    """The parsed file with its directory, whose files it may name."""
    own = directory.resolve()
    _read_here.update((str(own), str(files_of(own).root)))
    return {**document, DIRECTORY_KEY: str(own)}


def was_read_here(directory: str) -> bool:
    """Whether this process read a task's file there."""
    return directory in _read_here


def files_named_by(document: Mapping[str, Any]) -> TaskFiles | None:
    """The task's files for a parsed file, if it has a directory."""
    directory = document.get(DIRECTORY_KEY)
    return files_of(Path(directory)) if isinstance(directory, str) and directory else None


# ---- reading


def is_compose_name(config: str) -> bool:
    """Whether Inspect takes the file for a compose file."""
    name = Path(config).name
    return name in COMPOSE_NAMES or _LIKE_COMPOSE.search(name) is not None


def is_dockerfile_name(config: str) -> bool:
    """Whether Inspect takes the file for a Dockerfile."""
    path = Path(config)
    return "Dockerfile" in {path.stem, path.suffix.removeprefix(".")}


def beside(directory: Path) -> Path | None:
    """The compose file of a directory, if any."""
    return next(filter(os.path.lexists, map(directory.joinpath, COMPOSE_NAMES)), None)


def as_document(config: BaseModel) -> dict[str, Any]:
    """Inspect's `ComposeConfig` as a file, which has no directory."""
    document = config.model_dump(by_alias=True, exclude_none=True)
    document.pop(DIRECTORY_KEY, None)
    return document


class NotReadError(ValueError):
    """Why a text is not read. `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def read_yaml(text: str, *, step: Callable[[], None] = lambda: None) -> Any:  # noqa: ANN401 - YAML
    """The one document of a text, if any. Raises `NotReadError`. `step`: see `read_tree`."""
    from belljar.policy.yaml_tree import Reading, read_tree

    limits = Reading(
        what="a compose file",
        max_depth=MAX_DEPTH,
        empty_values=True,
        plain_names=True,
        aliases=True,
        max_nodes=MAX_NODES,
        max_characters=MAX_CHARACTERS,
    )
    tree = read_tree(text, limits, step=step)
    for problem in tree.problems:
        message = f"{problem.field}: {problem.message}" if problem.field else problem.message
        raise NotReadError(message, problem.mark.line)
    return tree.value


def read_document(path: Path) -> dict[str, Any]:
    """A parsed compose file with its `include`, `extends`, directory and names of images.

    Raises `PolicyError` for anything but a regular file of at most `MAX_BYTES` of readable YAML.
    """
    where = printable(str(path))
    try:
        content = TaskFiles(path.parent).read_text(path.name, MAX_BYTES)
        parsed = read_yaml(content)
        if isinstance(parsed, dict):
            files = files_of(path.parent)
            own = posixpath.join(files.directory, path.name)
            parsed = mark_read(_with_others(parsed, files, _Chain((own,))), path.parent)
    except NotReadError as error:
        # Whatever else a file of this name holds is not shown: it may be anything.
        why = str(error) if _SERVICES.search(content) else "it is no YAML with `services`"
        raise _refused(f"can't be read: {why}", f"{where}:{error.line}") from error
    except FileNotFoundError as error:
        why = "a task's compose file is meant from the directory of the task's file"
        raise PolicyError(
            "can't be read: no such file or directory", where=where, hint=why
        ) from error
    except (OSError, ValueError) as error:
        why = printable(reason(error), max_chars=300)
        raise _refused(f"can't be read: {why}", where) from error
    if not isinstance(parsed, dict):
        raise _refused("is not a compose file", where)
    return name_built(parsed, path.resolve().parent.name)


def name_built(document: dict[str, Any], directory: str) -> dict[str, Any]:
    """Name the images of services with `build` alone: `PROJECT-SERVICE`. Pure.

    As `docker compose build` does (compose-go's `NormalizeProjectName`, compose's
    `GetImageNameOrDefault`), with a tag for another Dockerfile, arguments or a target.
    """
    services = document.get("services")
    name = document.get("name") or directory
    if not isinstance(services, dict) or not isinstance(name, str) or "$" in name:
        return document
    project = "".join(_PROJECT.findall(name.lower())).lstrip("_-")
    named = {
        service: {**fields, "image": f"{project}-{service}{_tag(fields['build'])}"}
        for service, fields in services.items()
        if project and isinstance(fields, dict) and not fields.get("image")
        if fields.get("build") is not None
    }
    return {**document, "services": {**services, **named}}


def dockerfile_document(path: Path) -> dict[str, Any]:
    """The compose file that Inspect makes of a Dockerfile alone."""
    directory = path.parent.resolve()
    service = {
        "build": {"context": ".", "dockerfile": path.name},
        "command": "tail -f /dev/null",
        "init": True,
        "network_mode": "none",
        "stop_grace_period": "1s",
    }
    document: dict[str, Any] = {"services": {"default": service}}
    if path.is_file():
        document = mark_read(document, directory)
    return name_built(document, directory.name)


def _tag(build: object) -> str:
    # Files of one directory may build different images for services of one name
    written = build if isinstance(build, Mapping) else {}
    decisive = {key: written[key] for key in ("dockerfile", "args", "target") if written.get(key)}
    if decisive in ({}, {"dockerfile": "Dockerfile"}):
        return ""
    whole = json.dumps(written, sort_keys=True, default=str)
    return ":" + hashlib.sha256(whole.encode()).hexdigest()[:12]


def _refused(what: str, where: str) -> PolicyError:
    return PolicyError(what, where=where, hint="correct the compose file")


# ---- `include` and `extends` of other files


@dataclass
class _Chain:
    """The files that led to this one, and every file read so far."""

    paths: tuple[str, ...]
    read: list[str] = field(default_factory=list)

    def into(self, path: str) -> _Chain:
        """Count a file. Raises `ValueError` for a circle and too many."""
        self.read.append(path)
        if path in self.paths:
            raise ValueError("it includes itself")
        if len(self.paths) >= MAX_INCLUDES or len(self.read) > MAX_FILES:
            raise ValueError(f"at most {MAX_FILES} files, {MAX_INCLUDES} deep, are read for one")
        return _Chain((*self.paths, path), self.read)


def _with_others(document: Mapping[str, Any], files: TaskFiles, chain: _Chain) -> dict[str, Any]:
    whole = {key: value for key, value in document.items() if key != "include"}
    if isinstance(services := whole.get("services"), Mapping):
        whole["services"] = {
            name: _with_base(str(name), service, files, chain) for name, service in services.items()
        }
    for item in each(document.get("include") or []):
        _add_included(whole, item, files, chain)
    return whole


def _add_included(whole: dict[str, Any], item: object, files: TaskFiles, chain: _Chain) -> None:
    """A name that both files define differently is refused."""
    fields = {"path": item} if isinstance(item, str) else mapping(item, "include")
    if "env_file" in fields:
        why = "variables are not read for an included file: write its values out"
        raise refusal("", "include", why)
    if set(fields) - {"path", "project_directory"}:
        raise refusal("", "include", "only `path` and `project_directory` are read")
    together: dict[str, Any] = {}
    home = fields.get("project_directory")
    for path in map(text, each(fields.get("path"))):
        home = posixpath.dirname(path) or "." if home is None else home
        together = merged(together, _read(path, text(home), files, chain, key="include"))
    for key, value in together.items():
        if key in ("version", "name") or str(key).startswith("x-"):
            continue
        if key not in _SECTIONS:
            whole.setdefault(key, value)  # refused by its name, later
            continue
        section = dict(mapping(whole.get(key), key))
        for name, settings in mapping(value, key).items():
            if section.setdefault(name, settings) != settings:
                raise refusal("", "include", f"{key}: {printable(name)} is there twice")
        whole[key] = section


def _with_base(name: str, service: Any, files: TaskFiles, chain: _Chain) -> Any:  # noqa: ANN401
    asked = service.get("extends") if isinstance(service, Mapping) else None
    if not isinstance(asked, Mapping) or asked.get("file") is None:
        return service
    path, base = text(asked["file"]), text(asked.get("service") or "")
    if set(asked) - {"file", "service"}:
        raise refusal(f"service {name}", "extends", "only `file` and `service` are read")
    home = posixpath.dirname(path) or "."
    whole = _read(path, home, files, chain, key="extends", where=f"service {name}")
    services = read_services(whole)
    if base not in services:
        why = f"{printable(path)} has no service {printable(base)}"
        raise refusal(f"service {name}", "extends", why)
    own = {key: value for key, value in service.items() if key != "extends"}
    return merged(services[base], own)


def _read(
    path: str, home: str, files: TaskFiles, chain: _Chain, *, key: str, where: str = ""
) -> dict[str, Any]:
    """Another file, its paths as seen from here."""
    try:
        if "$" in path or "$" in home:
            raise ValueError("its path has a reference, which is not known yet")
        found = files.path(path)
        parsed = read_yaml(files.read_text(found))
        if not isinstance(parsed, Mapping):
            raise ValueError("it is not a compose file")
        inner = TaskFiles(files.root, files.path(home))
        whole = _with_others(parsed, inner, chain.into(found))
    except CannotKeepError:
        raise
    except (OSError, ValueError) as error:
        raise refusal(where, key, f"{printable(path)}: {printable(reason(error))}") from error
    return whole if posixpath.normpath(home) == "." else _moved(whole, home)


# Where a file has paths: "*" is any service, secret, config or item
_PATHS: Final = frozenset(
    {
        ("secrets", "*", "file"),
        ("configs", "*", "file"),
        ("services", "*", "build"),
        ("services", "*", "build", "context"),
        ("services", "*", "env_file"),
        ("services", "*", "env_file", "path"),
        ("services", "*", "env_file", "*"),
        ("services", "*", "env_file", "*", "path"),
        ("services", "*", "volumes", "*", "source"),
    }
)
_MOUNT: Final = ("services", "*", "volumes", "*")
_BUILD: Final = ("services", "*", "build")


def _moved(value: Any, home: str, place: tuple[str, ...] = ()) -> Any:  # noqa: ANN401 - YAML
    """Prefix the relative paths of an included file with its directory."""
    if isinstance(value, list):
        return [_moved(item, home, (*place, "*")) for item in value]
    if isinstance(value, Mapping):
        if place == _MOUNT and value.get("type") != "bind":
            return value
        fields = {"context": ".", **value} if place == _BUILD else value
        is_named = len(place) == 1
        return {
            key: _moved(item, home, (*place, "*" if is_named else key))
            for key, item in fields.items()
        }
    is_path = place in _PATHS or (place == _MOUNT and str(value).startswith("."))
    if not is_path or not isinstance(value, str):
        return value
    source, colon, rest = value.partition(":") if place == _MOUNT else (value, "", "")
    if source.startswith(("/", "~", "\\")) or "://" in source:
        return value
    joined = f"{home}/{source}"
    return f"./{joined if '$' in joined else posixpath.normpath(joined)}{colon}{rest}"


# ---- `extends`


def read_services(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """All services, each with what it extends. Raises `CannotKeepError`."""
    written = mapping(document.get("services"), "services")
    services = {name: mapping(of, f"service {name}") for name, of in written.items()}
    return {name: _extended(name, services, ()) for name in services}


def running_services(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The services without a profile; no profile is active. Raises `CannotKeepError`."""
    services = read_services(document)
    running = {name: of for name, of in services.items() if not names_in(of.get("profiles"))}
    if not running:
        raise CannotKeepError("its compose file has no services")
    return running


def _extended(
    name: str, services: Mapping[str, Mapping[str, Any]], by: tuple[str, ...]
) -> Mapping[str, Any]:
    service = services[name]
    asked = service.get("extends")
    if asked is None:
        return service
    fields = {"service": asked} if isinstance(asked, str) else mapping(asked, "extends")
    base = text(fields.get("service") or "")
    if set(fields) - {"service"}:
        raise refusal(
            f"service {name}", "extends", "only a service of the same file can be extended"
        )
    if base not in services or base in (*by, name):
        why = "which does not exist" if base not in services else "which extends it"
        raise refusal(f"service {name}", "extends", f"it extends {base}, {why}")
    own = {key: value for key, value in service.items() if key != "extends"}
    return merged(_extended(base, services, (*by, name)), own)


def merged(
    base: Mapping[str, Any], own: Mapping[str, Any], *, by_name: bool = False
) -> dict[str, Any]:
    """Merged as by Compose: mappings are merged, lists appended, single values replaced.

    `by_name`: the keys are an author's names, as of variables.
    """
    whole = {**base, **own}
    for key in [key for key in own if key in base]:
        ours, theirs = own[key], base[key]
        if ours is None or theirs is None or key in _REPLACED:
            whole[key] = theirs if ours is None else ours
            continue
        has_names = not by_name and key in _MERGED_AS_MAPPINGS
        if has_names and not (isinstance(ours, list) and isinstance(theirs, list)):
            ours, theirs = _as_mapping(key, ours), _as_mapping(key, theirs)
        elif key == "env_file" and not by_name:
            ours, theirs = each(ours), each(theirs)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            whole[key] = merged(theirs, ours, by_name=has_names)
        elif isinstance(ours, list) and isinstance(theirs, list):
            whole[key] = [*(item for item in theirs if item not in ours), *ours]
        else:
            whole[key] = ours
    return whole


def _as_mapping(key: str, value: Any) -> Any:  # noqa: ANN401 - YAML
    if isinstance(value, Mapping):
        return value
    if key in ("depends_on", "networks"):
        waits = {"condition": "service_started"} if key == "depends_on" else None
        return dict.fromkeys(names_in(value), waits)
    return pairs(value)
