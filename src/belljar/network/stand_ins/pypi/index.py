"""An index of a directory of packages, and its pages.

Metadata is read from the files, with bounds, on first use.
"""

from __future__ import annotations

import html
import json
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.parser import BytesParser
from functools import cached_property
from hashlib import sha256
from itertools import islice
from pathlib import Path
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

from belljar.network.stand_ins.files import StoredFile
from belljar.network.stand_ins.registry import PackageFiles

MAX_FILE_NAME_CHARS: Final = 255
_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class PackageFile:
    """A parsed file name; `tags`: a wheel's compatibility."""

    project: str
    version: Version
    tags: str = ""

    @property
    def is_wheel(self) -> bool:
        """A wheel, not a source archive."""
        return bool(self.tags)


def parse_file_name(name: str) -> PackageFile | None:
    """`None` for anything else, and what could be a path."""
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


MAX_METADATA_BYTES: Final = 1 << 20
_MAX_MEMBERS: Final = 20_000
_API_VERSION: Final = "1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One file; `metadata`, `requires_python`: empty if unknown."""

    file: StoredFile
    named: PackageFile
    sha256: str
    md5: str
    metadata: bytes
    requires_python: str

    @property
    def served_metadata(self) -> bool:
        """In a file of its own (PEP 658: wheels only)."""
        return self.named.is_wheel and bool(self.metadata)

    @property
    def uploaded(self) -> str:
        """The file's time as ISO 8601."""
        return datetime.fromtimestamp(self.file.mtime_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z")


class Index:
    """A directory's projects; other files are left out."""

    def __init__(self, directory: Path, made: Iterable[StoredFile] = ()) -> None:
        self._files = PackageFiles(directory, "sha256", "md5", made=made)
        self._known: dict[str, Distribution] = {}

    @cached_property
    def projects(self) -> Mapping[str, Mapping[str, StoredFile]]:
        """Normal name → file name → file."""
        found: dict[str, dict[str, StoredFile]] = {}
        for file in self._files.by_name.values():
            if named := parse_file_name(file.base):
                found.setdefault(named.project, {})[file.base] = file
        return found

    def file(self, name: str) -> StoredFile | None:
        """The package file of this name."""
        named = parse_file_name(name)
        return self.projects.get(named.project, {}).get(name) if named else None

    async def describe(self, file: StoredFile) -> Distribution:
        """Worked out once. Raises `OSError`."""
        known = self._known.get(file.base)
        if known is not None:
            return known
        named = parse_file_name(file.base)
        if named is None:
            raise FileNotFoundError(file.name)
        digests, metadata = await self._files.digests(file), metadata_of(file, named)
        fields = BytesParser().parsebytes(metadata, headersonly=True)
        known = self._known[file.base] = Distribution(
            file=file,
            named=named,
            sha256=digests["sha256"],
            md5=digests["md5"],
            metadata=metadata,
            requires_python=str(fields.get("Requires-Python", "")),
        )
        return known

    async def of_project(self, name: str) -> list[Distribution]:
        """A project's files, the oldest version first."""
        files = self.projects.get(canonicalize_name(name), {}).values()
        found = [await self.describe(file) for file in files]
        return sorted(found, key=lambda one: (one.named.version, one.file.base))


# `TypeError`: how `tarfile` ends where a gzip header is cut.
_BROKEN: Final = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, TypeError)


def metadata_of(file: StoredFile, named: PackageFile) -> bytes:
    """`METADATA` or `PKG-INFO`; empty if none is within bounds."""
    wanted = "METADATA" if named.is_wheel else "PKG-INFO"
    try:
        with file.open() as source:
            if file.base.endswith((".whl", ".zip")):
                with zipfile.ZipFile(source) as archive:
                    return _from_zip(archive, wanted)
            with tarfile.open(fileobj=source, mode="r|gz") as stream:
                for member in islice(stream, _MAX_MEMBERS):
                    folder, _, name = member.name.rpartition("/")
                    if member.isfile() and folder and "/" not in folder and name == wanted:
                        opened = stream.extractfile(member)
                        return _bounded(opened.read(MAX_METADATA_BYTES + 1)) if opened else b""
    except (OSError, ValueError, RuntimeError, *_BROKEN):
        pass
    return b""


def _from_zip(archive: zipfile.ZipFile, wanted: str) -> bytes:
    for info in archive.infolist()[:_MAX_MEMBERS]:
        folder, _, name = info.filename.rpartition("/")
        is_place = wanted == "PKG-INFO" or folder.endswith(".dist-info")
        if name == wanted and "/" not in folder and is_place:
            with archive.open(info) as member:
                return _bounded(member.read(MAX_METADATA_BYTES + 1))
    return b""


def _bounded(content: bytes) -> bytes:
    return content if len(content) <= MAX_METADATA_BYTES else b""


