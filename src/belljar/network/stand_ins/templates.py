"""Templates and expressions of an `http` stand-in: Jinja2's, in its sandbox.

A name that isn't there is empty and equals nothing. A mapping's names are found by a point, and its
methods are not. What is inserted is escaped for its content type.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

from jinja2 import ChainableUndefined, TemplateError, TemplateSyntaxError, Undefined, meta, nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup, escape

from belljar.network.stand_ins.web import compact, uuid_of

MAX_TEMPLATE_CHARS: Final = 1 << 20
MAX_RENDERED_CHARS: Final = 4 << 20
ROOTS: Final = frozenset(
    {"path", "query", "header", "cookie", "form", "json", "body", "method", "host", "url"}
    | {"now", "random"}
)
PLACES: Final = ("none", "html", "json", "url")

# What an expression raises for values that it isn't meant for.
_FAILURES: Final = (
    TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
)


class RenderError(Exception):
    """A template can't be rendered, or to more than an answer may hold."""


class _Nothing(ChainableUndefined):
    """What isn't there. It equals nothing, or an absent password would open an absent account."""

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return id(self)


class _Environment(ImmutableSandboxedEnvironment):
    def getattr(self, obj: Any, attribute: str) -> Any:  # noqa: ANN401 - Jinja's signature
        return self._below(obj, attribute, super().getattr)

    def getitem(self, obj: Any, argument: Any) -> Any:  # noqa: ANN401 - Jinja's signature
        return self._below(obj, argument, super().getitem)

    def _below(self, obj: Any, name: Any, usual: Callable[[Any, Any], Any]) -> Any:  # noqa: ANN401
        if not isinstance(obj, Mapping):
            return usual(obj, name)
        # Without this, `json.items` would be a method.
        return obj[name] if isinstance(name, str) and name in obj else self.undefined(name=name)


def text_of(value: object) -> str:
    """Return text as it is, nothing as "", anything else as JSON."""
    if value is None or isinstance(value, Undefined):
        return ""
    return value if isinstance(value, str) else compact(value)


def _script_safe(text: str) -> str:
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _shown(place: str) -> Callable[[object], str]:
    """Return what escapes a value for a place; Jinja itself escapes for HTML."""

    def show(value: object) -> str:
        if isinstance(value, Markup):
            return value
        text = text_of(value)
        if place == "url":
            return quote(text, safe="")
        if place == "json":
            return _script_safe(json.dumps(text)[1:-1] if isinstance(value, str) else text)
        return text

    return show


def _or_default(value: object, default: object = "") -> object:
    return default if text_of(value) == "" else value


def _environment(place: str) -> _Environment:
    made = _Environment(
        undefined=_Nothing, autoescape=place == "html", finalize=_shown(place), cache_size=0
    )
    made.globals.clear()  # `range`, `lipsum` and others make text without an end
    made.filters |= {
        "default": _or_default,
        "html": lambda value: escape(text_of(value)),
        "json": lambda value: Markup(_script_safe(compact(_plain(value)))),
        "raw": lambda value: Markup(text_of(value)),
        "url": lambda value: Markup(quote(text_of(value), safe="")),
    }
    return made


