"""The stand-in `http`: a site of an author's routes, templates, state and files.

The first route that fits a request answers; then static files; then 404, or 405 where only the
method is wrong, in the shape of an ordinary server. A request's changes of the state and its answer
are made at one time: no other request comes in between. Bounds: `state` and `web`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from anyio import sleep

from belljar.network.gateway.context import StandInContext
from belljar.network.stand_ins.documents import Faults, refuse_faults
from belljar.network.stand_ins.files import StoredFile, file_answer, find, list_files, stored_file
from belljar.network.stand_ins.routes import (
    MAX_STATE_BYTES,
    Line,
    Operation,
    Reply,
    Route,
    Sessions,
    StateError,
    Store,
    escape_for,
)
from belljar.network.stand_ins.site import load_site
from belljar.network.stand_ins.templates import RenderError, View, key, render, render_value
from belljar.network.stand_ins.web import (
    Answer,
    App,
    Pairs,
    Receive,
    Request,
    Scope,
    Send,
    header_text,
    http_app,
    json_answer,
    plain_error,
    refuse_websocket,
    request_of,
)
from belljar.policy.files import MAX_DEPTH

MAX_MESSAGE_BYTES: Final = 1 << 20
MAX_STATIC_FILES: Final = 20_000


def check(settings: Mapping[str, Any], directory: Path | None) -> Faults:
    """What is wrong with the routes, each with its place."""
    return load_site(settings, directory)[1]


def make(context: StandInContext) -> App:
    """The ASGI app. Raises `PolicyError` for what `check` would have said."""
    site, problems = load_site(context.settings, context.files)
    refuse_faults(problems, context.id)
    return _Server(context, site).app()


class _Visit:
    def __init__(self, request: Request, sessions: Sessions, cookie: str) -> None:
        self.sessions, self.started = sessions, ""
        self.store = sessions.find(request.cookies.get(cookie, ""))

    def session(self) -> Store:
        if self.store is None:
            self.started, self.store = self.sessions.start()
        return self.store


class _Server:
    def __init__(self, context: StandInContext, site: Any) -> None:  # noqa: ANN401
        self.context, self.site = context, site
        self.state = Store(site.state, MAX_STATE_BYTES)
        self.sessions = Sessions(context.random)
        self.given = [0] * len(site.routes)
        self.static = [(prefix, _listed(context.files / folder)) for prefix, folder in site.static]
        names = {reply.file for route in site.routes for reply in route.replies if reply.file}
        self.files = {name: stored_file(context.files / name, name) for name in names}

    def app(self) -> App:
        http = http_app(self.handle)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "websocket":
                await self.websocket(scope, receive, send)
            else:
                await http(scope, receive, send)

        return app

    def view(self, request: Request, path: Mapping[str, str], visit: _Visit) -> View:
        return View(
            request=request,
            path=path,
            state=self.state.values,
            session=visit.store.values if visit.store else {},
            clock=self.context.clock,
            random=self.context.random,
        )

    def choose(
        self, request: Request, visit: _Visit, *, websocket: bool
    ) -> tuple[int, Mapping[str, str]] | None:
        for index, route in enumerate(self.site.routes):
            if bool(route.websocket) is not websocket or not (
                websocket or route.takes(request.method)
            ):
                continue
            path = route.pattern.match(request.raw_path)
            if path is not None and all(
                c.holds(self.view(request, path, visit)) for c in route.conditions
            ):
                return index, path
        return None

    async def handle(self, request: Request) -> Answer:
        visit = _Visit(request, self.sessions, self.site.session_cookie)
        chosen = self.choose(request, visit, websocket=False)
        if chosen is None:
            return self.fallback(request)
        index, path = chosen
        route: Route = self.site.routes[index]
        reply = route.replies[min(self.given[index], len(route.replies) - 1)]
        self.given[index] += 1
        try:
            self.change(route.operations, request, path, visit)
            answer = self.answer(reply, request, path, visit)
        except (StateError, RenderError):
            answer = plain_error(500)
        if reply.delay_s:
            await sleep(reply.delay_s)
        return answer

    def change(
        self,
        operations: tuple[Operation, ...],
        request: Request,
        path: Mapping[str, str],
        visit: _Visit,
    ) -> None:
        for operation in operations:
            store = self.state if operation.target.root == "state" else visit.session()
            view = self.view(request, path, visit)
            keys = [key(step, view) for step in operation.target.steps]
            match operation.verb:
                case "set":
                    store.set(keys, render_value(operation.value, view))
                case "append":
                    store.append(keys, render_value(operation.value, view))
                case "increment":
                    store.increment(keys, operation.value)
                case "delete":
                    store.delete(keys)

    def answer(
        self, reply: Reply, request: Request, path: Mapping[str, str], visit: _Visit
    ) -> Answer:
        view = self.view(request, path, visit)
        headers = self.headers(reply, view, visit)
        if reply.file:
            return file_answer(
                self.files[reply.file],
                request,
                status=reply.status,
                media=reply.media,
                headers=headers,
            )
        if reply.has_value:
            return json_answer(
                render_value(reply.value, view), reply.status, headers, media=reply.media
            )
        if reply.redirect is not None:
            location = ("location", header_text(render(reply.redirect, view, "url")))
            return plain_error(reply.status, (location, *headers))
        if reply.text is None:
            return Answer(status=reply.status, headers=headers)
        body = render(reply.text, view, escape_for(reply.media)).encode("utf-8", "replace")
        return Answer(
            status=reply.status, headers=(("content-type", reply.media), *headers), body=body
        )

    def headers(self, reply: Reply, view: View, visit: _Visit) -> Pairs:
        found = [(name, header_text(render(text, view, "none"))) for name, text in reply.headers]
        if visit.started:
            found.append(
                (
                    "set-cookie",
                    f"{self.site.session_cookie}={visit.started}; Path=/; HttpOnly; SameSite=Lax",
                )
            )
        for name, value in reply.cookies:
            text = (
                ""
                if value is None
                else header_text(render(value, view, "none")).replace(";", "").replace(",", "")
            )
            found.append(
                ("set-cookie", f"{name}={text}; Path=/{'; Max-Age=0' if value is None else ''}")
            )
        return tuple(found)

    def fallback(self, request: Request) -> Answer:
        allowed = sorted(
            {
                m
                for route in self.site.routes
                for m in route.methods
                if not route.websocket and route.pattern.match(request.raw_path) is not None
            }
        )
        if request.method in ("GET", "HEAD"):
            for prefix, files in self.static:
                if request.path.startswith(prefix) and (
                    found := find(files, request.path.removeprefix(prefix))
                ):
                    return (
                        file_answer(found, request)
                        if not isinstance(found, str)
                        else plain_error(301, (("location", f"{request.raw_path}/"),))
                    )
        if (
            allowed
            and request.method not in allowed
            and not (request.method == "HEAD" and "GET" in allowed)
        ):
            return plain_error(405, (("allow", ", ".join(allowed)),))
        return plain_error(404)

    async def websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = request_of(scope)
        visit = _Visit(request, self.sessions, self.site.session_cookie)
        chosen = self.choose(request, visit, websocket=True)
        if chosen is None:
            await refuse_websocket(receive, send)
            return
        route: Route = self.site.routes[chosen[0]]
        try:
            self.change(route.operations, request, chosen[1], visit)
        except StateError:
            await refuse_websocket(receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        if route.websocket == "echo":
            while (message := await _message(receive)) is not None:
                await send(
                    {
                        "type": "websocket.send",
                        "text" if isinstance(message, str) else "bytes": message,
                    }
                )
        else:
            await _play(route.script, self.view(request, chosen[1], visit), receive, send)


def _listed(directory: Path) -> Mapping[str, StoredFile]:
    files = list_files(directory, hidden=True, max_files=MAX_STATIC_FILES, max_depth=MAX_DEPTH)
    return {file.name: file for file in files}


async def _message(receive: Receive) -> str | bytes | None:
    event = await receive()
    if event["type"] != "websocket.receive":
        return None
    text = event.get("text")
    found: str | bytes = text if text is not None else event.get("bytes") or b""
    return found if len(found) <= MAX_MESSAGE_BYTES else None


async def _play(script: tuple[Line, ...], view: View, receive: Receive, send: Send) -> None:
    for line in script:
        if line.verb == "close":
            await send({"type": "websocket.close", "code": line.code})
            return
        text = render(line.text, view, "none") if line.text is not None else None
        if line.verb == "send":
            await send({"type": "websocket.send", "text": text})
            continue
        message = await _message(receive)
        if message is None:
            return
        if text is not None and message != text:
            await send({"type": "websocket.close", "code": 1008})
            return
    await send({"type": "websocket.close", "code": 1000})
