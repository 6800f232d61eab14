"""Routes of an author or a decoy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from jinja2 import ChainableUndefined, TemplateError, TemplateSyntaxError, Undefined
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from belljar.network.stand_ins import web
from belljar.network.stand_ins.files import Fault, Faults, file_answer, read_file, stored_file
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.units import iso_time, listed, quoted

METHODS: Final = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
_BODIES: Final = ("body", "json", "file", "template")
_FIELDS: Final = ("path", "method", "status", "headers", "type", *_BODIES)
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_MEDIA: Final = re.compile(r"[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+(\s*;[\x20-\x7e]*)?", re.ASCII)
_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(\.\.\.)?\}", re.ASCII)
# The gateway frames an answer; its content type is the field `type`.
_OWN_HEADERS = {"content-length", "transfer-encoding", "connection", "upgrade", "trailer"}
_OWN_HEADERS |= {"content-type", "te"}
Fields: TypeAlias = Mapping[str, Any]

MAX_TEMPLATE_CHARS: Final = 1 << 20
MAX_RENDERED_CHARS: Final = 4 << 20  # A guest's body of a MiB may stand in a page several times.
# What an expression raises for values that it isn't meant for.
_FAILURES: Final = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError)


def _text_of(value: object) -> str:
    if value is None or isinstance(value, Undefined):
        return ""
    return value if isinstance(value, str) else web.compact(value)


class _Nothing(ChainableUndefined):
    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = ChainableUndefined.__hash__


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, *, is_markup: bool) -> None:
        super().__init__(undefined=_Nothing, autoescape=is_markup, finalize=_text_of, cache_size=0)
        self.globals.clear()  # `range`, `lipsum` and others make text without an end.

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - Jinja's signature
        """Prefer a request's own field to a mapping's method (`json.items`)."""
        is_field = isinstance(obj, Mapping) and attribute in obj
        return obj[attribute] if is_field else super().getattr(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Multiply numbers only: a text would escape its bound."""
        if operator == "**" or not all(isinstance(each, int | float) for each in (left, right)):
            raise SecurityError("only numbers are multiplied")
        return super().call_binop(context, operator, left, right)


_PLAIN: Final = _Environment(is_markup=False)  # What is inserted into HTML and XML is escaped.
_MARKUP: Final = _Environment(is_markup=True)
# Compiles the lexer's expressions where this is imported, in the fork server: once for all ranges.
_PLAIN.from_string("{{ x }}")


def problem_of(text: str) -> str:
    """Return the template's fault, or ""."""
    # Parsed alone: Jinja's compiler works constants out, and here is no jail.
    if len(text) > MAX_TEMPLATE_CHARS:
        return f"longer than {MAX_TEMPLATE_CHARS} characters"
    try:
        _PLAIN.parse(text)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    return ""


_template = cache(lambda text, made: made.from_string(text))


def render(text: str, view: Mapping[str, Any], *, is_markup: bool = False) -> str:
    """Return a template's text. Raises `ValueError`."""
    if "{" not in text:
        return text
    parts, size = list[str](), 0
    try:
        for part in _template(text, _MARKUP if is_markup else _PLAIN).generate(**view):
            parts.append(part)
            size += len(part)
            if size > MAX_RENDERED_CHARS:
                raise ValueError("longer than an answer may be")
    except _FAILURES as error:
        raise ValueError(str(error)) from error
    return "".join(parts)


