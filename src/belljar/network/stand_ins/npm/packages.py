"""Packed npm packages of a directory, as a registry's documents.

<https://github.com/npm/registry/blob/main/docs/responses/package-metadata.md>
"""

from __future__ import annotations

import base64
import codecs
import re
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final

from belljar.network.stand_ins.files import StoredFile
from belljar.network.stand_ins.registry import PackageFiles
from belljar.network.stand_ins.web import parse_json

MAX_MANIFEST_BYTES: Final = 1 << 20
_MAX_MEMBERS: Final = 50_000
_PART: Final = r"[a-z0-9~_-][a-z0-9._~-]*"
_NAME: Final = re.compile(rf"(?:@{_PART}/)?{_PART}", re.ASCII | re.IGNORECASE)
_VERSION: Final = re.compile(
    r"(\d{1,16})\.(\d{1,16})\.(\d{1,16})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII
)
_DEPENDENCIES: Final = ("dependencies", "optionalDependencies", "devDependencies")
_PEERS: Final = ("bundleDependencies", "peerDependencies", "peerDependenciesMeta")
_PLACES: Final = ("bin", "directories", "dist", "engines", "os", "cpu", "libc", "funding")
_ABOUT: Final = ("name", "version", "deprecated", "hasInstallScript")
_ABBREVIATED: Final = (*_ABOUT, *_DEPENDENCIES, *_PEERS, *_PLACES)
_INSTALL_SCRIPTS: Final = frozenset({"preinstall", "install", "postinstall"})


class PackageError(ValueError):
    """Why a file is no packed npm package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One version: its file and its `package.json`."""

    file: StoredFile
    manifest: Mapping[str, Any]
    name: str  # With its scope
    version: str

    @property
    def tarball(self) -> str:
        """The file name that registries give it."""
        return f"{self.name.rpartition('/')[2]}-{self.version}.tgz"


def is_name(name: str) -> bool:
    """One that a registry takes, old ones with capitals too."""
    return len(name) <= 214 and _NAME.fullmatch(name) is not None


