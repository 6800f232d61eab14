"""The images that a compose file's services run, as far as they are known before there is a sample. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from belljar.compose.extends import with_extended
from belljar.compose.interpolate import interpolate
from belljar.compose.service import STAND_INS
from belljar.compose.words import CannotKeepError, mapping, names_in, text
from belljar.policy.reference import IMAGE_ID, parse_reference
from belljar.units import printable

_DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceImage:
    """What a service runs: `image` in its normal form, or why that is not known.

    `build`: of one that the file builds, the words for `belljar image build` (its context last, relative to the file).
    """

    service: str
    image: str = ""
    build: tuple[str, ...] = ()
    why: str = ""


def service_images(document: Mapping[str, Any]) -> tuple[ServiceImage, ...]:
    """Of each service that runs (no profile is active). Whatever else a cell can't keep of the file does not matter here.

    Raises `CannotKeepError` for a file without services.
    """
    try:
        written = mapping(document.get("services"), "services")
        services = with_extended({str(name): mapping(each, f"service {name}") for name, each in written.items()})
        running = [name for name, service in services.items() if not names_in(service.get("profiles"))]
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CannotKeepError(f"its compose file can't be read: {printable(str(error), max_chars=200)}") from error
    if not running:
        raise CannotKeepError("its compose file has no services")
    return tuple(_image(name, services[name]) for name in running)


def _image(name: str, service: Mapping[str, Any]) -> ServiceImage:
    build: tuple[str, ...] = ()
    only = {key: service[key] for key in ("image", "build") if service.get(key) is not None}
    try:
        settled = interpolate({"services": {name: only}}, {}, blanks=True).document["services"][name]
        image = text(settled.get("image") or "")
        if image and IMAGE_ID.fullmatch(image) is None:
            image = parse_reference(image).familiar
        if "build" in settled:
            build = _build_words(settled["build"], image)
    except (TypeError, ValueError, AttributeError, RecursionError) as error:
        return ServiceImage(service=name, build=build, why=printable(str(error), max_chars=300))
    return ServiceImage(service=name, image=_DEFAULT if image in STAND_INS else image, build=build)


def _build_words(build: object, image: str) -> tuple[str, ...]:
    """The words that say to `belljar image build` what the file says to `docker compose build`. Raises `CannotKeepError`."""
    if image in STAND_INS:
        raise CannotKeepError("it is built, and nothing names what is built")
    fields = {"context": build} if isinstance(build, str) else mapping(build, "build")
    context = posixpath.normpath(text(fields.get("context") or "."))
    words = ["-t", image]
    if dockerfile := fields.get("dockerfile"):
        words += ["-f", posixpath.normpath(posixpath.join(context, text(dockerfile)))]
    if target := fields.get("target"):
        words += ["--target", text(target)]
    for argument in _arguments(fields.get("args")):
        words += ["--build-arg", argument]
    return (*words, context)


def _arguments(args: object) -> list[str]:
    if isinstance(args, Mapping):
        return [f"{name}={text(value)}" for name, value in args.items() if value is not None]
    return [text(each) for each in names_in(args)]
