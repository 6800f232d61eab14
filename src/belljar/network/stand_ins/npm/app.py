"""The registry's application: which question gets which answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs

from anyio import Lock

from belljar.events import JsonValue
from belljar.network.gateway.context import (
    MAX_BODY_BYTES,
    App,
    Receive,
    Scope,
    Send,
    StandInContext,
)
from belljar.network.stand_ins.answers import (
    Interrupted,
    Request,
    TooLong,
    answer_file,
    answer_json,
    presents,
    read_body,
    refuse_websocket,
)
from belljar.network.stand_ins.faults import Fault, Faults
from belljar.network.stand_ins.made_packages import made_files, npm_package
from belljar.network.stand_ins.npm.changes import Changes
from belljar.network.stand_ins.npm.packages import PackageError, Packages, read_manifest
from belljar.network.stand_ins.shelf import check_directory, list_files

_ABBREVIATED_TYPE: Final = "application/vnd.npm.install-v1+json"
_NO_FAULTS: Final = {"info": 0, "low": 0, "moderate": 0, "high": 0, "critical": 0}
_MAX_SMALL_BYTES: Final = 1 << 20
_MAX_FOUND: Final = 250


def make(context: StandInContext) -> App:
    """An ASGI 3 app that serves the packed packages in `context.files`, or those that the settings
    hold (`packages`; with `token`, who writes needs it).

    Its memory: their package.json files (at most 1 MiB each), tokens, and one published document at
    a time (64 MiB).
    """
    return _Npm(context)


def check(settings: Mapping[str, JsonValue], directory: Path | None) -> Faults:
    """What is wrong with a directory of packed npm packages, each fault with its file."""
    if "packages" in settings:  # an author has no such setting
        return ()
    found = list(check_directory(directory, "packed npm packages (.tgz, from `npm pack`)"))
    if directory is None or not directory.is_dir():
        return tuple(found)
    seen: dict[tuple[str, str], str] = {}
    for file in list_files(directory):
        if not file.name.endswith((".tgz", ".tar.gz")):
            found.append(Fault(file=str(file.path), message="not a packed npm package (.tgz)"))
            continue
        try:
            manifest = read_manifest(file)
        except PackageError as error:
            found.append(Fault(file=str(file.path), message=str(error)))
            continue
        key = (str(manifest["name"]), str(manifest["version"]))
        if key in seen:
            found.append(
                Fault(
                    file=str(file.path),
                    message=f"the same package and version as {seen[key]}",
                )
            )
        seen.setdefault(key, file.name)
    return tuple(found)


class _Npm:
    def __init__(self, context: StandInContext) -> None:
        self._packages = Packages(context.files, made_files(context, npm_package))
        self._token = str(context.settings.get("token", ""))
        self._changes = Changes(context)
        # One large document at a time: a second publisher waits instead of doubling the memory.
        self._publishing = Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await refuse_websocket(scope, send):
            return
        request = Request.of(scope)
        parts = _parts(request.path)
        try:
            if self._refuses(request, parts):
                await self._refused(request, parts, receive, send)
            elif request.method in {"GET", "HEAD"}:
                await self._get(request, parts, send)
            elif (
                parts[:1] == ["-"]
                and request.method in {"POST", "PUT"}
                and parts[1:2] != ["package"]
            ):
                await self._special(request, parts[1:], receive, send)
            else:
                await self._change(request, parts, receive, send)
        except Interrupted:
            what = "publish" if request.method == "PUT" and len(parts) == 1 else "change"
            await self._changes.other(request, what, "/".join(parts), refused="it broke off")
        except TooLong as error:
            await self._changes.other(
                request, "publish", "/".join(parts), refused=f"the document is longer: {error}"
            )
            await answer_json(send, {"error": "payload too large"}, status=413)

    def _refuses(self, request: Request, parts: list[str]) -> bool:
        """Whether it needs the token that the settings name, and doesn't have it: all but
        reading.
        """
        reads = request.method in {"GET", "HEAD"} and parts != ["-", "whoami"]
        reads = reads or parts[:3] == ["-", "npm", "v1"]  # audits
        return bool(self._token) and not reads and not presents(request.headers, self._token)

    async def _refused(
        self, request: Request, parts: list[str], receive: Receive, send: Send
    ) -> None:
        async with self._publishing:
            body = await read_body(receive, MAX_BODY_BYTES)
            await self._changes.other(
                request, "change", "/".join(parts), body, refused="unauthorized"
            )
        await answer_json(send, {"error": "unauthorized"}, status=401)

    async def _get(self, request: Request, parts: list[str], send: Send) -> None:
        match parts:
            case [] | ["-", "ping"]:
                await _reply(request, send, {})
            case ["-", "whoami"]:
                await self._whoami(request, send)
            case ["-", "v1", "search"]:
                await self._search(request, send)
            case ["-", "package", name, "dist-tags"]:
                await _reply(request, send, self._packages.tags(name) or None)
            case [name]:
                abbreviated = _ABBREVIATED_TYPE in request.headers.get("accept", "")
                document = await self._packages.packument(
                    name, request.base_url, abbreviated=abbreviated
                )
                await _reply(
                    request,
                    send,
                    document,
                    _ABBREVIATED_TYPE if abbreviated and document else "application/json",
                )
            case [name, "-", filename]:
                await self._tarball(request, name, filename, send)
            case [name, version]:
                package = self._packages.by_name.get(name, {}).get(
                    self._packages.tags(name).get(version, version)
                )
                await _reply(
                    request,
                    send,
                    await self._packages.version(package, request.base_url) if package else None,
                )
            case _:
                await _reply(request, send, None)

    async def _special(
        self, request: Request, parts: list[str], receive: Receive, send: Send
    ) -> None:
        """Questions and logins below `/-/` that come with a body."""
        body = await read_body(receive, _MAX_SMALL_BYTES)
        match parts:
            case ["npm", "v1", "security", "advisories", "bulk"]:
                await answer_json(send, {})
            case ["npm", "v1", "security", "audits"] | ["npm", "v1", "security", "audits", "quick"]:
                counts = {
                    "vulnerabilities": _NO_FAULTS,
                    "dependencies": 0,
                    "devDependencies": 0,
                    "totalDependencies": 0,
                }
                await answer_json(
                    send, {"actions": [], "advisories": {}, "muted": [], "metadata": counts}
                )
            case ["user", user, *_] if user.startswith("org.couchdb.user:"):
                done = await self._changes.login(request, body)
                await answer_json(
                    send,
                    done or {"error": "name and password are needed"},
                    status=201 if done else 400,
                )
            case _:
                # Web logins among them: clients then ask for user and password.
                await self._changes.other(
                    request, "change", "/".join(parts), body, refused="not found"
                )
                await answer_json(send, {"error": "Not found"}, status=404)

    async def _change(
        self, request: Request, parts: list[str], receive: Receive, send: Send
    ) -> None:
        match request.method, parts:
            case "PUT", [name]:
                async with self._publishing:
                    body = await read_body(receive, MAX_BODY_BYTES)
                    taken = await self._changes.publish(request, name, body)
                error = {"error": "not a document"}
                await answer_json(
                    send,
                    {"ok": True, "success": True} if taken else error,
                    status=201 if taken else 400,
                )
            case "PUT", [name, "-rev", _] | [name, "-", _, "-rev", _]:
                async with self._publishing:
                    body = await read_body(receive, MAX_BODY_BYTES)
                    await self._changes.other(request, "unpublish", name, body)
                await answer_json(send, {"ok": True}, status=201)
            case "DELETE", [name, "-rev", _] | [name, "-", _, "-rev", _]:
                await self._noted(request, "unpublish", name, receive, send)
            case (("PUT" | "POST" | "DELETE"), ["-", "package", name, "dist-tags", *_]):
                await self._noted(request, "tag", name, receive, send)
            case "DELETE", ["-", "user", "token", _]:
                await self._noted(request, "logout", "", receive, send)
            case (("PUT" | "POST" | "DELETE" | "PATCH"), _):
                await self._changes.other(request, "change", "/".join(parts), refused="not found")
                await answer_json(send, {"error": "Not found"}, status=404)
            case _:
                await answer_json(send, {"error": "method not allowed"}, status=405)

    async def _noted(
        self, request: Request, what: str, name: str, receive: Receive, send: Send
    ) -> None:
        await self._changes.other(request, what, name, await read_body(receive, _MAX_SMALL_BYTES))
        await answer_json(send, {"ok": True}, status=200)

    async def _whoami(self, request: Request, send: Send) -> None:
        user = self._changes.user(request)
        if user is None:
            await answer_json(send, {"error": "unauthorized"}, status=401)
        else:
            await _reply(request, send, {"username": user})

    async def _search(self, request: Request, send: Send) -> None:
        asked = parse_qs(request.query, max_num_fields=100) if request.query.count("&") < 99 else {}
        size = asked.get("size", ["20"])[0]
        count = (
            min(int(size), _MAX_FOUND)
            if size.isascii() and size.isdigit() and len(size) < 6
            else 20
        )
        found = self._packages.search(asked.get("text", [""])[0], count)
        await _reply(request, send, {"objects": found, "total": len(found), "time": ""})

    async def _tarball(self, request: Request, name: str, filename: str, send: Send) -> None:
        package = self._packages.tarball(name, filename)
        if package is None:
            await _reply(request, send, None)
            return
        await answer_file(
            request,
            send,
            package.file,
            "application/octet-stream",
            await self._packages.shasum(package),
        )


def _parts(path: str) -> list[str]:
    """A path's parts, a scope and its name as one (they come as `@scope/name` and, encoded, as one
    part).
    """
    parts = [part for part in path.split("/") if part]
    for place in (0, 2):
        if (
            len(parts) > place + 1
            and parts[place].startswith("@")
            and (place == 0 or parts[:2] == ["-", "package"])
        ):
            parts[place : place + 2] = [f"{parts[place]}/{parts[place + 1]}"]
    # A scoped package's file may carry its scope in older clients' addresses:
    # /@s/n/-/@s/n-1.0.0.tgz
    if len(parts) > 3 and parts[1] == "-" and parts[2].startswith("@"):
        del parts[2]
    return parts


async def _reply(
    request: Request, send: Send, document: object, content_type: str = "application/json"
) -> None:
    """A document, or 404 for `None`."""
    head = request.method == "HEAD"
    if document is None:
        await answer_json(send, {"error": "Not found"}, status=404, head=head)
    else:
        await answer_json(send, document, content_type=content_type, head=head)
