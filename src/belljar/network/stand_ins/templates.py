"""Templates and expressions of an `http` stand-in: Jinja2's, in its sandbox.

What is inserted into HTML and XML is escaped; elsewhere Jinja's own filters do (`tojson`,
`urlencode`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from jinja2 import ChainableUndefined, TemplateError, TemplateSyntaxError, Undefined, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from belljar.network.stand_ins.web import compact, uuid_of

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
_FAILURES: Final = (
    *(TemplateError, ArithmeticError, AttributeError, LookupError),
    *(TypeError, ValueError),
)


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
    for each in tree.find_all(nodes.Filter):
        if each.name not in _PLAIN.filters:
            return f"there is no filter `{each.name}`"
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