def projects_html(names: Iterable[str]) -> bytes:
    """The list of all projects (PEP 503)."""
    shown = map(html.escape, names)
    return _page("Simple index", (f'<a href="{name}/">{name}</a>' for name in shown))


def projects_json(names: Iterable[str]) -> bytes:
    """The list of all projects (PEP 691)."""
    projects = [{"name": name} for name in names]
    return json.dumps({"meta": {"api-version": _API_VERSION}, "projects": projects}).encode()


def project_html(name: str, files: list[Distribution]) -> bytes:
    """A project's files (PEP 503, 592, 658)."""
    return _page(f"Links for {name}", (_link(one) for one in files))


def project_json(name: str, files: list[Distribution]) -> bytes:
    """A project's files (PEP 691, 700, 714)."""
    document = {
        "meta": {"api-version": _API_VERSION},
        "name": name,
        "versions": list(dict.fromkeys(str(one.named.version) for one in files)),
        "files": [_simple_entry(one) for one in files],
    }
    return json.dumps(document).encode()


def release_json(
    name: str, version: str, files: list[Distribution], base_url: str
) -> dict[str, object] | None:
    """`/pypi/NAME/json`; `None`: there is no such version."""
    finals = [one for one in files if not one.named.version.is_prerelease] or files
    try:
        wanted = Version(version) if version else finals[-1].named.version
    except (InvalidVersion, IndexError):
        return None
    chosen = [one for one in files if one.named.version == wanted]
    if not chosen:
        return None
    info = _info(next((one for one in chosen if one.metadata), chosen[0]), name)
    document: dict[str, object] = {
        "info": info,
        "last_serial": len(files),
        "urls": [_release_entry(one, base_url) for one in chosen],
        "vulnerabilities": [],
    }
    if not version:
        releases: dict[str, list[dict[str, object]]] = {}
        for one in files:
            releases.setdefault(str(one.named.version), []).append(_release_entry(one, base_url))
        document["releases"] = releases
    return document


def _info(one: Distribution, name: str) -> dict[str, object]:
    fields = BytesParser().parsebytes(one.metadata)
    texts = ("Summary", "Author", "Author-email", "License", "Home-page", "Keywords")
    return {
        "name": fields.get("Name", name),
        "version": str(one.named.version),
        **{field.lower().replace("-", "_"): fields.get(field) for field in texts},
        "classifiers": fields.get_all("Classifier", []),
        "description": fields.get("Description") or fields.get_payload() or "",
        "description_content_type": fields.get("Description-Content-Type"),
        "requires_dist": fields.get_all("Requires-Dist"),
        "requires_python": one.requires_python or None,
        "provides_extra": fields.get_all("Provides-Extra"),
        "yanked": False,
        "yanked_reason": None,
    }


def _release_entry(one: Distribution, base_url: str) -> dict[str, object]:
    return {
        "filename": one.file.base,
        "url": f"{base_url}/packages/{one.file.base}",
        "size": one.file.size_bytes,
        "digests": {"sha256": one.sha256, "md5": one.md5},
        "md5_digest": one.md5,
        "packagetype": "bdist_wheel" if one.named.is_wheel else "sdist",
        "python_version": one.named.tags.partition("-")[0] or "source",
        "requires_python": one.requires_python or None,
        "upload_time_iso_8601": one.uploaded,
        "yanked": False,
        "yanked_reason": None,
    }


def _simple_entry(one: Distribution) -> dict[str, object]:
    entry: dict[str, object] = {
        "filename": one.file.base,
        "url": f"../../packages/{one.file.base}",
        "hashes": {"sha256": one.sha256},
        "size": one.file.size_bytes,
        "upload-time": one.uploaded,
        "yanked": False,
    }
    if one.requires_python:
        entry["requires-python"] = one.requires_python
    metadata = {"sha256": sha256(one.metadata).hexdigest()} if one.served_metadata else False
    # No `dist-info-metadata`: pip before 23.1 fails at a mapping there (PEP 714), and the real
    # index has it under this name.
    return {**entry, "core-metadata": metadata, "data-dist-info-metadata": metadata}


def _link(one: Distribution) -> str:
    attributes = f'href="../../packages/{html.escape(one.file.base)}#sha256={one.sha256}"'
    if one.requires_python:
        attributes += f' data-requires-python="{html.escape(one.requires_python)}"'
    if one.served_metadata:
        digest = f"sha256={sha256(one.metadata).hexdigest()}"
        attributes += f' data-dist-info-metadata="{digest}" data-core-metadata="{digest}"'
    return f"<a {attributes}>{html.escape(one.file.base)}</a>"


def _page(title: str, lines: Iterator[str]) -> bytes:
    version = f'<meta name="pypi:repository-version" content="{_API_VERSION}">'
    head = f"{version}<title>{html.escape(title)}</title>"
    body = "".join(f"{line}<br>\n" for line in lines)
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>\n{body}</body></html>\n".encode()
