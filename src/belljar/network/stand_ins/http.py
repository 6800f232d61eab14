"""The stand-in `http`: an author's routes, templates, state, files.

The first route that fits a request answers; then static files; then 404, or 405 where only the
method is wrong. A request's changes of the state and its answer are made at one time: no other
request comes in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from anyio import sleep

from belljar.network.gateway.context import App, Receive, Scope, Send, StandInContext
from belljar.network.stand_ins.documents import Faults, refuse_faults
from belljar.network.stand_ins.files import StoredFile, file_answer, find, list_files, stored_file
from belljar.network.stand_ins.routes import (
    MAX_STATE_BYTES,
    Line,
    Reply,
    Sessions,
    Site,
    StateChange,
    StateError,
    Store,
    escape_for,
)
from belljar.network.stand_ins.site import load_site
from belljar.network.stand_ins.templates import RenderError, View, key, render, render_value
from belljar.network.stand_ins.web import (
    Answer,
    Pairs,
    Request,
    header_text,
    http_app,
    json_answer,
    plain_error,
    refuse_websocket,
    request_of,
    text_answer,
)
from belljar.policy.files import MAX_DEPTH

MAX_MESSAGE_BYTES: Final = 1 << 20
MAX_STATIC_FILES: Final = 20_000


def check(settings: Mapping[str, Any], directory: Path | None) -> Faults:
    """What is wrong with the routes, each with its place."""
    return load_site(settings, directory)[1]


def make(context: StandInContext) -> App:
    """The ASGI app. Raises `PolicyError` as `check` finds."""
    site, problems = load_site(context.settings, context.files)
    refuse_faults(problems, context.id)
    server = _Http(context, site)
    return http_app(server.handle, websocket=server.websocket)


class _Visit:
    """One request, its path's parameters, and its session."""

    def __init__(self, server: _Http, request: Request) -> None:
        self.server, self.request = server, request
        self.path: Mapping[str, str] = {}
        self.started = ""
        self.store = server.sessions.find(request.cookies.get(server.site.session_cookie, ""))

    def session(self) -> Store:
        if self.store is None:
            self.started, self.store = self.server.sessions.start()
        return self.store

    def view(self) -> View:
        return View(
            request=self.request,
            path=self.path,
            state=self.server.state.values,
            session=self.store.values if self.store else {},
            clock=self.server.context.clock,
            random=self.server.context.random,
        )


