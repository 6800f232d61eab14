"""An npm registry of packed packages (`npm pack`).

Writes and logins are put on record and change nothing that is served.

Speaks: packuments, tarballs, dist-tags, search, ping, whoami, login by user and password, audit.
Not: web login, organisations, two-factor, provenance.
<https://github.com/npm/registry/blob/main/docs/responses/package-metadata.md>
"""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import json
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

from anyio import Lock

from belljar.capture import body_of
from belljar.events import Body, JsonValue
from belljar.network.gateway.context import MAX_BODY_BYTES, MAX_KEPT_BODY_BYTES, App, StandInContext
from belljar.network.stand_ins.documents import Faults
from belljar.network.stand_ins.files import StoredFile, file_answer
from belljar.network.stand_ins.registry import (
    PackageFiles,
    check_packages,
    made_files,
    npm_package,
    record_change,
)
from belljar.network.stand_ins.web import (
    Answer,
    CutOffError,
    Incoming,
    Request,
    bounded,
    credentials,
    json_answer,
    parse_json,
    presents,
    streaming_app,
    word,
)

MAX_MANIFEST_BYTES: Final = 1 << 20
_MAX_MEMBERS: Final = 50_000
_PART: Final = r"[a-z0-9~_-][a-z0-9._~-]*"
_NAME: Final = re.compile(rf"(?:@{_PART}/)?{_PART}", re.ASCII | re.IGNORECASE)
_VERSION: Final = re.compile(
    r"(\d{1,16})\.(\d{1,16})\.(\d{1,16})(?:-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]+)?", re.ASCII
)
MAX_TOKENS: Final = 1000  # The oldest is forgotten beyond that.
_MAX_FOUND: Final = 250
_MAX_LISTED: Final = 20
_INSTALL_SCRIPTS: Final = frozenset({"preinstall", "install", "postinstall"})
_NO_FAULTS: Final = {"info": 0, "low": 0, "moderate": 0, "high": 0, "critical": 0}


# ---- packages


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
        self.files = PackageFiles(directory, "sha1", "sha512", made=made)

    @cached_property
    def by_name(self) -> Mapping[str, Mapping[str, Package]]:
        """Name → version → package, the oldest version first."""
        packages: list[Package] = []
        for file in self.files.by_name.values():
            if file.name.endswith((".tgz", ".tar.gz")):
                with suppress(PackageError):
                    packages.append(read_package(file))
        found: dict[str, dict[str, Package]] = {}
        for package in sorted(packages, key=lambda one: version_order(one.version)):
            found.setdefault(package.name, {}).setdefault(package.version, package)
        return found

    def tags(self, name: str) -> dict[str, str]:
        """`latest`: the newest that is no pre-release, if any."""
        versions = list(self.by_name.get(name, {}))
        stable = [version for version in versions if "-" not in version.partition("+")[0]]
        return {"latest": (stable or versions)[-1]} if versions else {}

    async def version(self, package: Package, base_url: str) -> dict[str, Any]:
        """Return its package.json, with `dist`. Raises `OSError`."""
        digests = await self.files.digests(package.file)
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

    async def packument(self, name: str, base_url: str) -> dict[str, Any] | None:
        """Return all versions; None: no such package. Raises `OSError`."""
        packages = self.by_name.get(name)
        if not packages:
            return None
        times = {version: _iso(package.file.mtime_s) for version, package in packages.items()}
        versions = {
            version: await self.version(package, base_url) for version, package in packages.items()
        }
        newest = versions[self.tags(name)["latest"]]
        shown = ("description", "license", "homepage", "repository", "keywords")
        return {
            "_id": name,
            "_rev": f"{len(versions)}-{newest['dist']['shasum'][:32]}",
            "name": name,
            "dist-tags": self.tags(name),
            "versions": versions,
            "time": {"created": min(times.values()), "modified": max(times.values()), **times},
            **{key: newest[key] for key in shown if key in newest},
        }

    def search(self, text: str, count: int) -> list[dict[str, Any]]:
        """Find packages by name, description and keywords; each word counts."""
        words, found = text.lower().split()[:20], list[dict[str, Any]]()
        for name in sorted(self.by_name):
            newest = self.by_name[name][self.tags(name)["latest"]]
            shown = {key: newest.manifest.get(key, "") for key in ("description", "keywords")}
            if all(word in f"{name} {shown}".lower() for word in words):
                about = {"name": name, "version": newest.version, **shown}
                about |= {"date": _iso(newest.file.mtime_s), "maintainers": [], "links": {}}
                found.append({"package": about, "score": {"final": 1}, "searchScore": 1})
        return found[:count]


