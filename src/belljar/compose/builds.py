"""The images of a compose file's services, and how the file builds them. Pure.

Also a Dockerfile alone, as the compose file that Inspect makes of it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from belljar.compose.document import name_built
from belljar.compose.extends import read_services
from belljar.compose.interpolate import interpolate
from belljar.compose.service import STAND_INS
from belljar.compose.task_files import files_named_by, mark_read
from belljar.compose.words import CannotKeepError, mapping, names_in, refusal, text
from belljar.policy.reference import IMAGE_ID, parse_reference
from belljar.units import printable

_KEYS: Final = frozenset({"context", "dockerfile", "args", "target"})
_WITHOUT_EFFECT: Final = frozenset(
    {"cache_from", "cache_to", "labels", "no_cache", "platforms", "pull", "shm_size", "tags", "provenance", "sbom"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceBuild:
    """An image to build.

    `context` and `dockerfile` are paths below `root`, which nothing of the build leaves.
    """

    image: str
    root: str
    context: str
    dockerfile: str
    args: Mapping[str, str]
    target: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def read_build(name: str, service: Mapping[str, Any], document: Mapping[str, Any], image: str) -> ServiceBuild | None:
    """What `build` of a service asks for; None when it has none or the file was read from no
    directory.

    Raises `CannotKeepError` for a path that leads out of the task's files, and for a key that
    decides the image and is not known here.
    """
    files, written = files_named_by(document), service.get("build")
    if written is None or files is None:
        return None
    where = f"service {name}"
    build = {"context": written} if isinstance(written, str) else mapping(written, f"{where}: build")
    extra = sorted(str(key) for key in build if key not in _KEYS | _WITHOUT_EFFECT and not str(key).startswith("x-"))
    if extra:
        raise refusal(where, "build", f"{', '.join(extra)}: not known to builds here")
    context = text(build.get("context") or ".")
    dockerfile = text(build.get("dockerfile") or "Dockerfile")
    if "://" in context or context.startswith(("git@", "github.com/")):
        raise refusal(where, "build", f"{context}: a build's context is a directory of the task")
    try:
        below = files.path(context)
        return ServiceBuild(
            image=image,
            root=str(files.root),
            context=below,
            dockerfile=files.path(posixpath.join(context, dockerfile)),
            args=_args(build.get("args")),
            target=text(build.get("target") or ""),
        )
    except ValueError as error:
        raise refusal(where, "build", f"{context}: {error}") from None


def builds_of(document: Mapping[str, Any]) -> tuple[ServiceBuild, ...]:
    """What the services that run ask to be built. Raises `CannotKeepError`."""
    found = []
    for name, service in read_services(document).items():
        image = text(service.get("image") or "")
        if image and not names_in(service.get("profiles")):
            found.append(read_build(name, service, document, parse_reference(image).familiar))
    return tuple(build for build in found if build is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceImage:
    """What a service runs: `image` in its normal form, and how the file builds it; or why that is
    not known."""

    service: str
    image: str = ""
    build: ServiceBuild | None = None
    why: str = ""


def service_images(document: Mapping[str, Any]) -> tuple[ServiceImage, ...]:
    """Of each service that runs (no profile is active).

    Whatever else a cell can't keep of the file does not matter here.

    Raises `CannotKeepError` for a file without services.
    """
    try:
        services = read_services(document)
        running = [name for name, service in services.items() if not names_in(service.get("profiles"))]
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CannotKeepError(f"its compose file can't be read: {printable(str(error), max_chars=200)}") from error
    if not running:
        raise CannotKeepError("its compose file has no services")
    return tuple(_image(name, services[name], document) for name in running)


def _image(name: str, service: Mapping[str, Any], document: Mapping[str, Any]) -> ServiceImage:
    only = {key: service[key] for key in ("image", "build") if service.get(key) is not None}
    try:
        settled = interpolate({"services": {name: only}}, {}, blanks=True).document["services"][name]
        image = text(settled.get("image") or "")
        if image and IMAGE_ID.fullmatch(image) is None:
            image = parse_reference(image).familiar
        if "build" in settled and image in STAND_INS:
            raise CannotKeepError("it is built, and nothing names what is built")
        build = read_build(name, settled, document, image)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        return ServiceImage(service=name, why=printable(str(error), max_chars=300))
    return ServiceImage(service=name, image="default" if image in STAND_INS else image, build=build)


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
    document = {"services": {"default": service}}
    if path.is_file():
        document = mark_read(document, directory)
    return name_built(document, directory.name)


def _args(written: Any) -> dict[str, str]:  # noqa: ANN401 - YAML
    """A mapping, or a list of `NAME=VALUE`.

    A name alone asks for this host's environment, which a task gets nothing of.
    """
    if written is None:
        return {}
    if isinstance(written, Mapping):
        return {str(name): text(value) for name, value in written.items() if value is not None}
    if not isinstance(written, list):
        raise ValueError("its args are neither a mapping nor a list")
    pairs = (str(word).partition("=") for word in written)
    return {name: value for name, equals, value in pairs if equals}
