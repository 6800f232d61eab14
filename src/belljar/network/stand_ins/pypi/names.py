"""Names of Python packages and their files, read by `packaging` (PEP 440, 503, 427, 625)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from packaging.utils import (
    InvalidName,
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

MAX_FILE_NAME_CHARS: Final = 255
_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class PackageFile:
    """What a file's name says. `tags` is a wheel's compatibility, empty for a source archive."""

    project: str
    version: Version
    tags: str = ""

    @property
    def is_wheel(self) -> bool:
        """A wheel rather than a source archive."""
        return bool(self.tags)


def normal(name: str) -> str:
    """A project's name as PEP 503 compares it."""
    return canonicalize_name(name)


def parse_file_name(name: str) -> PackageFile | None:
    """What a package file's name says; `None` for anything else, and for what could be a path."""
    if len(name) > MAX_FILE_NAME_CHARS or not _FILE.fullmatch(name):
        return None
    try:
        if name.endswith(".whl"):
            project, version, _, _ = parse_wheel_filename(name)
            tags = "-".join(name.removesuffix(".whl").split("-")[-3:])
            return PackageFile(project, version, tags)
        project, version = parse_sdist_filename(name)
        return PackageFile(canonicalize_name(project, validate=True), version)
    except (InvalidWheelFilename, InvalidSdistFilename, InvalidVersion, InvalidName):
        return None