def _plain(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    return None if isinstance(value, Undefined) else value


_ENVIRONMENTS: Final = {place: _environment(place) for place in PLACES}
# Compiles the lexer's expressions where this is imported, in the fork server: once for all ranges.
_ENVIRONMENTS["none"].from_string("{{ x }}")


def sole_expression(text: str) -> str | None:
    """Return the expression of a text that is nothing else."""
    inner = text.strip()
    is_one = inner.startswith("{{") and inner.endswith("}}") and "}}" not in inner[2:-2]
    return inner[2:-2].strip() if is_one else None


def problem_of(text: str) -> str:
    """Return what is wrong with a template, or "".

    It is parsed alone: Jinja's compiler works constants out, and a policy is checked outside of the
    gateway's jail.
    """
    if len(text) > MAX_TEMPLATE_CHARS:
        return f"longer than {MAX_TEMPLATE_CHARS} characters"
    if "{" not in text:
        return ""
    environment = _ENVIRONMENTS["none"]
    try:
        tree = environment.parse(text)
    except TemplateSyntaxError as error:
        where = f"line {error.lineno}: " if "\n" in text else ""
        return f"{where}{error.message}"
    names = list(tree.find_all(nodes.Name))
    own = {each.name for each in names if each.ctx != "load"}
    own |= {each.name for each in tree.find_all(nodes.Macro)} | {"loop", "caller"}
    if unknown := {each.name for each in names} - own - ROOTS:
        return f"there is no `{min(unknown)}`; the names are {', '.join(sorted(ROOTS))}"
    for kind, known in ((nodes.Filter, environment.filters), (nodes.Test, environment.tests)):
        for each in tree.find_all(kind):
            if each.name not in known:
                return f"there is no {kind.__name__.lower()} `{each.name}`"
    if any(True for _ in meta.find_referenced_templates(tree)):
        return "a template can't include another one"
    return ""


class Moment(str):
    """The time: as text, and in other forms."""

    unix: int
    http: str
    date: str


def moment(at_s: float) -> Moment:
    """Return a time as templates see it."""
    at = datetime.fromtimestamp(int(at_s), UTC)
    made = Moment(at.strftime("%Y-%m-%dT%H:%M:%SZ"))
    made.unix, made.date = int(at_s), at.strftime("%Y-%m-%d")
    made.http = at.strftime("%a, %d %b %Y %H:%M:%S GMT")
    return made


class Chance:
    """The range's randomness, as templates see it."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._random = random

    def hex(self, count: int) -> str:
        """Return so many bytes, at most 256, as hexadecimal digits."""
        return self._random(max(1, min(int(count), 256))).hex()

    def int(self, low: int, high: int) -> int:
        """Return a whole number between both."""
        return low + int.from_bytes(self._random(16)) % max(1, high - low + 1)

    @property
    def uuid(self) -> str:
        """Return a UUID."""
        return uuid_of(self._random(16))


class Templates:
    """Templates and expressions of one site, compiled when they are first used."""

    def __init__(self) -> None:
        self._compiled: dict[tuple[str, str], Any] = {}

    def _made(self, kind: str, text: str) -> Any:  # noqa: ANN401 - a template or an expression
        key = (kind, text)
        if key not in self._compiled:
            if kind == "expression":
                made: Any = _ENVIRONMENTS["none"].compile_expression(text)
            else:
                made = _ENVIRONMENTS[kind].from_string(text)
            self._compiled[key] = made
        return self._compiled[key]

    def find(self, expression: str, view: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any value
        """Return what an expression finds, or None. Raises `RenderError`."""
        try:
            return self._made("expression", expression)(**view)
        except _FAILURES as error:
            raise RenderError(str(error)) from error

    def render(self, text: str, view: Mapping[str, Any], place: str) -> str:
        """Return a template's text. Raises `RenderError`."""
        if "{" not in text:
            return text
        parts, size = list[str](), 0
        try:
            for part in self._made(place, text).generate(**view):
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
            sole = sole_expression(value)
            found = self.render(value, view, "none") if sole is None else self.find(sole, view)
            return str(found) if isinstance(found, str) else found
        if isinstance(value, Mapping):
            return {name: self.value(item, view) for name, item in value.items()}
        return [self.value(item, view) for item in value] if isinstance(value, list) else value


def place_of(media: str) -> str:
    """Return how text is escaped in a body of this type."""
    kind = media.partition(";")[0].strip().lower()
    if kind == "text/html" or kind.endswith(("/xml", "+xml")):
        return "html"
    if kind.endswith(("/json", "+json", "/javascript")):
        return "json"
    return "url" if kind == "application/x-www-form-urlencoded" else "none"
