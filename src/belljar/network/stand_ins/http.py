"""The stand-in `http`: an author's routes with templates and files.

The first route that fits a request answers; then static files; then 404. Nothing of a request is
kept: what remembers its visitors, or decides what it answers, is a stand-in of kind `python`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from belljar.network.gateway.context import App, StandInContext
from belljar.network.stand_ins.admin import AdminPage
from belljar.network.stand_ins.faults import refuse_faults
from belljar.network.stand_ins.files import StoredFile, file_answer, list_files, stored_file
from belljar.network.stand_ins.site import Fields, check, methods_of, pattern_of
from belljar.network.stand_ins.templates import Chance, RenderError, Templates
from belljar.network.stand_ins.web import (
    Answer,
    Request,
    header_text,
    http_app,
    json_answer,
    plain_error,
    text_answer,
)
from belljar.policy.files import MAX_DEPTH
from belljar.units import iso_time

__all__ = ["check", "make"]

MAX_STATIC_FILES: Final = 20_000


class _Route:
    """A route that was checked."""

    def __init__(self, fields: Fields, directory: Path) -> None:
        self.pattern = pattern_of(str(fields["path"]))
        self.methods = methods_of(fields)
        self.answer = fields
        if "template" in fields:
            body = (directory / fields["template"]).read_text("utf-8", "replace")
            self.answer = {**fields, "body": body}

    def takes(self, method: str) -> bool:
        """HEAD is answered where GET is."""
        return method in self.methods or (method == "HEAD" and "GET" in self.methods)

    def match(self, raw_path: str) -> dict[str, str] | None:
        """Return the decoded parameters; an encoded `/` splits no segment."""
        decoded = "/".join(
            unquote(part, errors="replace").replace("/", "\0") for part in raw_path.split("/")
        )
        found = self.pattern.fullmatch(decoded)
        if found is None:
            return None
        return {name: text.replace("\0", "/") for name, text in found.groupdict().items()}


def make(context: StandInContext) -> App:
    """Return the ASGI app. Raises `PolicyError` as `check` finds."""
    if "login" in context.settings:  # a decoy's: what an author writes has no such field
        return http_app(AdminPage(context).handle)
    refuse_faults(check(context.settings, context.files), context.id)
    server = _Http(context)
    return http_app(server.handle)


def _is_markup(media: str) -> bool:
    kind = media.partition(";")[0].strip().lower()
    return kind == "text/html" or kind.endswith(("/xml", "+xml"))


class _Http:
    def __init__(self, context: StandInContext) -> None:
        site: Any = context.settings
        self._context, self._templates = context, Templates()
        self._routes = [_Route(fields, context.files) for fields in site.get("routes", [])]
        self._static: list[tuple[str, Mapping[str, StoredFile]]] = []
        for prefix, folder in site.get("static", {}).items():
            bounds = {"max_files": MAX_STATIC_FILES, "max_depth": MAX_DEPTH}
            files = list_files(context.files / folder, hidden=True, **bounds)
            self._static.append((f"{prefix.rstrip('/')}/", {file.name: file for file in files}))
        answers = [route.answer for route in self._routes]
        names = {str(answer["file"]) for answer in answers if "file" in answer}
        self._files = {name: stored_file(context.files / name, name) for name in names}

    def _view(self, request: Request) -> dict[str, Any]:
        """Return what templates and expressions see of a request."""
        return {
            "query": dict(reversed(request.query)),
            "form": dict(reversed(request.form)),
            "header": {name: request.header(name) for name, _ in request.headers},
            "cookie": request.cookies,
            "json": request.json if request.body else None,
            "body": request.body.decode("utf-8", "replace"),
            "method": request.method,
            "host": request.host,
            "url": request.url,
            "now": iso_time(self._context.clock()),
            "random": Chance(self._context.random),
        }

    def _choose(self, request: Request) -> tuple[Fields, Fields] | None:
        """Return the answer of the first route that fits, and its path's parameters, or None."""
        for route in self._routes:
            if route.takes(request.method):
                parameters = route.match(request.raw_path)
                if parameters is not None:
                    return route.answer, parameters
        return None

    async def handle(self, request: Request) -> Answer:
        chosen = self._choose(request)
        if chosen is None:
            return self._fallback(request)
        fields, parameters = chosen
        try:
            return self._answer(fields, {**self._view(request), "path": parameters})
        except (RenderError, TypeError, ValueError, RecursionError):  # also: no JSON value
            return plain_error(500)

    def _answer(self, fields: Fields, view: Fields) -> Answer:
        render = self._templates.render
        pairs = tuple(
            (name.lower(), header_text(render(str(text), view)))
            for name, text in fields.get("headers", {}).items()
        )
        status = fields.get("status", 302 if "redirect" in fields else 200)
        media = fields.get("type", "")
        if "file" in fields:
            file = self._files[fields["file"]]
            return file_answer(file, status=status, media=media, headers=pairs)
        if "json" in fields:
            value = self._templates.value(fields["json"], view)
            return json_answer(value, status, pairs, media=media or "application/json")
        if "redirect" in fields:
            location = header_text(render(str(fields["redirect"]), view))
            return plain_error(status, (("location", location), *pairs))
        if "body" not in fields:
            return Answer(status=status, headers=pairs)
        body = str(fields["body"])
        if not media:
            is_page = body.lstrip().startswith("<")
            is_page |= str(fields.get("template", "")).endswith((".html", ".htm"))
            media = f"text/{'html' if is_page else 'plain'}; charset=utf-8"
        return text_answer(
            render(body, view, is_markup=_is_markup(media)), status, pairs, media=media
        )

    def _fallback(self, request: Request) -> Answer:
        is_read = request.method in ("GET", "HEAD")
        for prefix, files in self._static if is_read else ():
            if request.path.startswith(prefix):
                name = request.path.removeprefix(prefix)
                if not name or name.endswith("/"):
                    name += "index.html"
                elif f"{name}/index.html" in files:
                    return plain_error(301, (("location", f"{request.raw_path}/"),))
                file = files.get(name)
                if file is not None:
                    return file_answer(file)
        return plain_error(404)
