"""The stand-in `http`: an author's routes with templates, state and files.

The first route that fits a request answers; then static files; then 404, or 405 where only the
method is wrong. A request's changes of the state and its answer are made at one time. Logic beyond
that belongs in a stand-in of kind `python`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from anyio import sleep

from belljar.network.gateway.context import App, Receive, Scope, Send, StandInContext
from belljar.network.stand_ins.documents import refuse_faults
from belljar.network.stand_ins.files import StoredFile, file_answer, find, list_files, stored_file
from belljar.network.stand_ins.site import (
    MAX_STATE_CHARS,
    STEP,
    Fields,
    check,
    delay_s_of,
    methods_of,
    pattern_of,
    read_site,
    static_of,
)
from belljar.network.stand_ins.templates import Chance, RenderError, Templates, moment, place_of
from belljar.network.stand_ins.web import (
    Answer,
    Request,
    compact,
    header_text,
    http_app,
    json_answer,
    parse_json,
    plain_error,
    refuse_websocket,
    request_of,
    text_answer,
)
from belljar.policy.files import MAX_DEPTH

__all__ = ["check", "make"]

MAX_SESSION_CHARS: Final = 8 << 10
MAX_STATE_DEPTH: Final = 160  # More than a request's JSON may have.
MAX_SESSIONS: Final = 1000
MAX_STATIC_FILES: Final = 20_000
MAX_MESSAGE_BYTES: Final = 1 << 20


class StateError(Exception):
    """A change of the state has no room, or no such place."""


# ---- state


class Sessions:
    """Sessions by ids that only the server makes. The one unused for longest goes first."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._random = random
        self._values: OrderedDict[str, Fields] = OrderedDict()

    def find(self, name: str) -> Fields | None:
        """Return the session of that id."""
        if name in self._values:
            self._values.move_to_end(name)
        return self._values.get(name)

    def keep(self, name: str, values: Fields) -> str:
        """Keep a session and return its id, which is new without a name."""
        name = name or self._random(16).hex()
        self._values[name] = values
        self._values.move_to_end(name)
        while len(self._values) > MAX_SESSIONS:
            self._values.popitem(last=False)
        return name


def change(root: Any, verb: str, keys: list[str], value: Any) -> None:  # noqa: ANN401 - JSON values
    """Change a tree of mappings in place. Raises `StateError`."""
    for key in keys[:-1]:
        root = root.setdefault(key, {}) if isinstance(root, dict) else None
    last = keys[-1]
    if not isinstance(root, dict):
        raise StateError("no mapping is there")
    if verb == "delete":
        root.pop(last, None)
    elif verb == "set":
        root[last] = value
    elif verb == "append":
        entries = root.setdefault(last, [])
        if not isinstance(entries, list):
            raise StateError("not a list")
        entries.append(value)
    else:
        number = root.get(last, 0)
        if type(number) is not int or abs(number) > 2**53:
            raise StateError("not a whole number")
        root[last] = number + value


def _copied(value: Any, most_chars: int = 1 << 30) -> dict[str, Any]:  # noqa: ANN401 - JSON values
    try:
        text = compact(value)
        copy = parse_json(text, MAX_STATE_DEPTH)
    except (TypeError, ValueError, RecursionError):
        raise StateError("no JSON value") from None
    if len(text) > most_chars:
        raise StateError("no room left")
    return dict(copy)


# ---- answers


class _Route:
    """A route that was checked."""

    def __init__(self, fields: Fields, directory: Path) -> None:
        self.pattern = pattern_of(str(fields["path"]))
        self.methods = methods_of(fields)
        self.is_websocket = "websocket" in fields
        self.when: str = fields.get("when", "")
        self.changes = [*_changes(fields.get("do", {}))]
        self.answers: list[Fields] = [
            {**answer, "body": (directory / answer["template"]).read_text("utf-8", "replace")}
            if "template" in answer
            else answer
            for answer in fields.get("answers", [fields])
        ]
        self.given = 0

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

    def answer(self) -> Fields:
        """Return the next answer, and the last one again and again."""
        self.given += 1
        return self.answers[min(self.given, len(self.answers)) - 1]


def _changes(value: Any) -> Iterator[tuple[str, str, list[str], Any]]:  # noqa: ANN401 - as written
    """Yield verb, root, names and value of each change."""
    for step in value if isinstance(value, list) else [value]:
        for verb, targets in step.items():
            for target in targets:
                root = target.partition(".")[0]
                argument = targets[target] if isinstance(targets, dict) else None
                yield verb, root, STEP.findall(target), argument


def make(context: StandInContext) -> App:
    """Return the ASGI app. Raises `PolicyError` as `check` finds."""
    refuse_faults(check(context.settings, context.files), context.id)
    document, _ = read_site(context.settings, context.files)
    server = _Http(context, document.value)
    return http_app(server.handle, websocket=server.websocket)


