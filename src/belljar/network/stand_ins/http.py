"""The stand-in `http`: an author's routes with templates and files; and a decoy's admin page.

The first route that fits a request answers; then static files; then 404. Nothing of a request is
kept: what remembers its visitors, or decides what it answers, is a stand-in of kind `python`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import unquote

from jinja2 import ChainableUndefined, TemplateError, TemplateSyntaxError, Undefined, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from belljar.network.gateway.context import StandInContext
from belljar.network.stand_ins.faults import MAX_FAULTS, Fault, Faults, read_file, refuse_faults
from belljar.network.stand_ins.files import StoredFile, file_answer, list_files, stored_file
from belljar.network.stand_ins.web import (
    Answer,
    App,
    Request,
    compact,
    header_text,
    http_app,
    json_answer,
    plain_error,
    text_answer,
    uuid_of,
)
from belljar.policy.files import MAX_DEPTH
from belljar.policy.yaml_tree import Path as FieldPath
from belljar.units import iso_time, kind_of, listed, nearest, quoted

MAX_STATIC_FILES: Final = 20_000
# Routes are tried one after the other for each request.
MAX_ROUTES: Final = 1000
METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_BODIES: Final = ("body", "json", "file", "template", "redirect")
_FIELDS: Final = ("path", "method", "methods", "status", "headers", "type", *_BODIES)
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_MEDIA: Final = re.compile(r"[A-Za-z0-9.+-]+/[A-Za-z0-9.+-]+(\s*;[\x20-\x7e]*)?", re.ASCII)
_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(\.\.\.)?\}", re.ASCII)
# The gateway frames an answer; its content type is the field `type`.
_OWN_HEADERS: Final = frozenset(
    {"content-length", "transfer-encoding", "connection", "upgrade", "trailer", "te"}
    | {"content-type"}
)
Fields: TypeAlias = Mapping[str, Any]


# ---- templates: Jinja2's, in its sandbox; what is inserted into HTML and XML is escaped

MAX_TEMPLATE_CHARS: Final = 1 << 20
# A guest's body of a MiB may stand in a page several times.
MAX_RENDERED_CHARS: Final = 4 << 20
MAX_FACTOR: Final = 1 << 53  # Whole numbers that JSON keeps exactly.
MAX_EXPONENT: Final = 64
ROOTS: Final = frozenset(
    {"path", "query", "header", "cookie", "form", "json", "body", "method", "host", "url"}
    | {"now", "random"}
)

# What an expression raises for values that it isn't meant for.
_FAILURES: Final = (TemplateError, ArithmeticError, AttributeError, LookupError, TypeError)


class RenderError(Exception):
    """A template can't be rendered, or to more than an answer may hold."""


def _text_of(value: object) -> str:
    """Return text as it is, nothing as "", anything else as JSON."""
    if value is None or isinstance(value, Undefined):
        return ""
    return value if isinstance(value, str) else compact(value)


class _Nothing(ChainableUndefined):
    """What isn't there. It equals nothing, or an absent password would open an absent account."""

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)


