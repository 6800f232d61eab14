"""What an index knows of a directory of packages, and how it says it.

Metadata is read from the files, with bounds, when it is first asked for.
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
from email.message import Message
from email.parser import BytesParser
from hashlib import sha256
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
    """What a file's name says. `tags` is a wheel's compatibility, empty for a source archive."""

    project: str
    version: Version
    tags: str = ""

    @property
    def is_wheel(self) -> bool:
        """A wheel rather than a source archive."""
        return bool(self.tags)


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


MAX_METADATA_BYTES: Final = 1 << 20
_MAX_MEMBERS: Final = 20_000
_API_VERSION: Final = "1.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """One file of a project; `metadata` and `requires_python` are empty if unknown."""

    file: StoredFile
    said: PackageFile
    sha256: str
    md5: str
    metadata: bytes
    requires_python: str

    @property
    def headers(self) -> Message:
        """The metadata's fields."""
        return BytesParser().parsebytes(self.metadata)

    @property
    def served_metadata(self) -> bool:
        """Whether the metadata has a file of its own (PEP 658: wheels only)."""
        return self.said.is_wheel and bool(self.metadata)

    @property
    def uploaded(self) -> str:
        """The file's time as ISO 8601."""
        return datetime.fromtimestamp(self.file.mtime_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z")


class Index:
    """The projects of a directory; files that aren't packages are left out."""

    def __init__(self, directory: Path, made: Iterable[StoredFile] = ()) -> None:
        self._files = PackageFiles(directory, "sha256", "md5", made=made)
        self._known: dict[str, Distribution] = {}
        self._by_project: dict[str, dict[str, StoredFile]] | None = None

    @property
    def projects(self) -> Mapping[str, Mapping[str, StoredFile]]:
        """Normal name → file name → file."""
        if self._by_project is None:
            self._by_project = {}
            for file in self._files.by_name.values():
                if said := parse_file_name(file.base):
                    self._by_project.setdefault(said.project, {})[file.base] = file
        return self._by_project

    def file(self, name: str) -> StoredFile | None:
        """The package file of this name."""
        said = parse_file_name(name)
        return self.projects.get(said.project, {}).get(name) if said else None

    async def describe(self, file: StoredFile) -> Distribution:
        """A file with its digests and metadata, worked out once. Raises `OSError`."""
        known = self._known.get(file.base)
        said = parse_file_name(file.base)
        if known is None and said is not None:
            known = self._known[file.base] = await self._described(file, said)
        if known is None:
            raise FileNotFoundError(file.name)
        return known

    async def _described(self, file: StoredFile, said: PackageFile) -> Distribution:
        digests, metadata = await self._files.digests(file), metadata_of(file, said)
        return Distribution(
            file=file,
            said=said,
            sha256=digests["sha256"],
            md5=digests["md5"],
            metadata=metadata,
            requires_python=str(
                BytesParser().parsebytes(metadata, headersonly=True).get("Requires-Python", "")
            ),
        )

    async def of_project(self, name: str) -> list[Distribution]:
        """A project's files, the oldest version first; none where there is no such project."""
        found = [
            await self.describe(file)
            for file in self.projects.get(canonicalize_name(name), {}).values()
        ]
        return sorted(found, key=lambda one: (one.said.version, one.file.base))


def metadata_of(file: StoredFile, said: PackageFile) -> bytes:
    """`METADATA` of a wheel, `PKG-INFO` of a source archive; empty if none is within bounds."""
    try:
        with file.open() as source:
            if file.base.endswith((".whl", ".zip")):
                with zipfile.ZipFile(source) as archive:
                    return _from_zip(archive, "METADATA" if said.is_wheel else "PKG-INFO")
            with tarfile.open(fileobj=source, mode="r|gz") as stream:
                for number, member in enumerate(stream):
                    if number >= _MAX_MEMBERS:
                        break
                    if (
                        member.isfile()
                        and member.name.count("/") == 1
                        and member.name.endswith("/PKG-INFO")
                    ):
                        opened = stream.extractfile(member)
                        return _bounded(opened.read(MAX_METADATA_BYTES + 1)) if opened else b""
                return b""
    except (
        OSError,
        zipfile.BadZipFile,
        tarfile.TarError,
        zlib.error,
        EOFError,
        ValueError,
        NotImplementedError,
        RuntimeError,
    ):
        return b""


def _from_zip(archive: zipfile.ZipFile, wanted: str) -> bytes:
    for info in archive.infolist()[:_MAX_MEMBERS]:
        folder, _, name = info.filename.rpartition("/")
        if (
            name == wanted
            and "/" not in folder
            and (wanted == "PKG-INFO" or folder.endswith(".dist-info"))
        ):
            with archive.open(info) as member:
                return _bounded(member.read(MAX_METADATA_BYTES + 1))
    return b""


def _bounded(content: bytes) -> bytes:
    return content if len(content) <= MAX_METADATA_BYTES else b""


def projects_html(names: Iterator[str]) -> bytes:
    """The list of all projects (PEP 503)."""
    return _page(
        "Simple index",
        (f'<a href="{html.escape(name)}/">{html.escape(name)}</a>' for name in names),
    )


def projects_json(names: Iterator[str]) -> bytes:
    """The list of all projects (PEP 691)."""
    return json.dumps(
        {"meta": {"api-version": _API_VERSION}, "projects": [{"name": name} for name in names]}
    ).encode()


def project_html(name: str, files: list[Distribution]) -> bytes:
    """A project's files (PEP 503, 592, 658)."""
    return _page(f"Links for {name}", (_link(one) for one in files))


def project_json(name: str, files: list[Distribution]) -> bytes:
    """A project's files (PEP 691, 700, 714)."""
    document = {
        "meta": {"api-version": _API_VERSION},
        "name": name,
        "versions": list(dict.fromkeys(str(one.said.version) for one in files)),
        "files": [_simple_entry(one) for one in files],
    }
    return json.dumps(document).encode()


def release_json(
    name: str, version: str, files: list[Distribution], base_url: str
) -> dict[str, object] | None:
    """`/pypi/NAME/json`, or of a `version`; `None`: there is no such version."""
    finals = [one for one in files if not one.said.version.is_prerelease] or files
    try:
        wanted = Version(version) if version else finals[-1].said.version
    except (InvalidVersion, IndexError):
        return None
    chosen = [one for one in files if one.said.version == wanted]
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
            releases.setdefault(str(one.said.version), []).append(_release_entry(one, base_url))
        document["releases"] = releases
    return document


def _info(one: Distribution, name: str) -> dict[str, object]:
    fields = one.headers
    return {
        "name": fields.get("Name", name),
        "version": str(one.said.version),
        "summary": fields.get("Summary"),
        "author": fields.get("Author"),
        "author_email": fields.get("Author-email"),
        "license": fields.get("License"),
        "home_page": fields.get("Home-page"),
        "keywords": fields.get("Keywords"),
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
        "packagetype": "bdist_wheel" if one.said.is_wheel else "sdist",
        "python_version": one.said.tags.partition("-")[0] or "source",
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
    head = (
        f'<meta name="pypi:repository-version" '
        f'content="{_API_VERSION}"><title>{html.escape(title)}</title>'
    )
    body = "".join(f"{line}<br>\n" for line in lines)
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>\n{body}</body></html>\n".encode()
