"""Reads compose files, which name files of their task below one root, and no others here.

Source: compose-spec 04-version-and-name.md, 14-include.md, build.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from belljar.compose.model import Build, read_part
from belljar.compose.values import OUTSIDE_TASK, CannotKeepError, each, mapping, refusal, text
from belljar.dataclass import dataclass, field, replace
from belljar.errors import PolicyError
from belljar.policy.files import read_regular, reason
from belljar.policy.reference import IMAGE_ID, parse_reference
from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.policy.yaml_tree import Problem

# Belljar's image for tasks that name none, or the one of Inspect's Docker provider.
GENERIC_IMAGE: Final = "inspect"
INSPECTS_IMAGE: Final = "aisiuk/inspect-tool-support"
GENERIC_DETAIL: Final = (
    f"Belljar's image `{GENERIC_IMAGE}` instead of `{INSPECTS_IMAGE}`: Debian 12 with its Python "
    "3.11, as root in `/`, without a browser and that image's tool server"
)
COMPOSE_NAMES: Final = ("compose.yaml", "compose.yml", "docker-compose.yaml", "docker-compose.yml")
DIRECTORY_KEY: Final = "x-belljar-directory"  # of the directory that a parsed file was read from
HOME_KEY: Final = "x-belljar-home"  # an included file's directory, in each of its services
MAX_SERVICES: Final = 64  # each is a cell of the sample's range
MAX_BYTES: Final = 128 << 10  # the largest of inspect_evals has 3 KiB
MAX_TEXT_BYTES: Final = 256 << 10  # of any further file
MAX_INCLUDES: Final = 32  # repeats counted: theagentcompany's have five at most
_LIKE_COMPOSE: Final = re.compile(r"[-.]compose\.ya?ml$")
_PROJECT: Final = re.compile(r"[a-z0-9_-]")  # what Compose keeps of a project's name
# A file that has them may be quoted in an error: any other may hold a secret.
_SERVICES: Final = re.compile(r"^[\"']?services[\"']?\s*:", re.MULTILINE)
READ_HERE: Final[set[str]] = set()  # directories and roots of the files read so far
_MAX_ABOVE: Final = 8  # directories above a compose file that are looked at for its package


@dataclass(frozen=True, slots=True)
class TaskFiles:
    """Written paths begin in `directory`, below the root."""

    root: Path
    directory: str = "."

    def path(self, written: str) -> str:
        """Return a written path from the root. Raises `ValueError`."""
        if not written or written.startswith(("/", "~", "\\")) or written[1:2] == ":":
            raise ValueError(OUTSIDE_TASK)
        found = posixpath.normpath(posixpath.join(self.directory, written))
        if found == ".." or found.startswith(("../", "/")) or "\0" in found:
            raise ValueError(OUTSIDE_TASK)
        return found

    def of(self, service: Mapping[str, Any]) -> TaskFiles:
        home = service.get(HOME_KEY)
        return self if home is None else TaskFiles(self.root, str(home))

    def read_text(self, path: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
        """Return a text. Raises `OSError`, `ValueError`."""
        # One byte more than is accepted shows that the file is longer.
        content = read_regular(self.root, path, max_bytes + 1)
        if len(content) > max_bytes:
            raise ValueError(f"it is larger than {format_size(max_bytes)}")
        try:
            # Editors on Windows write a byte order mark, which is no part of the text.
            return content.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise ValueError("it is not UTF-8") from None


def files_of(directory: Path) -> TaskFiles:
    """Raises `PolicyError` for the home directory and `/`."""
    own = directory.resolve()
    # As a root, either would open all of it to a compose file.
    barred = {Path("/"), Path.home().resolve()}
    if own in barred:
        raise PolicyError(
            "a task's files can't be read from here: all of it would be open to the task",
            where=printable(str(own)),
            hint="put the task into a directory of its own",
        )
    for candidate in [own, *own.parents][: _MAX_ABOVE + 1]:
        if candidate in barred:
            break
        if os.path.lexists(candidate / "__init__.py"):
            return TaskFiles(candidate, own.relative_to(candidate).as_posix())
    return TaskFiles(own)


def mark_read(document: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    own = directory.resolve()
    READ_HERE.update((str(own), str(files_of(own).root)))
    return {**document, DIRECTORY_KEY: str(own)}


def files_named_by(document: Mapping[str, Any]) -> TaskFiles | None:
    directory = document.get(DIRECTORY_KEY)
    return files_of(Path(directory)) if isinstance(directory, str) and directory else None


# ---- reading


def is_compose_name(config: str) -> bool:
    name = Path(config).name
    return name in COMPOSE_NAMES or _LIKE_COMPOSE.search(name) is not None


def is_dockerfile_name(config: str) -> bool:
    path = Path(config)
    return "Dockerfile" in {path.stem, path.suffix.removeprefix(".")}


def beside(directory: Path) -> Path | None:
    # A broken link counts: it is reported, and the next name is not read in its place.
    return next(filter(os.path.lexists, map(directory.joinpath, COMPOSE_NAMES)), None)


class NotReadError(ValueError):
    """The text can't be read; `line` counts from 1."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(": ".join(filter(None, (problem.field, problem.message))))
        self.line = problem.mark.line