def _iso(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


def _parts(path: str) -> list[str]:
    """A scope and its name are one part, encoded or not."""
    parts = [part for part in path.split("/") if part]
    for place in (0, 2):
        is_name = place == 0 or parts[:2] == ["-", "package"]
        if is_name and len(parts) > place + 1 and parts[place].startswith("@"):
            parts[place : place + 2] = [f"{parts[place]}/{parts[place + 1]}"]
    # A scoped package's file may carry its scope in older clients' addresses:
    # /@s/n/-/@s/n-1.0.0.tgz
    if len(parts) > 3 and parts[1] == "-" and parts[2].startswith("@"):
        del parts[2]
    return parts


def _object(body: bytes) -> dict[str, Any]:
    try:
        document = parse_json(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _some(value: object) -> list[tuple[str, Any]]:
    return list(value.items())[:_MAX_LISTED] if isinstance(value, dict) else []


def _names(value: object) -> list[JsonValue]:
    return bounded(word(name) for name, _ in _some(value))


def _decoded(attachment: object) -> bytes:
    data = attachment.get("data") if isinstance(attachment, dict) else None
    if not isinstance(data, str):
        return b""
    try:
        return base64.b64decode(data)
    except (binascii.Error, ValueError):
        return data.encode("utf-8", "replace")


# ---- answers


def make(context: StandInContext) -> App:
    """Of the packages in `context.files`, or in the settings.

    With the setting `token`, writing needs it. Memory: the package.json files (at most 1 MiB each),
    tokens, and one published document at a time (64 MiB).
    """
    return streaming_app(_Npm(context).handle)


def check(_settings: Mapping[str, JsonValue], directory: Path) -> Faults:
    """Faults of a directory of packed npm packages."""

    def identify(file: StoredFile) -> tuple[str, str]:
        if not file.name.endswith((".tgz", ".tar.gz")):
            raise PackageError("not a packed npm package (.tgz)")
        package = read_package(file)
        return package.name, package.version

    what = "packed npm packages (.tgz, from `npm pack`)"
    return check_packages(directory, what, identify, "package and version")


def _document(document: object) -> Answer:
    if document is None:
        return json_answer({"error": "Not found"}, 404)
    return json_answer(document)


class _Npm:
    def __init__(self, context: StandInContext) -> None:
        self._context = context
        self._packages = Packages(context.files, made_files(context, npm_package))
        self._token = str(context.settings.get("token", ""))
        self._users: dict[str, str] = {}  # By the digest of the token that was given out.
        # One document at a time: a second publisher waits instead of doubling the memory.
        self._writing = Lock()

    async def handle(self, request: Request, incoming: Incoming) -> Answer | None:
        parts = _parts(request.path)
        is_read = request.method in {"GET", "HEAD"}
        # Reading needs no token, and audits don't.
        is_open = (is_read and parts != ["-", "whoami"]) or parts[:3] == ["-", "npm", "v1"]
        is_refused = bool(self._token) and not is_open and not presents(request, self._token)
        if is_read and not is_refused:
            return await self._get(request, parts)
        async with self._writing:
            try:
                body = await incoming.read(MAX_BODY_BYTES)
            except CutOffError as error:
                reason = f"the document is longer: {error.refused}" if error.refused else ""
                what = "publish" if request.method == "PUT" and len(parts) == 1 else "change"
                await self._record_other(request, what, parts, refused=reason or "it broke off")
                too_large = json_answer({"error": "payload too large"}, 413)
                return too_large if error.refused else None
            if is_refused:
                await self._record_other(request, "change", parts, body, "unauthorized")
                return json_answer({"error": "unauthorized"}, 401)
            return await self._write(request, parts, body)

    async def _get(self, request: Request, parts: list[str]) -> Answer:
        packages, url = self._packages, request.base_url
        match parts:
            case [] | ["-", "ping"]:
                return json_answer({})
            case ["-", "whoami"]:
                # For a token that was not given out here the settings' user.
                known = credentials(request.header("authorization"))
                if known["credentials"] == "none":
                    return json_answer({"error": "unauthorized"}, 401)
                user = self._users.get(str(known["secret_sha256"])) or known["user"]
                named = user or self._context.settings.get("user", "developer")
                return json_answer({"username": named})
            case ["-", "v1", "search"]:
                size = request.parameter("size", "20")
                count = int(size) if size.isascii() and size.isdigit() and len(size) < 6 else 20
                found = packages.search(request.parameter("text"), min(count, _MAX_FOUND))
                return json_answer({"objects": found, "total": len(found), "time": ""})
            case ["-", "package", name, "dist-tags"]:
                return _document(packages.tags(name) or None)
            case [name]:
                return _document(await packages.packument(name, url))
            case [name, "-", filename]:
                known_versions = packages.by_name.get(name, {}).values()
                for package in known_versions:
                    if package.tarball == filename:
                        etag = (await packages.files.digests(package.file))["sha1"]
                        media = "application/octet-stream"
                        return file_answer(package.file, request, media=media, etag=etag)
            case [name, version]:
                wanted = packages.tags(name).get(version, version)
                one = packages.by_name.get(name, {}).get(wanted)
                return _document(one and await packages.version(one, url))
        return _document(None)

    async def _write(self, request: Request, parts: list[str], body: bytes) -> Answer:
        match request.method, parts:
            case "POST", ["-", "npm", "v1", "security", "advisories", "bulk"]:
                return json_answer({})
            case "POST", ["-", "npm", "v1", "security", "audits", *_]:
                kinds = ("dependencies", "devDependencies", "totalDependencies")
                counts = {"vulnerabilities": _NO_FAULTS, **dict.fromkeys(kinds, 0)}
                return json_answer(
                    {"actions": [], "advisories": {}, "muted": [], "metadata": counts}
                )
            case (("PUT" | "POST"), ["-", "user", user, *_]) if user.startswith(
                "org.couchdb.user:"
            ):
                return await self._log_in(request, body)
            case "PUT", [name]:
                return await self._publish(request, name, body)
            case (("PUT" | "DELETE"), [_, "-rev", _] | [_, "-", _, "-rev", _]):
                what = "unpublish"
            case (("PUT" | "POST" | "DELETE"), ["-", "package", _, "dist-tags", *_]):
                what = "tag"
            case "DELETE", ["-", "user", "token", _]:
                what = "logout"
            case _:
                # Web logins among them: clients then ask for user and password.
                await self._record_other(request, "change", parts, body, "not found")
                return _document(None)
        await self._record_other(request, what, parts, body)
        return json_answer({"ok": True}, 201 if request.method == "PUT" else 200)

    async def _log_in(self, request: Request, body: bytes) -> Answer:
        """Let in whoever names a user. Recorded: the user and the password's SHA-256."""
        document = _object(body)
        name, password = document.get("name"), document.get("password")
        if not isinstance(name, str) or not name or not isinstance(password, str):
            return json_answer({"error": "name and password are needed"}, 400)
        digest = hashlib.sha256(password.encode("utf-8", "replace")).hexdigest()
        email = word(str(document.get("email", "")))
        data = {"user": word(name), "email": email, "password_sha256": digest}
        await self._record(request, "login", data)
        token = "npm_" + self._context.random(18).hex()
        while len(self._users) >= MAX_TOKENS:
            self._users.pop(next(iter(self._users)))
        self._users[hashlib.sha256(token.encode()).hexdigest()] = word(name)
        user = f"org.couchdb.user:{word(name)}"
        return json_answer({"ok": True, "id": user, "token": token}, 201)

    async def _publish(self, request: Request, name: str, body: bytes) -> Answer:
        """Record a package's document: as `publish` with a package, else as `change`."""
        document = _object(body)
        attachments, versions = document.get("_attachments"), document.get("versions")
        tags = _some(document.get("dist-tags"))
        data: dict[str, JsonValue] = {
            "name": word(name),
            "versions": _names(versions),
            "tags": bounded([word(str(part)) for part in tag] for tag in tags),
            "access": word(str(document.get("access", ""))),
            "refused": "" if document else "not a JSON object",
        }
        if not isinstance(attachments, dict) or not attachments:
            what = "change" if document else "publish"
            whole = body_of("document", body, MAX_KEPT_BODY_BYTES)
            await self._record(request, what, data, [whole])
            if not document:
                return json_answer({"error": "not a document"}, 400)
            return json_answer({"ok": True, "success": True}, 201)
        bodies = [
            body_of(f"file-{number}", _decoded(attachment), MAX_KEPT_BODY_BYTES)
            for number, (_, attachment) in enumerate(_some(attachments)[:4])
        ]
        data |= {
            "version": next(iter(_names(versions)), ""),
            "filename": word(str(next(iter(attachments)))),
            "size_bytes": bodies[0].total_bytes,
            "sha256": bodies[0].sha256,
        }
        manifest = json.dumps(versions)[:MAX_KEPT_BODY_BYTES].encode("utf-8", "replace")
        manifest = manifest[:MAX_KEPT_BODY_BYTES]
        bodies.append(body_of("versions", manifest, MAX_KEPT_BODY_BYTES))
        await self._record(request, "publish", data, bodies)
        return json_answer({"ok": True, "success": True}, 201)

    async def _record_other(
        self, request: Request, what: str, parts: list[str], body: bytes = b"", refused: str = ""
    ) -> None:
        """Record any other change: `unpublish`, `tag`, `logout`, `change`."""
        data = {"name": word("/".join(parts)), "path": word(request.path), "refused": refused}
        sent = [body_of("request", body, MAX_KEPT_BODY_BYTES)] if body else []
        await self._record(request, what, data, sent)

    async def _record(
        self,
        request: Request,
        what: str,
        data: Mapping[str, JsonValue],
        bodies: list[Body] | None = None,
    ) -> None:
        data = {"what": what, "method": request.method, **data}
        await record_change(self._context, request, "npm", data, bodies or [])
