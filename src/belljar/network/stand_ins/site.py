"""Reads what an author wrote for an `http` stand-in; every mistake is noted with its place."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from belljar.network.stand_ins.documents import (
    Document,
    Fault,
    Faults,
    read_document,
    read_file,
)
from belljar.network.stand_ins.routes import (
    MAX_STATE_BYTES,
    METHODS,
    Condition,
    Line,
    Pattern,
    Reply,
    Route,
    Site,
    StateChange,
    parse_pattern,
)
from belljar.network.stand_ins.templates import (
    MAX_TEMPLATE_CHARS,
    Expression,
    Reference,
    Template,
    TemplateError,
    parse_reference,
    parse_template,
    references,
    text_of,
)
from belljar.network.stand_ins.web import compact
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.units import kind_of, listed, nearest, parse_duration, quoted

SETTINGS: Final = ("routes", "state", "static", "session_cookie")
MAX_ROUTES: Final = 1000
MAX_DELAY_S: Final = 30.0
MAX_FILE_BYTES: Final = 256 << 20
_BODIES: Final = ("body", "json", "file", "template", "redirect")
_REPLY: Final = ("status", "headers", "cookies", "type", *_BODIES, "delay")
_ROUTE: Final = ("path", "method", "methods", "when", "do", "answers", "websocket")
_OPERATORS: Final = ("equals", "exists", "contains", "starts")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_MEDIA: Final = re.compile(r"[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+(\s*;[\x20-\x7e]*)?", re.ASCII)
_FRAMING: Final = ("content-length", "transfer-encoding", "connection", "upgrade", "trailer", "te")
_OWN_FIELDS: Final = {"content-type": "; write `type`", "set-cookie": "; write `cookies`"}


def load_site(settings: Mapping[str, Any], directory: Path | None) -> tuple[Site, Faults]:
    """The site, and what is wrong with it: then the site lacks what could not be read."""
    routes, others = settings.get("routes"), list[str]()
    if isinstance(routes, str):
        document = read_document(directory, routes, what="a file of routes")
        others = [name for name in settings if name != "routes"]
    else:
        document = Document(source="", value=dict(settings))
    problems = [Fault("belongs in the file that `routes` names", (name,)) for name in others]
    site = Site() if document.problems else _SiteReader(document, directory).site()
    return site, (*problems, *document.problems)


class _SiteReader:
    def __init__(self, document: Document, directory: Path | None) -> None:
        self.document, self.directory = document, directory
        self.wrong = document.problem
        self.parameters: frozenset[str] = frozenset()

    def mapping(
        self, value: object, path: FieldPath, allowed: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.wrong(path, f"a mapping is needed, but this is {kind_of(value)}")
            return {}
        if not allowed:
            return value
        for name in value:
            if name not in allowed:
                near = nearest(name, allowed)
                hint = f"did you mean `{near}`?" if near else f"the fields are {listed(allowed)}"
                self.wrong((*path, name), f"there is no such field; {hint}", key=True)
        return {name: item for name, item in value.items() if name in allowed}

    def site(self) -> Site:
        value = self.mapping(self.document.value, (), SETTINGS)
        routes = value.get("routes", [])
        if not isinstance(routes, list) or len(routes) > MAX_ROUTES:
            needed = f"a list of at most {MAX_ROUTES} routes is needed"
            self.wrong(("routes",), f"{needed}, or the name of a file with one")
            routes = []
        if not value.get("routes") and "static" not in value:
            self.wrong((), "there is nothing to answer: write `routes`, `static` or both")
        read = tuple(self.route(item, ("routes", index)) for index, item in enumerate(routes))
        self.unreachable(read)
        state = self.mapping(value.get("state", {}), ("state",))
        if len(compact(state)) > MAX_STATE_BYTES // 2:
            self.wrong(("state",), f"larger than {MAX_STATE_BYTES // 2} characters as JSON")
        cookie = value.get("session_cookie", "session")
        if not isinstance(cookie, str) or not _TOKEN.fullmatch(cookie):
            self.wrong(("session_cookie",), f"{quoted(cookie)} is no name of a cookie")
        static = self.static(value.get("static", {}))
        return Site(routes=read, state=state, static=static, session_cookie=str(cookie))

    def unreachable(self, routes: tuple[Route, ...]) -> None:
        seen: dict[object, int] = {}
        for index, route in enumerate(routes):
            for method in route.methods:
                key = (route.pattern.shape, method, bool(route.websocket))
                if key in seen:
                    answers = (
                        f"routes[{seen[key]}] answers {method} here whatever the request holds"
                    )
                    self.wrong(("routes", index, "path"), f"never reached: {answers}")
                elif not route.conditions:
                    seen[key] = index

    def static(self, value: object) -> tuple[tuple[str, str], ...]:
        found = []
        is_one = isinstance(value, str)
        folders = {"/": value} if is_one else self.mapping(value, ("static",))
        for prefix, folder in folders.items():
            path: FieldPath = ("static",) if is_one else ("static", prefix)
            if not isinstance(folder, str) or not prefix.startswith("/"):
                self.wrong(path, "a path that begins with `/`, and a directory")
                continue
            if Path(folder).is_absolute() or ".." in Path(folder).parts:
                outside = f"{quoted(folder)} is not below the stand-in's directory"
                self.wrong(path, f"{outside}: write it relative, without `..`")
            elif self.directory is None or not (self.directory / folder).is_dir():
                self.wrong(path, f"{quoted(folder)} is no directory among the stand-in's files")
            found.append((prefix.rstrip("/") + "/", folder))
        return tuple(found)

    def route(self, value: object, path: FieldPath) -> Route:
        fields = self.mapping(value, path, _ROUTE + _REPLY)
        pattern = self.pattern(fields.get("path"), path)
        self.parameters = pattern.parameters
        websocket, script = self.websocket(fields, path)
        return Route(
            pattern=pattern,
            methods=self.methods(fields, path),
            conditions=self.conditions(fields.get("when", {}), (*path, "when")),
            changes=self.changes(fields.get("do", []), (*path, "do")),
            replies=(Reply(),) if websocket else self.replies(fields, path),
            websocket=websocket,
            script=script,
        )

    def pattern(self, text: object, path: FieldPath) -> Pattern:
        try:
            if not isinstance(text, str):
                raise ValueError("a route needs a path, as in `/items/{id}`")
            return parse_pattern(text)
        except ValueError as exc:
            self.wrong((*path, "path"), str(exc))
            return Pattern(("",))

    def methods(self, fields: Mapping[str, Any], path: FieldPath) -> tuple[str, ...]:
        if "method" in fields and "methods" in fields:
            self.wrong((*path, "methods"), "write `method` or `methods`, not both")
        name = "methods" if "methods" in fields else "method"
        given = fields.get(name, "GET")
        methods = given if isinstance(given, list) and name == "methods" else [given]
        for method in methods:
            if method not in METHODS:
                self.wrong((*path, name), f"{quoted(method)} is none of {listed(METHODS)}")
        return tuple(str(method) for method in methods)

    def conditions(self, value: object, path: FieldPath) -> tuple[Condition, ...]:
        found = []
        for name, expected in self.mapping(value, path).items():
            here: FieldPath = (*path, name)
            reference = self.reference(name, here)
            if reference is None:
                continue
            operator: Any = "equals"
            if isinstance(expected, dict):
                if len(expected) != 1 or next(iter(expected)) not in _OPERATORS:
                    needed = f"a condition is a value, or one of {listed(_OPERATORS)} with a value"
                    self.wrong(here, needed)
                    continue
                ((operator, expected),) = expected.items()
                here = (*here, operator)
                if operator == "exists" and not isinstance(expected, bool):
                    self.wrong(here, f"true or false is needed, but this is {kind_of(expected)}")
            found.append(Condition(reference, operator, self.value(expected, here)))
        return tuple(found)

    def changes(self, value: object, path: FieldPath) -> tuple[StateChange, ...]:
        found: list[StateChange] = []
        verbs = ("set", "append", "increment", "delete")
        for index, item in enumerate(value if isinstance(value, list) else [value]):
            here = (*path, index) if isinstance(value, list) else path
            for verb, targets in self.mapping(item, here, verbs).items():
                if verb == "delete" and isinstance(targets, list):
                    targets = {str(name): None for name in targets}
                for name, argument in self.mapping(targets, (*here, verb)).items():
                    at = (*here, verb) if verb == "delete" else (*here, verb, name)
                    found += self.change(verb, name, argument, at)
        return tuple(found)

    def change(
        self,
        verb: Any,  # noqa: ANN401 - one of four words
        name: str,
        argument: object,
        path: FieldPath,
    ) -> list[StateChange]:
        target = self.reference(name, path)
        if target is None:
            return []
        if target.root not in ("state", "session") or not target.steps:
            what = "only what lies below `state` and `session` can be changed"
            self.wrong(path, f"{what}, not {quoted(name)}")
            return []
        if verb == "increment" and type(argument) is not int:
            self.wrong(path, f"a whole number is needed, but this is {kind_of(argument)}")
            return []
        return [StateChange(verb, target, None if verb == "delete" else self.value(argument, path))]

    def replies(self, fields: Mapping[str, Any], path: FieldPath) -> tuple[Reply, ...]:
        own = {name: value for name, value in fields.items() if name in _REPLY}
        if "answers" not in fields:
            return (self.reply(own, path),)
        answers, path = fields["answers"], (*path, "answers")
        if own:
            self.wrong(path, f"with `answers`, {listed(own)} belongs into each of them")
        if not isinstance(answers, list) or not 0 < len(answers) <= 1000:
            self.wrong(path, "a list of 1 to 1000 answers is needed")
            return (Reply(),)
        return tuple(
            self.reply(self.mapping(item, (*path, n), _REPLY), (*path, n))
            for n, item in enumerate(answers)
        )

    def reply(self, fields: Mapping[str, Any], path: FieldPath) -> Reply:
        bodies = [name for name in _BODIES if name in fields]
        if len(bodies) > 1:
            one = f"an answer has one of {listed(_BODIES)}"
            self.wrong((*path, bodies[1]), f"{one}, this has {listed(bodies)}")
        status = fields.get("status", 302 if "redirect" in fields else 200)
        if type(status) is not int or not 200 <= status <= 599:
            what = f"{quoted(status)} is no status: a whole number from 200 to 599"
            self.wrong((*path, "status"), what)
        media = fields.get("type", _default_media(fields))
        if not isinstance(media, str) or (media and not _MEDIA.fullmatch(media)):
            what = f"{quoted(media)} is no content type, as in `text/html; charset=utf-8`"
            self.wrong((*path, "type"), what)
        redirect = fields.get("redirect")
        return Reply(
            status=status if type(status) is int else 200,
            headers=self.headers(fields.get("headers", {}), (*path, "headers")),
            cookies=self.cookies(fields.get("cookies", {}), (*path, "cookies")),
            media=str(media),
            text=self.text(fields, path),
            has_value="json" in fields,
            value=self.value(fields.get("json"), (*path, "json")),
            file=self.file(fields.get("file", ""), (*path, "file")),
            redirect=self.template(redirect, (*path, "redirect")) if "redirect" in fields else None,
            delay_s=self.delay(fields.get("delay"), (*path, "delay")),
        )

    def text(self, fields: Mapping[str, Any], path: FieldPath) -> Template | None:
        if "body" in fields:
            return self.template(fields["body"], (*path, "body"))
        if "template" not in fields:
            return None
        here = (*path, "template")
        data = read_file(self.directory, fields["template"], MAX_TEMPLATE_CHARS)
        if isinstance(data, Fault):
            self.wrong(here, str(data))
            return None
        text = data.decode("utf-8", "replace")
        try:
            return self.named(parse_template(text), here)
        except TemplateError as exc:
            before = text[: exc.offset]
            line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
            self.wrong(here, f"{fields['template']}:{line}:{column}: {exc}")
            return None

    def headers(self, value: object, path: FieldPath) -> tuple[tuple[str, Template], ...]:
        found = []
        for name, text in self.mapping(value, path).items():
            if not _TOKEN.fullmatch(name) or name.lower() in (*_FRAMING, *_OWN_FIELDS):
                hint = _OWN_FIELDS.get(name.lower(), "")
                self.wrong((*path, name), f"{quoted(name)} can't be set{hint}", key=True)
            found.append((name.lower(), self.template(text, (*path, name))))
        return tuple(found)

    def cookies(self, value: object, path: FieldPath) -> tuple[tuple[str, Template | None], ...]:
        found = []
        for name, text in self.mapping(value, path).items():
            if not _TOKEN.fullmatch(name):
                self.wrong((*path, name), f"{quoted(name)} is no name of a cookie", key=True)
            found.append((name, None if text is None else self.template(text, (*path, name))))
        return tuple(found)

    def file(self, name: object, path: FieldPath) -> str:
        if name == "":
            return ""
        data = read_file(self.directory, name, MAX_FILE_BYTES)
        if isinstance(data, Fault):
            self.wrong(path, str(data))
        return str(name)

    def delay(self, value: object, path: FieldPath) -> float:
        if value is None:
            return 0.0
        try:
            seconds = parse_duration(value) if isinstance(value, str) else -1.0
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= MAX_DELAY_S:
            needed = f"a duration of at most {MAX_DELAY_S:.0f}s, as in `250ms`"
            self.wrong(path, f"{quoted(value)} is no delay: {needed}")
        return min(max(seconds, 0.0), MAX_DELAY_S)

    def websocket(
        self, fields: Mapping[str, Any], path: FieldPath
    ) -> tuple[Literal["", "echo", "script"], tuple[Line, ...]]:
        if "websocket" not in fields:
            return "", ()
        here, value = (*path, "websocket"), fields["websocket"]
        wrong = [name for name in fields if name not in ("path", "when", "do", "websocket")]
        if wrong:
            self.wrong((*path, wrong[0]), f"{listed(wrong)} says nothing for a WebSocket", key=True)
        if value == "echo":
            return "echo", ()
        if not isinstance(value, list):
            self.wrong(here, "a WebSocket is `echo`, or a list of `send`, `expect` and `close`")
            return "echo", ()
        return "script", tuple(self.line(item, (*here, index)) for index, item in enumerate(value))

    def line(self, value: object, path: FieldPath) -> Line:
        fields = self.mapping(value, path, ("send", "expect", "close"))
        if len(fields) != 1:
            self.wrong(path, "a step is one of `send`, `expect` and `close`")
            return Line(verb="close")
        verb, argument = next(iter(fields.items()))
        if verb == "close":
            if type(argument) is not int or not (argument == 1000 or 3000 <= argument <= 4999):
                what = f"{quoted(argument)} is no close code: 1000, or 3000 to 4999"
                self.wrong((*path, verb), what)
            return Line(verb="close", code=argument if type(argument) is int else 1000)
        if verb == "expect" and argument is True:
            return Line(verb="expect")
        text = self.template(argument, (*path, verb))
        return Line(verb="send" if verb == "send" else "expect", text=text)

    def reference(self, text: str, path: FieldPath) -> Reference | None:
        try:
            reference = parse_reference(text)
        except TemplateError as exc:
            self.wrong(path, f"{exc} (character {exc.offset + 1})", key=True)
            return None
        self.named(Template((Expression(reference),)), path)
        return reference

    def template(self, text: object, path: FieldPath) -> Template:
        if isinstance(text, (dict, list)):
            self.wrong(path, f"text is needed, but this is {kind_of(text)}")
            return Template(("",))
        try:
            return self.named(parse_template(text_of(text)), path)
        except TemplateError as exc:
            self.wrong(path, f"{exc} (character {exc.offset + 1})")
            return Template(("",))

    def named(self, template: Template, path: FieldPath) -> Template:
        for reference in references(template):
            name = reference.steps[0] if reference.root == "path" else None
            if isinstance(name, str) and name not in self.parameters:
                self.wrong(path, f"the path has no parameter {quoted(name)}")
        return template

    def value(self, value: Any, path: FieldPath) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(value, str):
            return self.template(value, path)
        if isinstance(value, dict):
            return {name: self.value(item, (*path, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, (*path, n)) for n, item in enumerate(value)]
        return value


def _default_media(fields: Mapping[str, Any]) -> str:
    if "json" in fields:
        return "application/json"
    if "redirect" in fields or "file" in fields:
        return ""
    is_markup = str(fields.get("body", "")).lstrip().startswith("<")
    is_page = is_markup or str(fields.get("template")).endswith((".html", ".htm"))
    return f"text/{'html' if is_page else 'plain'}; charset=utf-8"