def read_yaml(text: str) -> Any:  # noqa: ANN401 - YAML
    """Raises `NotReadError`."""
    from belljar.policy.yaml_tree import read_tree

    tree = read_tree(text, is_compose=True)
    for problem in tree.problems:
        raise NotReadError(problem)
    return tree.value


def read_document(path: Path) -> dict[str, Any]:
    """Read a file and its `include`. Raises `PolicyError`."""
    where, why, content = printable(str(path)), "", ""
    try:
        content = TaskFiles(path.parent).read_text(path.name, MAX_BYTES)
        parsed = read_yaml(content)
        if isinstance(parsed, dict):
            whole = mark_read(_with_included(parsed, files_of(path.parent)), path.parent)
            return name_built(whole, path.resolve().parent.name)
        why = "is not a compose file"
    except NotReadError as error:
        # Whatever else a file of this name holds is not shown: it may be anything.
        why = str(error) if _SERVICES.search(content) else "it is no YAML with `services`"
        where, why = f"{where}:{error.line}", f"can't be read: {why}"
    except (OSError, ValueError) as error:
        why = f"can't be read: {printable(reason(error), max_chars=300)}"
    raise PolicyError(why, where=where, hint="correct the compose file")


def name_built(document: dict[str, Any], directory: str) -> dict[str, Any]:
    """Name images as Docker does, `PROJECT-SERVICE`; other Dockerfiles get tags."""
    services = document.get("services")
    name = document.get("name") or directory
    # A name with a reference isn't known before a sample is.
    if not isinstance(services, dict) or not isinstance(name, str) or "$" in name:
        return document
    project = "".join(_PROJECT.findall(name.lower())).lstrip("_-")
    named = {
        service: {**fields, "image": f"{project}-{service.lower()}{_tag(fields['build'])}"}
        for service, fields in services.items()
        if project and isinstance(fields, dict) and not fields.get("image")
        if fields.get("build") is not None
    }
    return {**document, "services": {**services, **named}}


def dockerfile_document(path: Path) -> dict[str, Any]:
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


# The parts of a `build` by which two images of one directory differ.
_DECISIVE: Final = ("dockerfile", "dockerfile_inline", "args", "target")


def _tag(build: object) -> str:
    # Files of one directory may build different images for services of one name
    written = build if isinstance(build, Mapping) else {}
    decisive = {key: written[key] for key in _DECISIVE if written.get(key)}
    if decisive in ({}, {"dockerfile": "Dockerfile"}):
        return ""
    whole = json.dumps(written, sort_keys=True, default=str)
    return ":" + hashlib.sha256(whole.encode()).hexdigest()[:12]


