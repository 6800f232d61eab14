"""Reads and checks what an author wrote for an `http` stand-in. Nothing of it is run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from belljar.network.stand_ins.faults import MAX_FAULTS, Fault, Faults, read_file
from belljar.network.stand_ins.templates import MAX_TEMPLATE_CHARS, problem_of
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.units import kind_of, listed, nearest, quoted

# Routes are tried one after the other for each request.
MAX_ROUTES: Final = 1000
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_BODIES: Final = ("body", "json", "file", "template", "redirect")
_ANSWER: Final = ("status", "headers", "type", *_BODIES)
_ROUTE: Final = ("path", "method", "methods")
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_MEDIA: Final = re.compile(r"[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+(\s*;[\x20-\x7e]*)?", re.ASCII)
_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(\.\.\.)?\}", re.ASCII)
_FRAMING: Final = ("content-length", "transfer-encoding", "connection", "upgrade", "trailer", "te")
_OWN_FIELDS: Final = {"content-type": "; write `type`"}
Fields: TypeAlias = Mapping[str, Any]


def check(settings: Fields, directory: Path | None) -> Faults:
    """Return what is wrong with the routes, each with its place."""
    checker = _Checker(directory)
    checker.check(settings)
    return tuple(checker.faults[:MAX_FAULTS])


class _Checker:
    """Notes each mistake with its place."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self.faults: list[Fault] = []

    def _wrong(self, path: FieldPath, message: str) -> None:
        self.faults.append(Fault(message, path))

    def check(self, site: Fields) -> None:
        routes = site.get("routes", [])
        if len(routes) > MAX_ROUTES:
            self._wrong(("routes",), f"{MAX_ROUTES} routes are allowed, these are {len(routes)}")
        for index, route in enumerate(routes[:MAX_ROUTES]):
            self._check_route(route, ("routes", index))
        for prefix, folder in site.get("static", {}).items():
            self._check_folder(prefix, folder, ("static", prefix))

    def _mapping(self, value: object, path: FieldPath, allowed: tuple[str, ...] = ()) -> Fields:
        if not isinstance(value, dict):
            self._wrong(path, f"a mapping is needed, but this is {kind_of(value)}")
            return {}
        for name in value if allowed else ():
            if name not in allowed:
                near = nearest(name, allowed)
                hint = f"did you mean `{near}`?" if near else f"the fields are {listed(allowed)}"
                self._wrong((*path, name), f"there is no such field; {hint}")
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
        own = {name: route[name] for name in route if name in _ANSWER}
        self._check_answer(own, path)

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
        for name, value in self._mapping(answer.get("headers", {}), (*path, "headers")).items():
            self._check_texts(value, (*path, "headers", name))
            if not _TOKEN.fullmatch(name) or name.lower() in (*_FRAMING, *_OWN_FIELDS):
                hint = _OWN_FIELDS.get(name.lower(), "")
                self._wrong((*path, "headers", name), f"{quoted(name)} can't be set{hint}")
        for field in ("body", "redirect", "json"):
            self._check_texts(answer.get(field), (*path, field), may_nest=field == "json")
        # A file is served in pieces: a gateway has no memory for a large one.
        for field, most in (("file", None), ("template", MAX_TEMPLATE_CHARS)):
            if field in answer:
                data = read_file(self._directory, answer[field], most)
                if isinstance(data, Fault):
                    self._wrong((*path, field), str(data))
                elif field == "template":
                    text = data.decode("utf-8", "replace")
                    self._check_texts(text, (*path, field), file=f"{answer[field]}: ")

    def _check_texts(
        self, value: object, path: FieldPath, *, may_nest: bool = False, file: str = ""
    ) -> None:
        """Check each text of a value as a template."""
        if isinstance(value, dict | list) and may_nest:
            for name, item in value.items() if isinstance(value, dict) else enumerate(value):
                self._check_texts(item, (*path, name), may_nest=True)
        elif isinstance(value, dict | list):
            self._wrong(path, f"text is needed, but this is {kind_of(value)}")
        elif isinstance(value, str) and (problem := problem_of(value)):
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
