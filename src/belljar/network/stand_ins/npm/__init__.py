"""An npm registry of packed packages (`npm pack`).

Writes and logins are put on record and change nothing that is served.

Speaks: packuments, whole and abbreviated, tarballs, dist-tags, search, ping, whoami, login by user
and password, audit. Not: web login, organisations, two-factor, provenance.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from anyio import Lock

from belljar.capture import body_of
from belljar.events import Body, JsonValue
from belljar.network.gateway.context import MAX_BODY_BYTES, MAX_KEPT_BODY_BYTES, App, StandInContext
from belljar.network.stand_ins.documents import Faults
from belljar.network.stand_ins.files import StoredFile, file_answer
from belljar.network.stand_ins.npm.packages import PackageError, Packages, read_package
from belljar.network.stand_ins.registry import (
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

MAX_TOKENS: Final = 1000
_MAX_LISTED: Final = 20


class Changes:
    """Writes of one registry, and the tokens that it gave out.

    Beyond `MAX_TOKENS` the oldest is forgotten.
    """

    def __init__(self, context: StandInContext) -> None:
        self._context = context
        self._users: dict[str, str] = {}

    def user(self, request: Request) -> str | None:
        """`None` without credentials.

        Of a token given out here, or basic credentials; for any other token the settings' `user`.
        """
        known = credentials(request.header("authorization"))
        if known["credentials"] == "none":
            return None
        user = self._users.get(str(known["secret_sha256"])) or known["user"]
        return str(user or self._context.settings.get("user", "developer"))

    async def login(self, request: Request, body: bytes) -> dict[str, Any] | None:
        """Whatever the password; `None`: nobody is named.

        Recorded: the user and the password's SHA-256.
        """
        document = _object(body)
        name, password = document.get("name"), document.get("password")
        if not isinstance(name, str) or not name or not isinstance(password, str):
            return None
        digest = hashlib.sha256(password.encode("utf-8", "replace")).hexdigest()
        email = word(str(document.get("email", "")))
        data = {"user": word(name), "email": email, "password_sha256": digest}
        await self._record(request, "login", data)
        token = "npm_" + self._context.random(18).hex()
        while len(self._users) >= MAX_TOKENS:
            self._users.pop(next(iter(self._users)))
        self._users[hashlib.sha256(token.encode()).hexdigest()] = word(name)
        return {"ok": True, "id": f"org.couchdb.user:{word(name)}", "token": token}

    async def publish(self, request: Request, name: str, body: bytes) -> bool:
        """A `PUT` of a package's document; False: it is none.

        Recorded as `publish` with a package, else as `change`.
        """
        document = _object(body)
        attachments = document.get("_attachments")
        versions = document.get("versions")
        data: dict[str, JsonValue] = {
            "name": word(name),
            "versions": _names(versions),
            "tags": bounded(
                [word(str(part)) for part in tag] for tag in _some(document.get("dist-tags"))
            ),
            "access": word(str(document.get("access", ""))),
            "refused": "" if document else "not a JSON object",
        }
        if not isinstance(attachments, dict) or not attachments:
            what = "change" if document else "publish"
            whole = body_of("document", body, MAX_KEPT_BODY_BYTES)
            await self._record(request, what, data, [whole])
            return bool(document)
        bodies = [
            body_of(f"file-{number}", _decoded(attachment), MAX_KEPT_BODY_BYTES)
            for number, (_, attachment) in enumerate(_some(attachments)[:4])
        ]
        about = bodies[0]
        data |= {
            "version": next(iter(_names(versions)), ""),
            "filename": word(str(next(iter(attachments)))),
            "size_bytes": about.total_bytes,
            "sha256": about.sha256,
        }
        manifest = json.dumps(versions)[:MAX_KEPT_BODY_BYTES].encode("utf-8", "replace")
        manifest = manifest[:MAX_KEPT_BODY_BYTES]
        bodies.append(body_of("versions", manifest, MAX_KEPT_BODY_BYTES))
        await self._record(request, "publish", data, bodies)
        return True

    async def other(
        self, request: Request, what: str, name: str, body: bytes = b"", refused: str = ""
    ) -> None:
        """Any other change: `unpublish`, `tag`, `logout`, `change`."""
        data = {"name": word(name), "path": word(request.path), "refused": refused}
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


_ABBREVIATED_TYPE: Final = "application/vnd.npm.install-v1+json"
_NO_FAULTS: Final = {"info": 0, "low": 0, "moderate": 0, "high": 0, "critical": 0}
_MAX_SMALL_BYTES: Final = 1 << 20
_MAX_FOUND: Final = 250


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


class _Npm:
    def __init__(self, context: StandInContext) -> None:
        self._packages = Packages(context.files, made_files(context, npm_package))
        self._token = str(context.settings.get("token", ""))
        self._changes = Changes(context)
        # One large document at a time: a second publisher waits instead of doubling the memory.
        self._publishing = Lock()

    async def handle(self, request: Request, incoming: Incoming) -> Answer | None:
        parts = _parts(request.path)
        path, is_read = "/".join(parts), request.method in {"GET", "HEAD"}
        # Reading needs no token, and audits don't.
        is_open = (is_read and parts != ["-", "whoami"]) or parts[:3] == ["-", "npm", "v1"]
        try:
            if self._token and not is_open and not presents(request, self._token):
                async with self._publishing:
                    body = await incoming.read(MAX_BODY_BYTES)
                    await self._changes.other(request, "change", path, body, "unauthorized")
                return json_answer({"error": "unauthorized"}, 401)
            if is_read:
                return await self._get(request, parts)
            is_special = parts[:1] == ["-"] and parts[1:2] != ["package"]
            if is_special and request.method in {"POST", "PUT"}:
                body = await incoming.read(_MAX_SMALL_BYTES)
                return await self._special(request, parts[1:], body)
            return await self._change(request, parts, incoming)
        except CutOffError as error:
            if error.refused:
                reason = f"the document is longer: {error.refused}"
                await self._changes.other(request, "publish", path, refused=reason)
                return json_answer({"error": "payload too large"}, 413)
            what = "publish" if request.method == "PUT" and len(parts) == 1 else "change"
            await self._changes.other(request, what, path, refused="it broke off")
            return None

    async def _get(self, request: Request, parts: list[str]) -> Answer:
        match parts:
            case [] | ["-", "ping"]:
                return json_answer({})
            case ["-", "whoami"]:
                user = self._changes.user(request)
                if user is None:
                    return json_answer({"error": "unauthorized"}, 401)
                return json_answer({"username": user})
            case ["-", "v1", "search"]:
                size = request.parameter("size", "20")
                count = int(size) if size.isascii() and size.isdigit() and len(size) < 6 else 20
                text = request.parameter("text")
                found = self._packages.search(text, min(count, _MAX_FOUND))
                return json_answer({"objects": found, "total": len(found), "time": ""})
            case ["-", "package", name, "dist-tags"]:
                return _document(self._packages.tags(name) or None)
            case [name]:
                is_short = _ABBREVIATED_TYPE in request.header("accept")
                url = request.base_url
                document = await self._packages.packument(name, url, abbreviated=is_short)
                return _document(document, _ABBREVIATED_TYPE if is_short else "application/json")
            case [name, "-", filename]:
                package = self._packages.tarball(name, filename)
                if package is None:
                    return _document(None)
                etag, media = await self._packages.shasum(package), "application/octet-stream"
                return file_answer(package.file, request, media=media, etag=etag)
            case [name, version]:
                wanted = self._packages.tags(name).get(version, version)
                package = self._packages.by_name.get(name, {}).get(wanted)
                if package is None:
                    return _document(None)
                return _document(await self._packages.version(package, request.base_url))
            case _:
                return _document(None)

    async def _special(self, request: Request, parts: list[str], body: bytes) -> Answer:
        match parts:
            case ["npm", "v1", "security", "advisories", "bulk"]:
                return json_answer({})
            case ["npm", "v1", "security", "audits"] | ["npm", "v1", "security", "audits", "quick"]:
                kinds = ("dependencies", "devDependencies", "totalDependencies")
                counts = {"vulnerabilities": _NO_FAULTS, **dict.fromkeys(kinds, 0)}
                found = {"actions": [], "advisories": {}, "muted": [], "metadata": counts}
                return json_answer(found)
            case ["user", user, *_] if user.startswith("org.couchdb.user:"):
                done = await self._changes.login(request, body)
                if done:
                    return json_answer(done, 201)
                return json_answer({"error": "name and password are needed"}, 400)
            case _:
                # Web logins among them: clients then ask for user and password.
                await self._changes.other(request, "change", "/".join(parts), body, "not found")
                return _document(None)

    async def _change(self, request: Request, parts: list[str], incoming: Incoming) -> Answer:
        async def recorded(what: str, name: str) -> Answer:
            body = await incoming.read(_MAX_SMALL_BYTES)
            await self._changes.other(request, what, name, body)
            return json_answer({"ok": True})

        match request.method, parts:
            case "PUT", [name]:
                async with self._publishing:
                    body = await incoming.read(MAX_BODY_BYTES)
                    taken = await self._changes.publish(request, name, body)
                if taken:
                    return json_answer({"ok": True, "success": True}, 201)
                return json_answer({"error": "not a document"}, 400)
            case "PUT", [name, "-rev", _] | [name, "-", _, "-rev", _]:
                async with self._publishing:
                    body = await incoming.read(MAX_BODY_BYTES)
                    await self._changes.other(request, "unpublish", name, body)
                return json_answer({"ok": True}, 201)
            case "DELETE", [name, "-rev", _] | [name, "-", _, "-rev", _]:
                return await recorded("unpublish", name)
            case (("PUT" | "POST" | "DELETE"), ["-", "package", name, "dist-tags", *_]):
                return await recorded("tag", name)
            case "DELETE", ["-", "user", "token", _]:
                return await recorded("logout", "")
            case (("PUT" | "POST" | "DELETE" | "PATCH"), _):
                await self._changes.other(request, "change", "/".join(parts), refused="not found")
                return _document(None)
            case _:
                return json_answer({"error": "method not allowed"}, 405)


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


def _document(document: object, content_type: str = "application/json") -> Answer:
    if document is None:
        return json_answer({"error": "Not found"}, 404)
    return json_answer(document, media=content_type)
