"""The images that a compose file's services run, as far as they are known before there is a sample.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from belljar.compose.builds import ServiceBuild, read_build
from belljar.compose.extends import with_extended
from belljar.compose.interpolate import interpolate
from belljar.compose.service import STAND_INS
from belljar.compose.words import CannotKeepError, mapping, names_in, text
from belljar.policy.reference import IMAGE_ID, parse_reference
from belljar.units import printable

_DEFAULT: Final = "default"


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
        written = mapping(document.get("services"), "services")
        services = with_extended({str(name): mapping(each, f"service {name}") for name, each in written.items()})
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
    return ServiceImage(service=name, image=_DEFAULT if image in STAND_INS else image, build=build)