def render_all(value: Any, view: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON values
    if isinstance(value, Mapping):
        return {name: render_all(item, view) for name, item in value.items()}
    if isinstance(value, list):
        return [render_all(item, view) for item in value]
    return render(value, view) if isinstance(value, str) else value


def check(settings: Fields, directory: Path | None) -> Faults:
    return tuple(
        Fault(what, ("routes", index, *where))
        for index, route in enumerate(settings.get("routes", []))
        for where, what in _wrong(route, directory)
    )


def _wrong(route: Fields, directory: Path | None) -> Iterator[tuple[FieldPath, str]]:
    headers, status, texts = route.get("headers", {}), route.get("status", 200), dict[Any, str]()
    for name in route.keys() - set(_FIELDS):
        yield (name,), f"there is no such field; the fields are {listed(_FIELDS)}"
    try:
        pattern_of(str(route.get("path", "")))
    except ValueError as error:
        yield ("path",), str(error)
    bodies = [name for name in _BODIES if name in route]
    for wrong, field, what in (
        (methods_of(route) - METHODS, "method", f"one or several of {listed(sorted(METHODS))}"),
        (bodies[1:], "".join(bodies[1:2]), f"at most one of {listed(_BODIES)}"),
        (type(status) is not int or not 200 <= status <= 599, "status", "a number, 200 to 599"),
        (not _MEDIA.fullmatch(str(route.get("type", "text/html"))), "type", "as in `text/html`"),
        (not isinstance(headers, dict), "headers", "a mapping"),
    ):
        if wrong:
            yield (field,), f"{quoted(route.get(field))} is wrong: {what} is needed"
    for name in headers if isinstance(headers, dict) else ():
        if not _TOKEN.fullmatch(name) or name.lower() in _OWN_HEADERS:
            yield ("headers", name), f"{quoted(name)} can't be set"
    for field in ("headers", "body", "json"):
        texts |= _texts(route.get(field), (field,))
    # A file is served in pieces: a gateway has no memory for a large one.
    for field, most in (("file", None), ("template", MAX_TEMPLATE_CHARS)):
        try:
            data = read_file(directory, route[field], most) if field in route else b""
            texts |= {(field,): data.decode("utf-8", "replace")} if field == "template" else {}
        except ValueError as error:
            yield (field,), f"{route[field]}: {error}"
    yield from ((where, why) for where, text in texts.items() if (why := problem_of(text)))


def _texts(value: object, path: FieldPath) -> dict[FieldPath, str]:
    if isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {k: v for name, item in items for k, v in _texts(item, (*path, name)).items()}
    return {path: value} if isinstance(value, str) else {}


def pattern_of(path: str) -> re.Pattern[str]:
    """Return the pattern of `/items/{id}` or `/files/{rest...}`. Raises `ValueError`."""
    if not path.startswith("/") or any(char in path for char in "?# \t\r\n"):
        raise ValueError("a path begins with `/` and has no query, no fragment and no blank")
    pattern, parts = "", path.split("/")[1:]
    for index, part in enumerate(parts):
        match = _PARAMETER.fullmatch(part)
        if match is None and ("{" in part or "}" in part):
            example = "as in `/items/{id}` or `/files/{rest...}`"
            raise ValueError(f"a parameter fills a whole segment, {example}")
        if match is None:
            pattern += f"/{re.escape(unquote(part))}"
        elif match[2] and index < len(parts) - 1:
            raise ValueError("`{…...}` takes all that is left, so it can only stand at the end")
        else:
            pattern += f"/(?P<{match[1]}>{'.+' if match[2] else '[^/]+'})"
    try:
        return re.compile(pattern, re.DOTALL)
    except re.error:
        raise ValueError("two parameters have one name") from None


def methods_of(route: Fields) -> set[str]:
    given = route.get("method", "GET")
    found = {str(method) for method in (given if isinstance(given, list) else [given])}
    return found | {"HEAD"} if "GET" in found else found


class _Http(web.HttpService):
    def __init__(self, context: web.StandInContext) -> None:
        super().__init__(context)
        site: Any = context.settings
        self._routes = [(pattern_of(one["path"]), methods_of(one), one) for one in site["routes"]]

    async def handle(self, request: web.Request) -> web.HttpAnswer:
        random = self.context.random
        # An encoded `/` splits no segment.
        parts = (unquote(part, errors="replace") for part in request.raw_path.split("/"))
        path = "/".join(part.replace("/", "\0") for part in parts)
        fitting = (
            (pattern.fullmatch(path), fields)
            for pattern, methods, fields in self._routes
            if request.method in methods
        )
        found, fields = next((pair for pair in fitting if pair[0]), (None, {}))
        if found is None:
            return web.plain_error(404)
        view = {
            "path": {name: text.replace("\0", "/") for name, text in found.groupdict().items()},
            "query": dict(reversed(request.query)),
            "form": dict(reversed(request.form)),
            "header": {name: request.header(name) for name, _ in request.headers},
            "cookie": request.cookies,
            "json": request.json if request.body else None,
            "body": request.body.decode("utf-8", "replace"),
            "method": request.method,
            "host": request.host,
            "url": request.url,
            "now": iso_time(self.context.clock()),
            "random": {"hex": lambda count: random(max(1, min(int(count), 256))).hex()},
        }
        try:
            return self._answer(fields, view)
        except (TypeError, ValueError, RecursionError):  # also: no JSON value
            return web.plain_error(500)

    def _answer(self, fields: Fields, view: Fields) -> web.HttpAnswer:
        pairs = tuple(
            (name.lower(), web.header_text(render(str(text), view)))
            for name, text in fields.get("headers", {}).items()
        )
        status = fields.get("status", 200)
        media = fields.get("type", "")
        if "file" in fields:
            file = stored_file(self.context.files / fields["file"], fields["file"])
            return file_answer(file, status=status, media=media, headers=pairs)
        if "json" in fields:
            value = render_all(fields["json"], view)
            return web.json_answer(value, status, pairs, media=media or "application/json")
        body = str(fields.get("body", ""))
        if "template" in fields:
            body = (self.context.files / fields["template"]).read_text("utf-8", "replace")
        elif not body:
            return web.HttpAnswer(status=status, headers=pairs)
        if not media:
            is_page = body.lstrip().startswith("<")
            is_page |= str(fields.get("template", "")).endswith((".html", ".htm"))
            media = f"text/{'html' if is_page else 'plain'}; charset=utf-8"
        kind = media.partition(";")[0].strip().lower()
        is_markup = kind == "text/html" or kind.endswith(("/xml", "+xml"))
        text = render(body, view, is_markup=is_markup)
        return web.text_answer(text, status, pairs, media=media)


make = _Http