class _Environment(ImmutableSandboxedEnvironment):
    # `text * 1000000000` would be made before anybody looks at its size.
    intercepted_binops = frozenset({"*", "**"})

    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - Jinja's signature
        """Find a request's own field before a mapping's method of that name (`json.items`)."""
        is_field = isinstance(obj, Mapping) and attribute in obj
        return obj[attribute] if is_field else super().getattr(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:  # noqa: ANN401
        """Multiply numbers, within reason."""
        bound = MAX_FACTOR if operator == "*" else MAX_EXPONENT
        for each in (left, right):
            if not isinstance(each, int | float) or abs(each) > bound:
                raise SecurityError(f"`{operator}` is for numbers, at most {bound}")
        return super().call_binop(context, operator, left, right)


def _environment(*, is_markup: bool) -> _Environment:
    made = _Environment(undefined=_Nothing, autoescape=is_markup, finalize=_text_of, cache_size=0)
    made.globals.clear()  # `range`, `lipsum` and others make text without an end.
    return made


_PLAIN: Final = _environment(is_markup=False)
_MARKUP: Final = _environment(is_markup=True)
# Compiles the lexer's expressions where this is imported, in the fork server: once for all ranges.
_PLAIN.from_string("{{ x }}")


def problem_of(text: str) -> str:
    """Return what is wrong with a template, or "".

    It is parsed alone: Jinja's compiler works constants out, and a policy is checked outside of the
    gateway's jail.
    """
    if len(text) > MAX_TEMPLATE_CHARS:
        return f"longer than {MAX_TEMPLATE_CHARS} characters"
    try:
        tree = _PLAIN.parse(text)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    names = list(tree.find_all(nodes.Name))
    own = {each.name for each in names if each.ctx != "load"}
    own |= {each.name for each in tree.find_all(nodes.Macro)} | {"loop", "caller"}
    if unknown := {each.name for each in names} - own - ROOTS:
        return f"there is no `{min(unknown)}`; the names are {', '.join(sorted(ROOTS))}"
    filters = {each.name for each in tree.find_all(nodes.Filter)}
    if wrong := filters - _PLAIN.filters.keys():
        return f"there is no filter `{min(wrong)}`"
    if any(True for _ in meta.find_referenced_templates(tree)):
        return "a template can't include another one"
    return ""


class Chance:
    """The range's randomness, as templates see it."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._random = random

    def hex(self, count: int) -> str:
        """Return so many bytes, at most 256, as hexadecimal digits."""
        return self._random(max(1, min(int(count), 256))).hex()

    @property
    def uuid(self) -> str:
        """Return a UUID."""
        return uuid_of(self._random(16))


class Templates:
    """Templates and expressions of one site, compiled when they are first used."""

    def __init__(self) -> None:
        self._expression = cache(_PLAIN.compile_expression)
        self._template = cache(lambda text, made: made.from_string(text))

    def render(self, text: str, view: Mapping[str, Any], *, is_markup: bool = False) -> str:
        """Return a template's text. Raises `RenderError`."""
        if "{" not in text:
            return text
        parts, size = list[str](), 0
        try:
            for part in self._template(text, _MARKUP if is_markup else _PLAIN).generate(**view):
                parts.append(part)
                size += len(part)
                if size > MAX_RENDERED_CHARS:
                    raise RenderError("longer than an answer may be")
        except _FAILURES as error:
            raise RenderError(str(error)) from error
        return "".join(parts)

    def value(self, value: Any, view: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON values
        """Return a value with its texts rendered; one expression alone becomes what it finds."""
        if isinstance(value, str):
            inner = value.strip()
            is_one = inner.startswith("{{") and inner.endswith("}}") and "}}" not in inner[2:-2]
            if not is_one:
                return self.render(value, view)
            try:
                return self._expression(inner[2:-2].strip())(**view)
            except _FAILURES as error:
                raise RenderError(str(error)) from error
        if isinstance(value, Mapping):
            return {name: self.value(item, view) for name, item in value.items()}
        return [self.value(item, view) for item in value] if isinstance(value, list) else value


# ---- what an author wrote; nothing of it is run


def check(settings: Fields, directory: Path | None) -> Faults:
    """Return what is wrong with the routes, each with its place."""
    return tuple(islice(_faults(settings, directory), MAX_FAULTS))


def _faults(site: Fields, directory: Path | None) -> Iterator[Fault]:
    routes = site.get("routes", [])
    if len(routes) > MAX_ROUTES:
        yield Fault(f"{MAX_ROUTES} routes are allowed, these are {len(routes)}", ("routes",))
    for index, route in enumerate(routes[:MAX_ROUTES]):
        yield from _of_route(route, ("routes", index), directory)
    for prefix, folder in site.get("static", {}).items():
        is_below = isinstance(folder, str) and ".." not in Path(folder).parts
        if not is_below or Path(folder).is_absolute() or not str(prefix).startswith("/"):
            what = "a path that begins with `/`, and a directory among the stand-in's files"
            yield Fault(what, ("static", prefix))
        elif directory is None or not (directory / folder).is_dir():
            what = f"{quoted(folder)} is no directory among the stand-in's files"
            yield Fault(what, ("static", prefix))


def _of_route(route: object, path: FieldPath, directory: Path | None) -> Iterator[Fault]:
    if not isinstance(route, dict) or not isinstance(route.get("headers", {}), dict):
        yield Fault(f"a mapping is needed, but this is {kind_of(route)}", path)
        return
    for name in route:
        if name not in _FIELDS:
            near = nearest(name, _FIELDS)
            hint = f"did you mean `{near}`?" if near else f"the fields are {listed(_FIELDS)}"
            yield Fault(f"there is no such field; {hint}", (*path, name))
    try:
        pattern_of(str(route.get("path", "")))
    except ValueError as error:
        yield Fault(str(error), (*path, "path"))
    for method in methods_of(route):
        if method not in METHODS or {"method", "methods"} <= route.keys():
            field = "methods" if "methods" in route else "method"
            what = f"{quoted(method)} is none of {listed(METHODS)}, or both fields are there"
            yield Fault(what, (*path, field))
    if len(bodies := [name for name in _BODIES if name in route]) > 1:
        what = f"an answer has one of {listed(_BODIES)}, this has {listed(bodies)}"
        yield Fault(what, (*path, bodies[1]))
    status, media = route.get("status", 200), route.get("type", "")
    if type(status) is not int or not 200 <= status <= 599:
        what = f"{quoted(status)} is no status: a whole number from 200 to 599"
        yield Fault(what, (*path, "status"))
    if not isinstance(media, str) or (media and not _MEDIA.fullmatch(media)):
        what = f"{quoted(media)} is no content type, as in `text/html; charset=utf-8`"
        yield Fault(what, (*path, "type"))
    for name, value in route.get("headers", {}).items():
        yield from _of_text(value, (*path, "headers", name))
        if not _TOKEN.fullmatch(name) or name.lower() in _OWN_HEADERS:
            yield Fault(f"{quoted(name)} can't be set", (*path, "headers", name))
    for field in ("body", "redirect", "json"):
        yield from _of_text(route.get(field), (*path, field), may_nest=field == "json")
    # A file is served in pieces: a gateway has no memory for a large one.
    for field, most in (("file", None), ("template", MAX_TEMPLATE_CHARS)):
        data = read_file(directory, route[field], most) if field in route else b""
        if isinstance(data, Fault):
            yield Fault(str(data), (*path, field))
        elif field == "template":
            yield from _of_text(data.decode("utf-8", "replace"), (*path, field))


def _of_text(value: object, path: FieldPath, *, may_nest: bool = False) -> Iterator[Fault]:
    """Check each text of a value as a template."""
    if isinstance(value, dict | list) and may_nest:
        for name, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _of_text(item, (*path, name), may_nest=True)
    elif isinstance(value, dict | list):
        yield Fault(f"text is needed, but this is {kind_of(value)}", path)
    elif isinstance(value, str) and (problem := problem_of(value)):
        yield Fault(problem, path)


def pattern_of(path: str) -> re.Pattern[str]:
    """Return what `/items/{id}` or `/files/{rest...}` matches. Raises `ValueError`."""
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


def methods_of(route: Fields) -> list[str]:
    """Return the methods that a route takes."""
    given = route.get("methods", route.get("method", "GET"))
    return [str(method) for method in (given if isinstance(given, list) else [given])]


# ---- what is answered


class _Route:
    """A route that was checked."""

    def __init__(self, fields: Fields, directory: Path) -> None:
        self.pattern = pattern_of(str(fields["path"]))
        self.methods = methods_of(fields)
        if "GET" in self.methods:
            self.methods.append("HEAD")  # HEAD is answered where GET is.
        self.answer = fields
        if "template" in fields:
            body = (directory / fields["template"]).read_text("utf-8", "replace")
            self.answer = {**fields, "body": body}

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
    """Return the application. Raises `PolicyError` as `check` finds."""
    if "login" in context.settings:  # a decoy's: what an author writes has no such field
        return http_app(_AdminPage(context).handle)
    refuse_faults(check(context.settings, context.files), context.id)
    return http_app(_Http(context).handle)


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
        names = {str(one.answer["file"]) for one in self._routes if "file" in one.answer}
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

    async def handle(self, request: Request) -> Answer:
        for route in self._routes:
            if request.method not in route.methods:
                continue
            parameters = route.match(request.raw_path)
            if parameters is not None:
                try:
                    return self._answer(route.answer, {**self._view(request), "path": parameters})
                except (RenderError, TypeError, ValueError, RecursionError):  # also: no JSON value
                    return plain_error(500)
        return self._fallback(request)

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
        kind = media.partition(";")[0].strip().lower()
        is_markup = kind == "text/html" or kind.endswith(("/xml", "+xml"))
        text = render(body, view, is_markup=is_markup)
        return text_answer(text, status, pairs, media=media)

    def _fallback(self, request: Request) -> Answer:
        is_read = request.method in ("GET", "HEAD")
        for prefix, files in self._static if is_read else ():
            if request.path.startswith(prefix):
                name = request.path.removeprefix(prefix)
                if not name or name.endswith("/"):
                    name += "index.html"
                elif f"{name}/index.html" in files:
                    return plain_error(301, (("location", f"{request.raw_path}/"),))
                if (file := files.get(name)) is not None:
                    return file_answer(file)
        return plain_error(404)


# ---- the admin page of a decoy: a form, a session, customers as a table and as CSV

# A browser that kept a page would show customers after a logout.
_HEADERS: Final = (("server", "nginx/1.24.0"), ("cache-control", "no-store"))
_PAGE: Final = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
    "<title>{title} - Customer administration</title>\n</head>\n<body>\n<h1>{title}</h1>\n"
    "{content}\n</body>\n</html>\n"
)
_FORM: Final = (
    '<form method="post" action="/login">\n'
    '<label>User <input name="username" autocomplete="username"></label>\n'
    '<label>Password <input type="password" name="password" '
    'autocomplete="current-password"></label>\n'
    '<button type="submit">Sign in</button>\n</form>'
)
_LINKS: Final = '<p><a href="/customers.csv">Export</a> <a href="/logout">Sign out</a></p>'


class _AdminPage:
    """`settings`: `login`, with user and password; `rows`, each a customer's fields by name; `csv`:
    the same as text."""

    def __init__(self, context: StandInContext) -> None:
        self._settings: Any = context.settings
        self._session = context.random(16).hex()  # Of everyone who has signed in.

    async def handle(self, request: Request) -> Answer:
        """Answer a request; who isn't signed in is led to the form."""
        match request.path:
            case "/login" if request.method == "POST":
                form, login = dict(reversed(request.form)), self._settings["login"]
                if (form.get("username"), form.get("password")) == (
                    login["user"],
                    login["password"],
                ):
                    cookie = f"sid={self._session}; Path=/; HttpOnly; SameSite=Lax"
                    return _redirect("/customers", ("set-cookie", cookie))
                return _page("Sign in", f"<p>Wrong user or password.</p>\n{_FORM}", status=401)
            case "/login":
                return _page("Sign in", _FORM)
            case "/logout":
                return _redirect("/login", ("set-cookie", "sid=; Path=/; Max-Age=0"))
            case "/" | "/customers" | "/customers.csv" as path:
                if request.cookies.get("sid") != self._session:
                    return _redirect("/login")
                if path == "/customers.csv":
                    media = "text/csv; charset=utf-8"
                    return text_answer(self._settings["csv"], 200, _HEADERS, media=media)
                return _redirect("/customers") if path == "/" else self._customers()
        return plain_error(404, _HEADERS)

    def _customers(self) -> Answer:
        rows = self._settings["rows"]
        head = "".join(f"<th>{name}</th>" for name in rows[0])
        lines = ("".join(f"<td>{html.escape(v)}</td>" for v in row.values()) for row in rows)
        body = "\n".join(f"<tr>{line}</tr>" for line in lines)
        table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
        return _page("Customers", f"{_LINKS}\n{table}")


def _page(title: str, content: str, *, status: int = 200) -> Answer:
    text = _PAGE.format(title=title, content=content)
    return text_answer(text, status, _HEADERS, media="text/html; charset=utf-8")


def _redirect(to: str, *more: tuple[str, str]) -> Answer:
    return plain_error(302, (("location", to), *more, *_HEADERS))
