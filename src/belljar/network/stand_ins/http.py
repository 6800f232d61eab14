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
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from anyio import sleep

from belljar.network.gateway.context import App, Receive, Scope, Send, StandInContext
from belljar.network.stand_ins.documents import (
    Document,
    Fault,
    Faults,
    read_document,
    read_file,
    refuse_faults,
)
from belljar.network.stand_ins.files import StoredFile, file_answer, find, list_files, stored_file
from belljar.network.stand_ins.templates import (
    MAX_TEMPLATE_CHARS,
    Chance,
    RenderError,
    Templates,
    moment,
    place_of,
    problem_of,
)
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
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.units import kind_of, listed, nearest, parse_duration, quoted

# As JSON text, beyond what the author wrote. Python's values take up to twenty times as much.
MAX_STATE_CHARS: Final = 256 << 10
MAX_SESSION_CHARS: Final = 8 << 10
MAX_STATE_DEPTH: Final = 160  # More than a request's JSON may have.
MAX_SESSIONS: Final = 1000
MAX_ROUTES: Final = 1000
MAX_DELAY_S: Final = 30.0
MAX_FILE_BYTES: Final = 256 << 20
MAX_STATIC_FILES: Final = 20_000
MAX_MESSAGE_BYTES: Final = 1 << 20
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
SETTINGS: Final = ("routes", "state", "static", "session_cookie")
_BODIES: Final = ("body", "json", "file", "template", "redirect")
_ANSWER: Final = ("status", "headers", "cookies", "type", "delay", *_BODIES)
_ROUTE: Final = ("path", "method", "methods", "when", "do", "answers", "websocket")
_VERBS: Final = ("set", "append", "increment", "delete")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_MEDIA: Final = re.compile(r"[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+(\s*;[\x20-\x7e]*)?", re.ASCII)
_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(\.\.\.)?\}", re.ASCII)
# A target of `do`: `state` or `session`, and names with points; a name may be a template.
_TARGET: Final = re.compile(r"(state|session)((\.(\{\{[^{}]+\}\}|[A-Za-z0-9_-]+)){1,16})")
_STEP: Final = re.compile(r"\.(\{\{[^{}]+\}\}|[A-Za-z0-9_-]+)")
_FRAMING: Final = ("content-length", "transfer-encoding", "connection", "upgrade", "trailer", "te")
_OWN_FIELDS: Final = {"content-type": "; write `type`", "set-cookie": "; write `cookies`"}
Fields: TypeAlias = Mapping[str, Any]


class StateError(Exception):
    """A change of the state has no room, or no such place."""


# ---- what an author wrote


def check(settings: Fields, directory: Path | None) -> Faults:
    """Return what is wrong with the routes, each with its place."""
    document, problems = _document(settings, directory)
    if not document.problems:
        _Checker(document, directory).check()
    return (*problems, *document.problems)


def _document(settings: Fields, directory: Path | None) -> tuple[Document, list[Fault]]:
    routes = settings.get("routes")
    if not isinstance(routes, str):
        return Document(source="", value=dict(settings)), []
    others = (name for name in settings if name != "routes")
    what = "belongs in the file that `routes` names"
    document = read_document(directory, routes, what="a file of routes")
    return document, [Fault(what, (name,)) for name in others]