def services_of(document: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Raises `CannotKeepError` for no services, or too many."""
    written = mapping(document.get("services"), "services")
    if not 0 < len(written) <= MAX_SERVICES:
        number = f"{len(written):,} services; at most {MAX_SERVICES}" if written else "no services"
        raise CannotKeepError(f"its compose file has {number}")
    return {name: mapping(of, f"service {name}") for name, of in written.items()}


# ---- `include`


def _with_included(document: Mapping[str, Any], files: TaskFiles) -> dict[str, Any]:
    whole = _at_home({key: value for key, value in document.items() if key != "include"})
    items = each(document.get("include") or [])
    if len(items) > MAX_INCLUDES:
        raise refusal("", "include", f"at most {MAX_INCLUDES} files are read")
    for item in items:
        fields = {"path": item} if isinstance(item, str) else mapping(item, "include")
        listed = each(fields.get("path"))
        if set(fields) != {"path"} or len(listed) != 1 or "$" in str(listed):
            raise refusal("", "include", "only its `path` is read, with one file and no reference")
        try:
            found = files.path(text(listed[0]))
            parsed = read_yaml(files.read_text(found))
            if not isinstance(parsed, dict) or parsed.get("include"):
                raise ValueError("it is not a compose file without `include`")
        except (OSError, ValueError) as error:
            shown = printable(str(listed[0]), max_chars=100)
            raise refusal("", "include", f"{shown}: {printable(reason(error))}") from error
        for key, value in _at_home(parsed, posixpath.dirname(found) or ".").items():
            if key in ("version", "name") or str(key).startswith("x-"):
                continue
            if key not in ("services", "volumes", "networks"):
                whole.setdefault(key, value)  # refused by its name, later
                continue
            section = whole[key] = dict(mapping(whole.get(key), key))
            for name, settings in mapping(value, key).items():
                if section.setdefault(name, settings) != settings:
                    raise refusal("", "include", f"{key}: {printable(name)} is there twice")
    return whole


def _at_home(document: dict[str, Any], home: str = "") -> dict[str, Any]:
    if not isinstance(services := document.get("services"), Mapping):
        return document
    placed: dict[Any, Any] = dict(services)
    for name, fields in services.items():
        if isinstance(fields, Mapping):
            placed[name] = {key: value for key, value in fields.items() if key != HOME_KEY}
            placed[name] |= {HOME_KEY: home} if home else {}
    return {**document, "services": placed}


# ---- images and builds


def image_of(name: str) -> str:
    """Return a store's image, or "". Raises `ValueError`."""
    if not name or IMAGE_ID.fullmatch(name):
        return name
    reference = parse_reference(name)
    is_inspects = replace(reference, tag="", digest="").familiar == INSPECTS_IMAGE
    return GENERIC_IMAGE if is_inspects else reference.familiar


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBuild:
    """Paths are below `root`; `inline` is a text."""

    image: str
    root: str
    context: str
    dockerfile: str
    args: Mapping[str, str] = field(hash=False)
    target: str = ""
    inline: str = ""


def builds_of(document: Mapping[str, Any]) -> tuple[ServiceBuild, ...]:
    """Raises `CannotKeepError`."""
    root, found = files_named_by(document), list[ServiceBuild]()
    for name, service in services_of(document).items():
        image, written = text(service.get("image") or ""), service.get("build")
        if root is None or written is None or not image:
            continue
        files, context = root.of(service), ""
        try:
            build = read_part(Build, {"context": written} if isinstance(written, str) else written)
            context = build.context or "."
            # Compose also takes a repository's address, which would need a network.
            if "://" in context or context.startswith(("git@", "github.com/")):
                raise ValueError("a build's context is a directory of the task")
            dockerfile = posixpath.join(context, build.dockerfile or "Dockerfile")
            found.append(
                ServiceBuild(
                    image=parse_reference(image).familiar,
                    root=str(files.root),
                    context=files.path(context),
                    dockerfile=files.path(dockerfile),
                    args=build.args,
                    target=build.target,
                    inline=build.dockerfile_inline,
                )
            )
        except ValueError as error:
            why = f"{context}: {error}" if context else str(error)
            raise refusal(f"service {name}", "build", why) from None
    return tuple(found)
