"""Reads and checks what an author wrote for an `http` stand-in. Nothing of it is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from belljar.network.stand_ins.documents import Document, Fault, Faults, read_document, read_file
from belljar.network.stand_ins.templates import MAX_TEMPLATE_CHARS, problem_of
from belljar.network.stand_ins.web import compact
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.units import kind_of, listed, nearest, parse_duration, quoted

# As JSON text, beyond what the author wrote. Python's values take up to twenty times as much.
MAX_STATE_CHARS: Final = 256 << 10
MAX_ROUTES: Final = 1000
MAX_DELAY_S: Final = 30.0
MAX_FILE_BYTES: Final = 256 << 20
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
STEP: Final = re.compile(r"\.(\{\{[^{}]+\}\}|[A-Za-z0-9_-]+)")
_FRAMING: Final = ("content-length", "transfer-encoding", "connection", "upgrade", "trailer", "te")
_OWN_FIELDS: Final = {"content-type": "; write `type`", "set-cookie": "; write `cookies`"}
Fields: TypeAlias = Mapping[str, Any]


def check(settings: Fields, directory: Path | None) -> Faults:
    """Return what is wrong with the routes, each with its place."""
    document, problems = read_site(settings, directory)
    if not document.problems:
        _Checker(document, directory).check()
    return (*problems, *document.problems)


def read_site(settings: Fields, directory: Path | None) -> tuple[Document, list[Fault]]:
    """Return the site's document, and what is wrong beside it."""
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
        for prefix, folder in static_of(site.get("static", {})):
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
        for method in methods_of(route):
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
        if "delay" in answer and not 0 <= delay_s_of(answer) <= MAX_DELAY_S:
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


def methods_of(route: Fields) -> list[str]:
    """Return the methods that a route takes."""
    given = route.get("methods", route.get("method", "GET"))
    return [str(method) for method in (given if isinstance(given, list) else [given])]


def static_of(value: Any) -> list[tuple[Any, Any]]:  # noqa: ANN401 - what the author wrote
    """Return prefixes and directories of static files."""
    return [*value.items()] if isinstance(value, dict) else [("/", value)]


def delay_s_of(answer: Fields) -> float:
    """Return an answer's delay; negative: it is none."""
    try:
        return parse_duration(str(answer.get("delay", "0s")))
    except ValueError:
        return -1.0