class _Http:
    def __init__(self, context: StandInContext, site: Fields) -> None:
        self._context, self._templates = context, Templates()
        self._routes = [_Route(fields, context.files) for fields in site.get("routes", [])]
        self._state = _copied(site.get("state", {}))
        self._most_chars = len(compact(self._state)) + MAX_STATE_CHARS
        self._cookie: str = site.get("session_cookie", "session")
        self._sessions = Sessions(context.random)
        self._static: list[tuple[str, Mapping[str, StoredFile]]] = []
        for prefix, folder in static_of(site.get("static", {})):
            bounds = {"max_files": MAX_STATIC_FILES, "max_depth": MAX_DEPTH}
            files = list_files(context.files / folder, hidden=True, **bounds)
            self._static.append((f"{prefix.rstrip('/')}/", {file.name: file for file in files}))
        answers = [answer for route in self._routes for answer in route.answers]
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
            "state": self._state,
            "session": self._sessions.find(request.cookies.get(self._cookie, "")) or {},
            "now": moment(self._context.clock()),
            "random": Chance(self._context.random),
        }

    def _choose(
        self, request: Request, view: dict[str, Any], *, is_websocket: bool
    ) -> _Route | None:
        """Return the first route that fits, with its path's parameters in the view, or None."""
        for route in self._routes:
            if route.is_websocket is not is_websocket:
                continue
            if not is_websocket and not route.takes(request.method):
                continue
            view["path"] = route.match(request.raw_path)
            if view["path"] is None:
                continue
            if not route.when or self._templates.find(route.when, view):
                return route
        return None

    async def handle(self, request: Request) -> Answer:
        try:
            view = self._view(request)
            route = self._choose(request, view, is_websocket=False)
            if route is None:
                return self._fallback(request)
            fields = route.answer()
            started = self._change(route, request, view)
            answer = self._answer(fields, request, view, started)
        except (StateError, RenderError):
            return plain_error(500)
        if delay_s := delay_s_of(fields):
            await sleep(delay_s)
        return answer

    def _change(self, route: _Route, request: Request, view: dict[str, Any]) -> str:
        """Change the state and the view, or nothing; return the id of a session that begins."""
        if not route.changes:
            return ""
        name, most = request.cookies.get(self._cookie, ""), self._most_chars
        view |= {"state": _copied(self._state), "session": _copied(view["session"])}
        roots = set()
        for verb, root, steps, argument in route.changes:
            keys = [self._templates.render(step, view, "none") for step in steps]
            value = _copied({"": self._templates.value(argument, view)})[""]
            change(view[root], verb, keys, value)
            roots.add(root)
        state = _copied(view["state"], most)
        session = _copied(view["session"], MAX_SESSION_CHARS)
        self._state = state
        if "session" not in roots:
            return ""
        known = self._sessions.find(name) is not None
        made = self._sessions.keep(name if known else "", session)
        return "" if known else made

    def _answer(
        self, fields: Fields, request: Request, view: dict[str, Any], started: str
    ) -> Answer:
        render = self._templates.render
        headers = [
            (name.lower(), header_text(render(str(text), view, "none")))
            for name, text in fields.get("headers", {}).items()
        ]
        if started:
            cookie = f"{self._cookie}={started}; Path=/; HttpOnly; SameSite=Lax"
            headers.append(("set-cookie", cookie))
        for name, text in fields.get("cookies", {}).items():
            shown = header_text(render("" if text is None else str(text), view, "none"))
            shown = re.sub("[;,]", "", shown)
            age = "; Max-Age=0" if text is None else ""
            headers.append(("set-cookie", f"{name}={shown}; Path=/{age}"))
        status = fields.get("status", 302 if "redirect" in fields else 200)
        media, pairs = fields.get("type", ""), tuple(headers)
        if "file" in fields:
            file = self._files[fields["file"]]
            return file_answer(file, request, status=status, media=media, headers=pairs)
        if "json" in fields:
            value = self._templates.value(fields["json"], view)
            return json_answer(value, status, pairs, media=media or "application/json")
        if "redirect" in fields:
            location = header_text(render(str(fields["redirect"]), view, "url"))
            return plain_error(status, (("location", location), *pairs))
        if "body" not in fields:
            return Answer(status=status, headers=pairs)
        body = str(fields["body"])
        if not media:
            is_page = body.lstrip().startswith("<")
            is_page |= str(fields.get("template", "")).endswith((".html", ".htm"))
            media = f"text/{'html' if is_page else 'plain'}; charset=utf-8"
        return text_answer(render(body, view, place_of(media)), status, pairs, media=media)

    def _fallback(self, request: Request) -> Answer:
        is_read = request.method in ("GET", "HEAD")
        for prefix, files in self._static if is_read else ():
            if request.path.startswith(prefix):
                found = find(files, request.path.removeprefix(prefix))
                if isinstance(found, str):
                    return plain_error(301, (("location", f"{request.raw_path}/"),))
                if found is not None:
                    return file_answer(found, request)
        routes = [
            route
            for route in self._routes
            if not route.is_websocket and route.match(request.raw_path) is not None
        ]
        if not routes or any(route.takes(request.method) for route in routes):
            return plain_error(404)
        allowed = sorted({method for route in routes for method in route.methods})
        return plain_error(405, (("allow", ", ".join(allowed)),))

    async def websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send each message back."""
        try:
            request = request_of(scope)
            view = self._view(request)
            route = self._choose(request, view, is_websocket=True)
            if route is not None:
                self._change(route, request, view)
        except (StateError, RenderError):
            route = None
        if route is None:
            await refuse_websocket(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        while (event := await receive())["type"] == "websocket.receive":
            kind = "bytes" if event.get("text") is None else "text"
            message = event.get(kind) or b""
            if len(message) > MAX_MESSAGE_BYTES:
                return
            await send({"type": "websocket.send", kind: message})
