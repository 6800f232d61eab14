"""Names of Python packages and their files: PEP 503 (names), PEP 427 (wheels), PEP 625 (source
archives), PEP 440 (order of versions).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

_PROJECT: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._]*[A-Za-z0-9])?"
_VERSION: Final = r"[0-9][A-Za-z0-9_.!+]{0,127}"
_TAG: Final = r"[A-Za-z0-9_.]+"
_WHEEL: Final = re.compile(
    rf"({_PROJECT})-({_VERSION})(?:-[0-9]{_TAG}|-[0-9])?-({_TAG}-{_TAG}-{_TAG})\.whl", re.ASCII
)
_SDIST: Final = re.compile(
    rf"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)-({_VERSION})\.(?:tar\.gz|zip)", re.ASCII
)
_ORDER: Final = re.compile(
    r"(?:(\d+)!)?(\d+(?:\.\d+)*)(?:[-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?(\d*))?"
    r"(?:[-_.]?(?:post|rev|r)[-_.]?(\d*))?(?:[-_.]?(dev)[-_.]?(\d*))?(?:\+.*)?",
    re.ASCII,
)
MAX_FILE_NAME_CHARS: Final = 255


@dataclass(frozen=True, slots=True)
class PackageFile:
    """What a file's name says. `tags` is a wheel's compatibility, empty for a source archive."""

    project: str
    version: str
    tags: str = ""

    @property
    def is_wheel(self) -> bool:
        """A wheel rather than a source archive."""
        return bool(self.tags)


def normal(name: str) -> str:
    """A project's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_file_name(name: str) -> PackageFile | None:
    """What a package file's name says; `None` for anything else."""
    if len(name) > MAX_FILE_NAME_CHARS:
        return None
    if wheel := _WHEEL.fullmatch(name):
        return PackageFile(normal(wheel[1]), wheel[2].replace("_", "-"), wheel[3])
    if sdist := _SDIST.fullmatch(name):
        return PackageFile(normal(sdist[1]), sdist[2].replace("_", "-"))
    return None


def version_order(version: str) -> tuple[object, ...]:
    """A key that sorts versions by PEP 440, a final one above its pre-releases.

    One that isn't such a version comes first.
    """
    match = _ORDER.fullmatch(version.lower().removeprefix("v"))
    if match is None or len(version) > 128:
        return (0, version)
    release = [int(number) for number in match[2].split(".")]
    while len(release) > 1 and release[-1] == 0:
        release.pop()
    stage = {"a": 0, "alpha": 0, "b": 1, "beta": 1}.get(match[3] or "", 2)
    post = -1 if match[5] is None else int(match[5] or 0)
    is_dev_of_final = match[6] and match[3] is None and post < 0
    before = (-1, 0) if is_dev_of_final else (stage, int(match[4] or 0)) if match[3] else (3, 0)
    dev = (0, int(match[7] or 0)) if match[6] else (1, 0)
    return (1, int(match[1] or 0), tuple(release), before, post, dev)


def is_prerelease(version: str) -> bool:
    """Whether installers leave a version out unless asked for it."""
    match = _ORDER.fullmatch(version.lower().removeprefix("v"))
    return match is not None and bool(match[3] or match[6])
