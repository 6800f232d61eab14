"""Which configurations of a sandbox are compose files, and reading them."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from belljar.compose.interpolate import MAX_CHARACTERS, MAX_DEPTH, MAX_NODES
from belljar.errors import PolicyError
from belljar.policy.regular import read_regular
from belljar.policy.yaml_tree import Reading, read_tree
from belljar.units import format_size, printable

COMPOSE_NAMES: Final = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
_LIKE_COMPOSE: Final = re.compile(r"[-.]compose\.ya?ml$")
_PROJECT: Final = re.compile(r"[a-z0-9_-]")
_SERVICES: Final = re.compile(rb"^[\"']?services[\"']?\s*:", re.MULTILINE)
MAX_BYTES: Final = 128 << 10
_YAML: Final = Reading(
    what="a compose file",
    max_depth=MAX_DEPTH,
    empty_values=True,
    plain_names=True,
    aliases=True,
    max_nodes=MAX_NODES,
    max_characters=MAX_CHARACTERS,
)


class NotReadError(ValueError):
    """Why a text is not read. `line` counts from 1."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.line = line


def read_yaml(text: str, *, step: Callable[[], None] = lambda: None) -> Any:  # noqa: ANN401 - YAML
    """The one document of a text; None where there is none.

    Raises `NotReadError`. `step`: see `read_tree`.
    """
    tree = read_tree(text, _YAML, step=step)
    for problem in tree.problems:
        message = f"{problem.field}: {problem.message}" if problem.field else problem.message
        raise NotReadError(message, problem.mark.line)
    return tree.value


def is_compose_name(config: str) -> bool:
    """Whether a file of this name is a compose file, as Inspect sees it."""
    name = Path(config).name
    return name in COMPOSE_NAMES or _LIKE_COMPOSE.search(name) is not None


def is_dockerfile_name(config: str) -> bool:
    """Likewise a Dockerfile."""
    path = Path(config)
    return "Dockerfile" in {path.stem, path.suffix.removeprefix(".")}


def beside(directory: Path) -> Path | None:
    """The compose file of a directory, if it has one; a link that leads nowhere is one too, which
    is refused when it is read."""
    return next((directory / name for name in COMPOSE_NAMES if os.path.lexists(directory / name)), None)


def as_document(config: BaseModel) -> dict[str, Any]:
    """Inspect's `ComposeConfig` as the file it stands for. It has no directory of its own."""
    from belljar.compose.task_files import DIRECTORY_KEY

    document = config.model_dump(by_alias=True, exclude_none=True)
    document.pop(DIRECTORY_KEY, None)
    return document


def read_document(path: Path) -> dict[str, Any]:
    """A compose file, parsed, with what it takes from other files (`with_others`), names for what
    it builds (`name_built`), and the directory that its relative paths are meant from
    (`DIRECTORY_KEY`).

    Raises `PolicyError` for one that is none: no regular file of at most `MAX_BYTES`, no UTF-8, or
    what `compose_yaml` refuses.
    """
    from belljar.compose.include import with_others
    from belljar.compose.task_files import files_of, mark_read, reason

    where = printable(str(path))
    try:
        content = read_regular(path.parent, path.name, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise _refused(f"is larger than {format_size(MAX_BYTES)}, the most that a compose file may have", where)
        parsed = read_yaml(content.decode("utf-8-sig"))
        if isinstance(parsed, dict):
            parsed = with_others(parsed, path.name, files_of(path.parent), read_yaml)
            parsed = mark_read(parsed, path.parent)
    except NotReadError as error:
        # Whatever else a file of this name holds is not shown: it may be anything.
        why = str(error) if _SERVICES.search(content) else "it is no YAML with `services`"
        raise _refused(f"can't be read: {why}", f"{where}:{error.line}") from error
    except UnicodeDecodeError as error:
        raise _refused("can't be read: it is not UTF-8", where) from error
    except FileNotFoundError as error:
        why = "a task's compose file is meant from the directory of the task's file"
        raise PolicyError("can't be read: no such file or directory", where=where, hint=why) from error
    except OSError as error:
        raise _refused(f"can't be read: {reason(error)}", where) from error
    except ValueError as error:
        raise _refused(f"can't be read: {printable(str(error), max_chars=300)}", where) from error
    if not isinstance(parsed, dict):
        raise _refused("is not a compose file", where)
    return name_built(parsed, path.resolve().parent.name)


def name_built(document: dict[str, Any], directory: str) -> dict[str, Any]:
    """The same, where a service that has `build` and no `image` has the image that
    `docker compose build` makes of it: `PROJECT-SERVICE`.

    Pure.

    With a Dockerfile of another name, arguments or a target, it gets a tag of its own (`_tag`).

    Source: compose-spec 04-version-and-name.md and build.md; compose-go's `NormalizeProjectName`
    and compose's `GetImageNameOrDefault`.
    """
    services = document.get("services")
    name = document.get("name") or directory
    if not isinstance(services, dict) or not isinstance(name, str) or "$" in name:
        return document
    project = "".join(_PROJECT.findall(name.lower())).lstrip("_-")
    named = {
        service: {**fields, "image": f"{project}-{service}{_tag(fields['build'])}"}
        for service, fields in services.items()
        if project and isinstance(fields, dict) and fields.get("build") is not None and not fields.get("image")
    }
    return {**document, "services": {**services, **named}}


def _tag(build: object) -> str:
    """Compose files of one directory may build different images for services of one name: Inspect
    gives each sample a project of its own.

    What distinguishes them is in the tag.
    """
    written = build if isinstance(build, Mapping) else {}
    decisive = {key: written[key] for key in ("dockerfile", "args", "target") if written.get(key)}
    if decisive in ({}, {"dockerfile": "Dockerfile"}):
        return ""
    return ":" + hashlib.sha256(json.dumps(written, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _refused(what: str, where: str) -> PolicyError:
    return PolicyError(what, where=where, hint="correct the compose file")
