"""A Python package index of wheels and source archives.

Uploads are accepted, put on record, and never served.

Speaks: the simple index as HTML (PEP 503) and JSON (PEP 691, 700), metadata files (PEP 658, 714),
`/pypi/NAME/json`, uploads (`POST /legacy/` and `/`). Not: XML-RPC, PEP 694 uploads, attestations.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from packaging.utils import canonicalize_name

from belljar.events import JsonValue
from belljar.network.gateway.context import App, StandInContext
from belljar.network.stand_ins.documents import Faults
from belljar.network.stand_ins.files import StoredFile, file_answer
from belljar.network.stand_ins.pypi import index
from belljar.network.stand_ins.pypi.index import parse_file_name
from belljar.network.stand_ins.pypi.upload import take_upload
from belljar.network.stand_ins.registry import check_packages, made_files, page_answer, wheel
from belljar.network.stand_ins.web import (
    Answer,
    Incoming,
    Request,
    accepted,
    json_answer,
    presents,
    streaming_app,
    text_answer,
)

_JSON_TYPE: Final = "application/vnd.pypi.simple.v1+json"
_HTML_TYPE: Final = "application/vnd.pypi.simple.v1+html"
_OFFERED: Final[Mapping[str, str]] = {
    "text/html": "text/html; charset=utf-8",
    _JSON_TYPE: _JSON_TYPE,
    "application/vnd.pypi.simple.latest+json": _JSON_TYPE,
    _HTML_TYPE: _HTML_TYPE,
    "application/vnd.pypi.simple.latest+html": _HTML_TYPE,
}


def make(context: StandInContext) -> App:
    """Of the packages in `context.files`, or in the settings."""
    return streaming_app(_Pypi(context).handle)


def check(_settings: Mapping[str, JsonValue], directory: Path) -> Faults:
    """Faults of a directory of Python packages."""

    def identify(file: StoredFile) -> str:
        named = parse_file_name(file.base)
        if named is None:
            expected = "a wheel or of a source archive (NAME-VERSION.tar.gz)"
            raise ValueError(f"its name is not that of {expected}")
        if named.is_wheel and not index.metadata_of(file, named):
            why = "it has no METADATA in a .dist-info directory"
            raise ValueError(f"not a wheel that can be read: {why}")
        return file.base

    what = "wheels (.whl) or source archives (.tar.gz, .zip)"
    return check_packages(directory, what, identify, "file name")


def chosen_type(accept: str) -> str | None:
    """For an `Accept` field (PEP 691)."""
    name = accepted(accept, tuple(_OFFERED))
    return _OFFERED[name] if name else None


class _Pypi:
    def __init__(self, context: StandInContext) -> None:
        self._context = context
        self._index = index.Index(context.files, made_files(context, wheel))
        self._token = str(context.settings.get("token", ""))

    async def handle(self, request: Request, incoming: Incoming) -> Answer | None:
        if request.method == "POST" and request.path in {"/", "/legacy", "/legacy/"}:
            is_refused = bool(self._token) and not presents(request, self._token)
            return await take_upload(self._context, request, incoming, is_refused=is_refused)
        if request.method not in {"GET", "HEAD"}:
            return text_answer("Method Not Allowed", 405, (("allow", "GET, HEAD"),))
        match [part for part in request.path.split("/") if part]:
            case []:
                return _page(request, index.project_html("", []), "text/html; charset=utf-8")
            case ["simple"]:
                content_type = chosen_type(request.header("accept"))
                if content_type is None:
                    return text_answer("406 Not Acceptable", 406)
                names = sorted(self._index.projects)
                is_json = content_type == _JSON_TYPE
                page = index.projects_json(names) if is_json else index.projects_html(names)
                return _page(request, page, content_type)
            case ["simple", name]:
                return await self._project(request, name)
            case ["packages", name]:
                return await self._package(request, name)
            case ["pypi", name, "json"]:
                return await self._release(request, name, "")
            case ["pypi", name, version, "json"]:
                return await self._release(request, name, version)
            case _:
                return text_answer("404 Not Found", 404)

    async def _project(self, request: Request, name: str) -> Answer:
        content_type = chosen_type(request.header("accept"))
        project = canonicalize_name(name)
        if project not in self._index.projects:
            return text_answer("404 Not Found", 404)
        if content_type is None:
            return text_answer("406 Not Acceptable", 406)
        if request.path != f"/simple/{project}/":
            return text_answer("", 301, (("location", f"/simple/{project}/"),))
        render = index.project_json if content_type == _JSON_TYPE else index.project_html
        return _page(request, render(project, await self._index.of_project(name)), content_type)

    async def _package(self, request: Request, name: str) -> Answer:
        file = self._index.file(name.removesuffix(".metadata"))
        if file is None:
            return text_answer("404 Not Found", 404)
        known = await self._index.describe(file)
        if not name.endswith(".metadata"):
            kind = "application/gzip" if name.endswith(".gz") else "application/octet-stream"
            return file_answer(file, request, media=kind, etag=known.sha256)
        if known.served_metadata:
            return _page(request, known.metadata, "application/octet-stream")
        return text_answer("404 Not Found", 404)

    async def _release(self, request: Request, name: str, version: str) -> Answer:
        files = await self._index.of_project(name)
        found = index.release_json(canonicalize_name(name), version, files, request.base_url)
        return json_answer(found) if found else json_answer({"message": "Not Found"}, 404)


def _page(request: Request, page: bytes, content_type: str) -> Answer:
    cache = (("vary", "Accept"), ("cache-control", "max-age=600, public"))
    return page_answer(request, page, (("content-type", content_type), *cache))