class _Http:
    def __init__(self, context: StandInContext, site: Site) -> None:
        self.context, self.site = context, site
        self.state = Store(site.state, MAX_STATE_BYTES)
        self.sessions = Sessions(context.random)
        self.given = [0] * len(site.routes)
        self.static: list[tuple[str, Mapping[str, StoredFile]]] = []
        for prefix, folder in site.static:
            bounds = {"max_files": MAX_STATIC_FILES, "max_depth": MAX_DEPTH}
            files = list_files(context.files / folder, hidden=True, **bounds)
            self.static.append((prefix, {file.name: file for file in files}))
        names = {reply.file for route in site.routes for reply in route.replies if reply.file}
        self.files = {name: stored_file(context.files / name, name) for name in names}

    def choose(self, visit: _Visit, *, websocket: bool) -> int | None:
        """The first route that fits, and its path's parameters into the visit."""
        request = visit.request
        for index, route in enumerate(self.site.routes):
            if bool(route.websocket) is websocket and (websocket or route.takes(request.method)):
                path = route.pattern.match(request.raw_path)
                if path is None:
                    continue
                visit.path = path
                if all(condition.holds(visit.view()) for condition in route.conditions):
                    return index
        return None

    async def handle(self, request: Request) -> Answer:
        visit = _Visit(self, request)
        index = self.choose(visit, websocket=False)
        if index is None:
            return self.fallback(request)
        route = self.site.routes[index]
        reply = route.replies[min(self.given[index], len(route.replies) - 1)]
        self.given[index] += 1
        try:
            self.change(route.changes, visit)
            answer = self.answer(reply, visit)
        except (StateError, RenderError):
            answer = plain_error(500)
        if reply.delay_s:
            await sleep(reply.delay_s)
        return answer

    def change(self, changes: tuple[StateChange, ...], visit: _Visit) -> None:
        for change in changes:
            store = self.state if change.target.root == "state" else visit.session()
            view = visit.view()
            keys = [key(step, view) for step in change.target.steps]
            match change.verb:
                case "set":
                    store.set(keys, render_value(change.value, view))
                case "append":
                    store.append(keys, render_value(change.value, view))
                case "increment":
                    store.increment(keys, change.value)
                case "delete":
                    store.delete(keys)

    def answer(self, reply: Reply, visit: _Visit) -> Answer:
        view, status, media = visit.view(), reply.status, reply.media
        headers = self.headers(reply, view, visit)
        if reply.file:
            file, request = self.files[reply.file], visit.request
            return file_answer(file, request, status=status, media=media, headers=headers)
        if reply.has_value:
            return json_answer(render_value(reply.value, view), status, headers, media=media)
        if reply.redirect is not None:
            location = ("location", header_text(render(reply.redirect, view, "url")))
            return plain_error(status, (location, *headers))
        if reply.text is None:
            return Answer(status=status, headers=headers)
        body = render(reply.text, view, escape_for(media))
        return text_answer(body, status, headers, media=media)

    def headers(self, reply: Reply, view: View, visit: _Visit) -> Pairs:
        found = [(name, header_text(render(text, view, "none"))) for name, text in reply.headers]
        if visit.started:
            session = f"{self.site.session_cookie}={visit.started}"
            found.append(("set-cookie", f"{session}; Path=/; HttpOnly; SameSite=Lax"))
        for name, value in reply.cookies:
            if value is None:
                found.append(("set-cookie", f"{name}=; Path=/; Max-Age=0"))
                continue
            text = header_text(render(value, view, "none")).replace(";", "").replace(",", "")
            found.append(("set-cookie", f"{name}={text}; Path=/"))
        return tuple(found)

    def fallback(self, request: Request) -> Answer:
        is_read = request.method in ("GET", "HEAD")
        for prefix, files in self.static if is_read else ():
            if request.path.startswith(prefix):
                found = find(files, request.path.removeprefix(prefix))
                if isinstance(found, str):
                    return plain_error(301, (("location", f"{request.raw_path}/"),))
                if found is not None:
                    return file_answer(found, request)
        routes = [
            route
            for route in self.site.routes
            if not route.websocket and route.pattern.match(request.raw_path) is not None
        ]
        if not routes or any(route.takes(request.method) for route in routes):
            return plain_error(404)
        allowed = sorted({method for route in routes for method in route.methods})
        return plain_error(405, (("allow", ", ".join(allowed)),))

    async def websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        visit = _Visit(self, request_of(scope))
        index = self.choose(visit, websocket=True)
        if index is None:
            await refuse_websocket(scope, receive, send)
            return
        route = self.site.routes[index]
        try:
            self.change(route.changes, visit)
        except StateError:
            await refuse_websocket(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        if route.websocket == "echo":
            while (message := await _message(receive)) is not None:
                kind = "text" if isinstance(message, str) else "bytes"
                await send({"type": "websocket.send", kind: message})
        else:
            code = await _play(route.script, visit.view(), receive, send)
            if code:
                await send({"type": "websocket.close", "code": code})


async def _message(receive: Receive) -> str | bytes | None:
    event = await receive()
    if event["type"] != "websocket.receive":
        return None
    text = event.get("text")
    found: str | bytes = text if text is not None else event.get("bytes") or b""
    return found if len(found) <= MAX_MESSAGE_BYTES else None


async def _play(script: tuple[Line, ...], view: View, receive: Receive, send: Send) -> int:
    """The close code; 0: the client has left."""
    for line in script:
        if line.verb == "close":
            return line.code
        text = render(line.text, view, "none") if line.text is not None else None
        if line.verb == "send":
            await send({"type": "websocket.send", "text": text})
            continue
        message = await _message(receive)
        if message is None:
            return 0
        if text is not None and message != text:
            return 1008
    return 1000