class _Checker:
    """Notes each mistake of a document with its place."""

    def __init__(self, document: Document, directory: Path | None) -> None:
        self._document, self._directory = document, directory
        self._wrong = document.problem

    def check(self) -> None:
        site = self._mapping(self._document.value, (), SETTINGS)
        routes = site.get("routes", [])
        if not isinstance(routes, list) or len(routes) > MAX_ROUTES:
            what = f"a list of at most {MAX_ROUTES} routes is needed, or the name of a file"
            self._wrong(("routes",), what)
            routes = []
        if not site.get("routes") and "static" not in site:
            self._wrong((), "there is nothing to answer: write `routes`, `static` or both")
        for index, route in enumerate(routes):
            self._check_route(route, ("routes", index))
        if len(compact(self._mapping(site.get("state", {}), ("state",)))) > MAX_STATE_CHARS:
            self._wrong(("state",), f"larger than {MAX_STATE_CHARS} characters as JSON")
        cookie = site.get("session_cookie", "session")
        if not isinstance(cookie, str) or not _TOKEN.fullmatch(cookie):
            self._wrong(("session_cookie",), f"{quoted(cookie)} is no name of a cookie")
        for prefix, folder in _static(site.get("static", {})):
            self._check_folder(prefix, folder, ("static",))

    def _mapping(self, value: object, path: FieldPath, allowed: tuple[str, ...] = ()) -> Fields:
        if not isinstance(value, dict):
            self._wrong(path, f"a mapping is needed, but this is {kind_of(value)}")
            return {}
        for name in value if allowed else ():
            if name not in allowed:
                near = nearest(name, allowed)
                hint = f"did you mean `{near}`?" if near else f"the fields are {listed(allowed)}"
                self._wrong((*path, name), f"there is no such field; {hint}", key=True)
        return value

    def _check_folder(self, prefix: object, folder: object, path: FieldPath) -> None:
        if not isinstance(folder, str) or not str(prefix).startswith("/"):
            self._wrong(path, "a path that begins with `/`, and a directory")
        elif Path(folder).is_absolute() or ".." in Path(folder).parts:
            self._wrong(path, f"{quoted(folder)}: write it relative, without `..`")
        elif self._directory is None or not (self._directory / folder).is_dir():
            self._wrong(path, f"{quoted(folder)} is no directory among the stand-in's files")

    def _check_route(self, value: object, path: FieldPath) -> None:
        route = self._mapping(value, path, _ROUTE + _ANSWER)
        try:
            pattern_of(str(route.get("path", "")))
        except ValueError as error:
            self._wrong((*path, "path"), str(error))
        if "method" in route and "methods" in route:
            self._wrong((*path, "methods"), "write `method` or `methods`, not both")
        for method in _methods(route):
            if method not in METHODS:
                field = "methods" if "methods" in route else "method"
                self._wrong((*path, field), f"{quoted(method)} is none of {listed(METHODS)}")
        when = route.get("when", "")
        if not isinstance(when, str):
            what = 'an expression is needed, as in `form.user == "admin"`'
            self._wrong((*path, "when"), f"{what}, but this is {kind_of(when)}")
        elif "when" in route:
            self._check_text(when, (*path, "when"), is_expression=True)
        self._check_changes(route.get("do", {}), (*path, "do"))
        own = [name for name in route if name in _ANSWER]
        if "websocket" in route:
            if route["websocket"] != "echo":
                what = "a WebSocket is `echo`; one with logic is a stand-in of kind `python`"
                self._wrong((*path, "websocket"), what)
            if own or "answers" in route:
                self._wrong((*path, "websocket"), "a WebSocket has no answer")
        elif "answers" not in route:
            self._check_answer({name: route[name] for name in own}, path)
        elif own:
            self._wrong((*path, "answers"), f"{listed(own)} belongs into each of them")
        elif not isinstance(route["answers"], list) or not 0 < len(route["answers"]) <= 1000:
            self._wrong((*path, "answers"), "a list of 1 to 1000 answers is needed")
        else:
            for index, item in enumerate(route["answers"]):
                here = (*path, "answers", index)
                self._check_answer(self._mapping(item, here, _ANSWER), here)

    def _check_changes(self, value: object, path: FieldPath) -> None:
        steps = value if isinstance(value, list) else [value]
        for step in steps:
            for verb, targets in self._mapping(step, path, _VERBS).items():
                if verb == "delete" and isinstance(targets, list):
                    targets = dict.fromkeys(map(str, targets))
                for target, argument in self._mapping(targets, (*path, verb)).items():
                    here = (*path, verb, target)
                    if not _TARGET.fullmatch(target):
                        what = "is neither below `state` nor `session`, as in `state.seen`"
                        self._wrong(here, f"{quoted(target)} {what}")
                    self._check_text(target, here)
                    if verb == "increment" and type(argument) is not int:
                        what = f"a whole number is needed, but this is {kind_of(argument)}"
                        self._wrong(here, what)
                    self._check_value(argument, here)

    def _check_answer(self, answer: Fields, path: FieldPath) -> None:
        bodies = [name for name in _BODIES if name in answer]
        if len(bodies) > 1:
            what = f"an answer has one of {listed(_BODIES)}, this has {listed(bodies)}"
            self._wrong((*path, bodies[1]), what)
        status = answer.get("status", 200)
        if type(status) is not int or not 200 <= status <= 599:
            what = f"{quoted(status)} is no status: a whole number from 200 to 599"
            self._wrong((*path, "status"), what)
        media = answer.get("type", "")
        if not isinstance(media, str) or (media and not _MEDIA.fullmatch(media)):
            what = f"{quoted(media)} is no content type, as in `text/html; charset=utf-8`"
            self._wrong((*path, "type"), what)
        for field in ("headers", "cookies"):
            for name, text in self._mapping(answer.get(field, {}), (*path, field)).items():
                here = (*path, field, name)
                is_set = field == "headers" and name.lower() in (*_FRAMING, *_OWN_FIELDS)
                if not _TOKEN.fullmatch(name) or is_set:
                    hint = _OWN_FIELDS.get(name.lower(), "")
                    self._wrong(here, f"{quoted(name)} can't be set{hint}", key=True)
                self._check_text("" if text is None else text, here)
        if "delay" in answer and not 0 <= _delay_s(answer) <= MAX_DELAY_S:
            what = f"a duration of at most {MAX_DELAY_S:.0f}s, as in `250ms`"
            self._wrong((*path, "delay"), f"{quoted(answer['delay'])} is no delay: {what}")
        for field in ("body", "redirect"):
            self._check_text(answer.get(field, ""), (*path, field))
        self._check_value(answer.get("json"), (*path, "json"))
        for field, most in (("file", MAX_FILE_BYTES), ("template", MAX_TEMPLATE_CHARS)):
            if field in answer:
                data = read_file(self._directory, answer[field], most)
                if isinstance(data, Fault):
                    self._wrong((*path, field), str(data))
                elif field == "template":
                    text = data.decode("utf-8", "replace")
                    self._check_text(text, (*path, field), file=f"{answer[field]}: ")

    def _check_value(self, value: object, path: FieldPath) -> None:
        if isinstance(value, str):
            self._check_text(value, path)
        elif isinstance(value, dict | list):
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for name, item in items:
                self._check_value(item, (*path, name))

    def _check_text(
        self, text: object, path: FieldPath, *, is_expression: bool = False, file: str = ""
    ) -> None:
        if isinstance(text, dict | list):
            self._wrong(path, f"text is needed, but this is {kind_of(text)}")
            return
        if problem := problem_of(str(text), is_expression=is_expression):
            self._wrong(path, file + problem)


