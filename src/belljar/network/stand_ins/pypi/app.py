"""The index's application: which question gets which answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Final

from belljar.events import JsonValue
from belljar.network.gateway.context import App, Receive, Scope, Send, StandInContext
from belljar.network.stand_ins.answers import (
    Request,
    answer,
    answer_file,
    answer_json,
    presents,
    refuse_websocket,
)
from belljar.network.stand_ins.conditions import etag_matches
from belljar.network.stand_ins.faults import Fault, Faults
from belljar.network.stand_ins.made_packages import made_files, wheel
from belljar.network.stand_ins.pypi import index
from belljar.network.stand_ins.pypi.names import normal, parse_file_name
from belljar.network.stand_ins.pypi.upload import take_upload
from belljar.network.stand_ins.shelf import check_directory, list_files

_JSON_TYPE: Final = "application/vnd.pypi.simple.v1+json"
_HTML_TYPE: Final = "application/vnd.pypi.simple.v1+html"
_OFFERED: Final[Mapping[str, str]] = {
    _JSON_TYPE: _JSON_TYPE,
    "application/vnd.pypi.simple.latest+json": _JSON_TYPE,
    _HTML_TYPE: _HTML_TYPE,
    "application/vnd.pypi.simple.latest+html": _HTML_TYPE,
    "text/html": "text/html; charset=utf-8",
    "text/*": "text/html; charset=utf-8",
    "*/*": "text/html; charset=utf-8",
}


def make(context: StandInContext) -> App:
    """An ASGI 3 app that serves the packages in `context.files`, or those that the settings hold
    (`packages`; with `token`, who uploads needs it).

    Its memory: the list of files, their metadata (at most 1 MiB each), and what one upload keeps.
    """
    return _Pypi(context)


def check(settings: Mapping[str, JsonValue], directory: Path | None) -> Faults:
    """What is wrong with a directory of Python packages, each fault with its file."""
    if "packages" in settings:  # an author has no such setting
        return ()
    wrong = check_directory(directory, "wheels (.whl) or source archives (.tar.gz, .zip)")
    if directory is None or not directory.is_dir():
        return wrong
    seen: dict[str, str] = {}
    found = list(wrong)
    for file in list_files(directory):
        said = parse_file_name(file.base)
        if said is None:
            reason = "its name is not that of a wheel or of a source archive (NAME-VERSION.tar.gz)"
        elif said.is_wheel and not index.metadata_of(file, said):
            reason = "not a wheel that can be read: it has no METADATA in a .dist-info directory"
        elif file.base in seen:
            reason = f"the same file name as {seen[file.base]}"
        else:
            reason = ""
        if reason:
            found.append(Fault(file=str(file.path), message=reason))
        seen[file.base] = file.name
    return tuple(found)


def chosen_type(accept: str) -> str | None:
    """The content type for an `Accept` field (RFC 9110, 12.5.1; PEP 691): `None` when none of ours
    is acceptable, HTML when nothing is asked for.
    """
    best, best_quality = None, 0.0
    for part in (accept or "*/*").split(",")[:50]:
        name, *parameters = (piece.strip() for piece in part.lower().split(";"))
        quality = next((_quality(p[2:]) for p in parameters if p.startswith("q=")), 1.0)
        if name in _OFFERED and quality > best_quality:
            best, best_quality = _OFFERED[name], quality
    return best


def _quality(text: str) -> float:
    return float(text) if re.fullmatch(r"[01](?:\.\d{0,3})?", text, re.ASCII) else 0.0


class _Pypi:
    def __init__(self, context: StandInContext) -> None:
        self._context = context
        self._index = index.Index(context.files, made_files(context, wheel))
        self._token = str(context.settings.get("token", ""))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if await refuse_websocket(scope, send):
            return
        request = Request.of(scope)
        if request.method == "POST" and request.path in {"/", "/legacy", "/legacy/"}:
            is_refused = bool(self._token) and not presents(request.headers, self._token)
            await take_upload(self._context, request, receive, send, is_refused=is_refused)
        elif request.method in {"GET", "HEAD"}:
            await self._get(request, send)
        else:
            await answer(send, b"Method Not Allowed", status=405, headers={"allow": "GET, HEAD"})

    async def _get(self, request: Request, send: Send) -> None:
        match [part for part in request.path.split("/") if part]:
            case []:
                await self._page(
                    request, send, index.project_html("", []), "text/html; charset=utf-8"
                )
            case ["simple"]:
                await self._projects(request, send)
            case ["simple", name]:
                await self._project(request, send, name)
            case ["packages", name]:
                await self._package(request, send, name)
            case ["pypi", name, "json"]:
                await self._release(request, send, name, "")
            case ["pypi", name, version, "json"]:
                await self._release(request, send, name, version)
            case _:
                await _missing(request, send)

    async def _projects(self, request: Request, send: Send) -> None:
        content_type = chosen_type(request.headers.get("accept", ""))
        if content_type is None:
            await _not_acceptable(request, send)
            return
        names = iter(sorted(self._index.projects))
        page = (
            index.projects_json(names) if content_type == _JSON_TYPE else index.projects_html(names)
        )
        await self._page(request, send, page, content_type)

    async def _project(self, request: Request, send: Send, name: str) -> None:
        content_type = chosen_type(request.headers.get("accept", ""))
        if normal(name) not in self._index.projects:
            await _missing(request, send)
        elif content_type is None:
            await _not_acceptable(request, send)
        elif request.path != f"/simple/{normal(name)}/":
            await answer(
                send,
                b"",
                status=301,
                headers={"location": f"/simple/{normal(name)}/"},
                head=request.method == "HEAD",
            )
        else:
            files = await self._index.of_project(name)
            page = index.project_json if content_type == _JSON_TYPE else index.project_html
            await self._page(request, send, page(normal(name), files), content_type)

    async def _page(self, request: Request, send: Send, page: bytes, content_type: str) -> None:
        etag = sha256(page).hexdigest()[:32]
        fresh = etag_matches(request.headers.get("if-none-match", ""), etag)
        headers = {"etag": f'"{etag}"', "vary": "Accept", "cache-control": "max-age=600, public"}
        await answer(
            send,
            b"" if fresh else page,
            content_type,
            status=304 if fresh else 200,
            headers=headers,
            head=request.method == "HEAD",
        )

    async def _package(self, request: Request, send: Send, name: str) -> None:
        wants_metadata = name.endswith(".metadata")
        file = self._index.file(name.removesuffix(".metadata"))
        if file is None:
            await _missing(request, send)
            return
        known = await self._index.describe(file)
        if not wants_metadata:
            kind = "application/gzip" if name.endswith(".gz") else "application/octet-stream"
            await answer_file(request, send, file, kind, known.sha256)
        elif known.served_metadata:
            await self._page(request, send, known.metadata, "application/octet-stream")
        else:
            await _missing(request, send)

    async def _release(self, request: Request, send: Send, name: str, version: str) -> None:
        document = index.release_json(
            normal(name), version, await self._index.of_project(name), request.base_url
        )
        if document is None:
            await answer_json(
                send, {"message": "Not Found"}, status=404, head=request.method == "HEAD"
            )
        else:
            await answer_json(send, document, head=request.method == "HEAD")


async def _missing(request: Request, send: Send) -> None:
    await answer(send, b"404 Not Found", status=404, head=request.method == "HEAD")


async def _not_acceptable(request: Request, send: Send) -> None:
    await answer(send, b"406 Not Acceptable", status=406, head=request.method == "HEAD")