def version_order(version: str) -> tuple[object, ...]:
    """A sort key (semver.org, 11); what is none comes first."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (0, version)
    release, pre_release = tuple(int(match[n]) for n in (1, 2, 3)), match[4]
    if pre_release is None:
        return (1, release, 1, ())
    parts = (
        (0, int(part), "") if part.isdigit() and len(part) < 20 else (1, 0, part)
        for part in pre_release.split(".")
    )
    return (1, release, 0, tuple(parts))


def read_package(file: StoredFile) -> Package:
    """By its `package.json`, one directory deep. Raises `PackageError`."""
    try:
        with file.open() as source, tarfile.open(fileobj=source, mode="r|gz") as stream:
            content = _manifest_in(stream)
        # Npm takes a byte order mark too
        manifest = parse_json(content.removeprefix(codecs.BOM_UTF8))
    except (OSError, tarfile.TarError, zlib.error, EOFError, ValueError) as error:
        raise PackageError(f"not a packed package that can be read: {error}") from None
    known = manifest if isinstance(manifest, dict) else {}
    name, version = str(known.get("name", "")), str(known.get("version", ""))
    if not is_name(name):
        raise PackageError("its package.json has no name that a registry takes")
    if _VERSION.fullmatch(version) is None:
        raise PackageError("its package.json has no semantic version")
    return Package(file=file, manifest=known, name=name, version=version)


def _manifest_in(stream: tarfile.TarFile) -> bytes:
    for member in islice(stream, _MAX_MEMBERS):
        if member.isfile() and re.fullmatch(r"(?:\./)?[^/]+/package\.json", member.name):
            opened = stream.extractfile(member)
            content = opened.read(MAX_MANIFEST_BYTES + 1) if opened else b""
            if len(content) > MAX_MANIFEST_BYTES:
                raise PackageError(f"its package.json is larger than {MAX_MANIFEST_BYTES} bytes")
            return content
    raise PackageError("it has no package.json one directory deep")


class Packages:
    """A directory's packages, read at the first question.

    Files that are none are left out; `check` names them.
    """

    def __init__(self, directory: Path, made: Iterable[StoredFile] = ()) -> None:
        self._files = PackageFiles(directory, "sha1", "sha512", made=made)

    @cached_property
    def by_name(self) -> Mapping[str, Mapping[str, Package]]:
        """Name → version → package, the oldest version first."""
        packages: list[Package] = []
        for file in self._files.by_name.values():
            if file.name.endswith((".tgz", ".tar.gz")):
                with suppress(PackageError):
                    packages.append(read_package(file))
        found: dict[str, dict[str, Package]] = {}
        for package in sorted(packages, key=lambda one: version_order(one.version)):
            found.setdefault(package.name, {}).setdefault(package.version, package)
        return found

    def tarball(self, name: str, filename: str) -> Package | None:
        """The package whose file a registry names so."""
        packages = self.by_name.get(name, {}).values()
        return next((one for one in packages if one.tarball == filename), None)

    async def shasum(self, package: Package) -> str:
        """The SHA-1 of a package's file. Raises `OSError`."""
        return (await self._files.digests(package.file))["sha1"]

    def tags(self, name: str) -> dict[str, str]:
        """`latest`: the newest that is no pre-release, if any."""
        versions = list(self.by_name.get(name, {}))
        stable = [version for version in versions if "-" not in version.partition("+")[0]]
        return {"latest": (stable or versions)[-1]} if versions else {}

    async def version(self, package: Package, base_url: str) -> dict[str, Any]:
        """Its package.json, with `dist`. Raises `OSError`."""
        digests = await self._files.digests(package.file)
        dist = {
            "shasum": digests["sha1"],
            "integrity": "sha512-" + base64.b64encode(bytes.fromhex(digests["sha512"])).decode(),
            "tarball": f"{base_url}/{package.name}/-/{package.tarball}",
        }
        scripts = package.manifest.get("scripts")
        installs = isinstance(scripts, dict) and not _INSTALL_SCRIPTS.isdisjoint(scripts)
        more = {"hasInstallScript": True} if installs else {}
        identity = f"{package.name}@{package.version}"
        return {**package.manifest, **more, "_id": identity, "dist": dist}

    async def packument(
        self, name: str, base_url: str, *, abbreviated: bool
    ) -> dict[str, Any] | None:
        """All versions; `None`: no such package. Raises `OSError`."""
        packages = self.by_name.get(name)
        if not packages:
            return None
        base = {"name": name, "dist-tags": self.tags(name)}
        times = {version: _iso(package.file.mtime_s) for version, package in packages.items()}
        versions = {
            version: await self.version(package, base_url) for version, package in packages.items()
        }
        if abbreviated:
            short = {
                version: {key: whole[key] for key in _ABBREVIATED if key in whole}
                for version, whole in versions.items()
            }
            return {**base, "versions": short, "modified": max(times.values())}
        newest = versions[self.tags(name)["latest"]]
        shown = ("description", "license", "homepage", "repository", "keywords")
        return {
            "_id": name,
            "_rev": f"{len(versions)}-{newest['dist']['shasum'][:32]}",
            **base,
            "versions": versions,
            "time": {"created": min(times.values()), "modified": max(times.values()), **times},
            **{key: newest[key] for key in shown if key in newest},
        }

    def search(self, text: str, count: int) -> list[dict[str, Any]]:
        """By name, description and keywords; each word counts."""
        words = text.lower().split()[:20]
        found = []
        for name in sorted(self.by_name):
            newest = self.by_name[name][self.tags(name)["latest"]]
            texts = (newest.manifest.get(key, "") for key in ("description", "keywords"))
            about = " ".join(map(str, (name, *texts))).lower()
            if all(word in about for word in words):
                found.append(newest)
        return [_search_entry(package) for package in found[:count]]


def _search_entry(package: Package) -> dict[str, Any]:
    shown = ("description", "keywords", "author")
    about = {
        "name": package.name,
        "version": package.version,
        "date": _iso(package.file.mtime_s),
        "maintainers": [],
        "links": {},
        **{key: package.manifest[key] for key in shown if key in package.manifest},
    }
    score = {"final": 1, "detail": {"quality": 1, "popularity": 1, "maintenance": 1}}
    return {"package": about, "score": score, "searchScore": 1}


def _iso(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