def pattern_of(path: str) -> re.Pattern[str]:
    """Return what `/items/{id}` or `/files/{rest...}` matches. Raises `ValueError`."""
    if not path.startswith("/") or any(char in path for char in "?# \t\r\n"):
        raise ValueError("a path begins with `/` and has no query, no fragment and no blank")
    pattern = ""
    for part in path.split("/")[1:]:
        match = _PARAMETER.fullmatch(part)
        if match is None and ("{" in part or "}" in part):
            example = "as in `/items/{id}` or `/files/{rest...}`"
            raise ValueError(f"a parameter fills a whole segment, {example}")
        if match is None:
            pattern += f"/{re.escape(unquote(part))}"
        else:
            pattern += f"/(?P<{match[1]}>{'.+' if match[2] else '[^/]+'})"
    if ".+" in pattern.partition(".+)")[2] or "/" in pattern.partition(".+)")[2]:
        raise ValueError("`{…...}` takes all that is left, so it can only stand at the end")
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error:
        raise ValueError("two parameters have one name") from None


def _methods(route: Fields) -> list[str]:
    given = route.get("methods", route.get("method", "GET"))
    return [str(method) for method in (given if isinstance(given, list) else [given])]


def _static(value: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401 - what the author wrote
    return [*value.items()] if isinstance(value, dict) else [("/", value)]


def _delay_s(answer: Fields) -> float:
    try:
        return parse_duration(str(answer.get("delay", "0s")))
    except ValueError:
        return -1.0


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
        self.methods = _methods(fields)
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
                yield verb, root, _STEP.findall(target), argument


def make(context: StandInContext) -> App:
    """Return the ASGI app. Raises `PolicyError` as `check` finds."""
    refuse_faults(check(context.settings, context.files), context.id)
    document, _ = _document(context.settings, context.files)
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
        for prefix, folder in _static(site.get("static", {})):
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
        if delay_s := _delay_s(fields):
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
