"""Templates of an `http` stand-in: text with `{{ reference | filter }}` in it.

A reference looks something up; nothing is evaluated, nothing is called by name.

reference := root ( "." name | "[" index "]" )*        index := number | "text" | reference
    root      := path query header cookie form json body method host url state session now random
    filter    := default(literal) | html | json | url | raw | length

Only `random.hex(8)` and `random.int(1, 6)` have arguments. What isn't there is empty. Output is
escaped for its content type, unless a filter says otherwise.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

from belljar.network.stand_ins.web import Request, compact, uuid_of

MAX_TEMPLATE_CHARS: Final = 1 << 20
MAX_RENDERED_CHARS: Final = 4 << 20
MAX_STEPS: Final = 16
_NAMED: Final = ("path", "query", "header", "cookie", "form")
_SIMPLE: Final = ("body", "method", "host", "url")
ROOTS: Final = (*_NAMED, "json", *_SIMPLE, "state", "session", "now", "random")
_NOW: Final = ((), ("unix",), ("http",), ("date",))
_FILTERS: Final = ("html", "json", "url", "raw", "length")

Escape: TypeAlias = Literal["html", "json", "url", "none"]
Step: TypeAlias = "str | int | Reference"

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*", re.ASCII)
_PART: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}", re.ASCII)
_TEXT: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"', re.ASCII)
_SPACE: Final = re.compile(r"[ \t\r\n]*")


class TemplateError(ValueError):
    """`offset`: characters before the mistake."""

    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.offset = offset


class RenderError(Exception):
    """What came out is larger than an answer may be."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A root, steps from there; arguments of `random.…`."""

    root: str
    steps: tuple[Step, ...] = ()
    arguments: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Expression:
    """A reference and what is done to what was found."""

    reference: Reference
    filters: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Template:
    """Literal text and expressions, in order."""

    parts: tuple[str | Expression, ...]

    @property
    def sole(self) -> Expression | None:
        """The expression, when there is nothing else."""
        first = self.parts[0]
        return first if len(self.parts) == 1 and isinstance(first, Expression) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a template can see of one request."""

    request: Request
    path: Mapping[str, str]
    state: Mapping[str, Any]
    session: Mapping[str, Any]
    clock: Callable[[], float]
    random: Callable[[int], bytes]


class _TemplateReader:
    def __init__(self, text: str, at: int, end: int) -> None:
        self.text, self.at, self.end = text, at, end

    def take(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self.text, self.at, self.end)
        if match is None:
            return None
        self.at = match.end()
        return match[0]

    def space(self) -> None:
        self.take(_SPACE)

    def symbol(self, symbol: str) -> bool:
        self.space()
        found = self.text.startswith(symbol, self.at, self.end)
        self.at += len(symbol) * found
        return found

    def need(self, symbol: str) -> None:
        if not self.symbol(symbol):
            raise TemplateError(self.at, f"`{symbol}` is missing")

    def reference(self, depth: int = 0) -> Reference:
        self.space()
        start, root = self.at, self.take(_NAME)
        if root not in ROOTS:
            raise TemplateError(start, f"a reference begins with one of {', '.join(ROOTS)}")
        steps: list[Step] = []
        while len(steps) <= MAX_STEPS:
            if self.text.startswith(".", self.at, self.end):
                self.at += 1
                name = self.take(_PART)
                if name is None:
                    raise TemplateError(self.at, "a name is missing after the point")
                steps.append(name)
            elif self.text.startswith("[", self.at, self.end):
                steps.append(self._index(depth))
            else:
                break
        arguments = self._arguments() if self.text.startswith("(", self.at, self.end) else ()
        reference = Reference(root, tuple(steps), arguments)
        if message := _wrong(reference):
            raise TemplateError(start, message)
        return reference

    def _literal(self) -> int | str | None:
        """A number, or text in double quotes as in JSON."""
        self.space()
        number, text = self.take(_NUMBER), self.take(_TEXT)
        try:
            return int(number) if number else str(json.loads(text)) if text else None
        except ValueError:
            raise TemplateError(self.at, "text in double quotes is written as in JSON") from None

    def _index(self, depth: int) -> Step:
        self.at += 1
        literal = self._literal()
        if literal is None and depth >= 2:
            raise TemplateError(self.at, "references are nested deeper than three levels")
        step: Step = self.reference(depth + 1) if literal is None else literal
        self.need("]")
        return step

    def _arguments(self) -> tuple[int, ...]:
        self.at += 1
        found: list[int] = []
        while not found or not self.symbol(")"):
            if found:
                self.need(",")
            self.space()
            number = self.take(_NUMBER)
            if number is None:
                raise TemplateError(self.at, "an argument is a whole number")
            found.append(int(number))
        return tuple(found)

    def expression(self) -> Expression:
        reference, filters = self.reference(), []
        while self.symbol("|"):
            filters.append(self._filter())
        self.space()
        if self.at != self.end:
            only = "only a reference and filters can stand between `{{` and `}}`"
            raise TemplateError(self.at, only)
        return Expression(reference, tuple(filters))

    def _filter(self) -> tuple[str, Any]:
        self.space()
        start, name = self.at, self.take(_NAME)
        if name == "default":
            self.need("(")
            literal = self._literal()
            if literal is None:
                raise TemplateError(self.at, "a default is a number, or text in double quotes")
            self.need(")")
            return name, literal
        if name not in _FILTERS:
            raise TemplateError(start, f"the filters are default(…), {', '.join(_FILTERS)}")
        return name, None


def _wrong(reference: Reference) -> str:
    root, steps, arguments = reference.root, reference.steps, reference.arguments
    if root == "random":
        is_right = (
            (steps == ("hex",) and len(arguments) == 1 and 1 <= arguments[0] <= 256)
            or (steps == ("int",) and len(arguments) == 2 and arguments[0] <= arguments[1])
            or (steps == ("uuid",) and not arguments)
        )
        known = "`random.hex(BYTES)` with 1 to 256, `random.int(MIN, MAX)` or `random.uuid`"
        return "" if is_right else f"randomness is {known}"
    if arguments:
        return f"`{root}` takes no arguments"
    if root in _SIMPLE and steps:
        return f"`{root}` has nothing inside"
    if root in _NAMED and len(steps) != 1:
        return f"`{root}` is followed by one name, as in `{root}.id`"
    if root == "now" and steps not in _NOW:
        return "time is `now`, `now.unix`, `now.http` or `now.date`"
    return f"more than {MAX_STEPS} steps" if len(steps) > MAX_STEPS else ""


def parse_reference(text: str) -> Reference:
    """A reference alone. Raises `TemplateError`."""
    reader = _TemplateReader(text, 0, len(text))
    reference = reader.reference()
    if reader.at != len(text):
        raise TemplateError(reader.at, "the reference goes on with something that can't be read")
    return reference


def parse_template(text: str) -> Template:
    """Two braces begin an expression. Raises `TemplateError`."""
    if len(text) > MAX_TEMPLATE_CHARS:
        raise TemplateError(0, f"longer than {MAX_TEMPLATE_CHARS} characters")
    parts: list[str | Expression] = []
    at = 0
    while (start := text.find("{{", at)) >= 0:
        end = text.find("}}", start + 2)
        if end < 0:
            raise TemplateError(start, "`{{` is never closed by `}}`")
        parts += [text[at:start]] if start > at else []
        parts.append(_TemplateReader(text, start + 2, end).expression())
        at = end + 2
    if at < len(text) or not parts:
        parts.append(text[at:])
    return Template(tuple(parts))


def references(template: Template) -> tuple[Reference, ...]:
    """Every reference, also inside brackets."""
    found = [part.reference for part in template.parts if isinstance(part, Expression)]
    for reference in found:
        found.extend(step for step in reference.steps if isinstance(step, Reference))
    return tuple(found)


def resolve(reference: Reference, view: View) -> Any:  # noqa: ANN401 - any JSON value
    """What the reference finds; None when there is nothing."""
    request, root = view.request, reference.root
    match root:
        case "now":
            return _now(reference, view)
        case "random":
            return _random(reference, view)
        case "method":
            return request.method
        case "host":
            return request.host
        case "url":
            return request.url
        case "body":
            return request.body.decode("utf-8", "replace")
    if root in _NAMED:
        name = str(key(reference.steps[0], view))
        if root in ("query", "form"):
            pairs = request.query if root == "query" else request.form
            return next((value for key_, value in pairs if key_ == name), None)
        if root == "header":
            return request.header(name.lower()) if request.has_header(name.lower()) else None
        return (request.cookies if root == "cookie" else view.path).get(name)
    found: Any = {"state": view.state, "session": view.session}.get(root)
    if root == "json":
        found = request.json
    for step in reference.steps:
        found = child(found, key(step, view))
    return found


def key(step: Step, view: View) -> str | int:
    """What a reference in brackets finds: text or a number."""
    if not isinstance(step, Reference):
        return step
    found = resolve(step, view)
    return found if isinstance(found, str) or type(found) is int else text_of(found)


def child(value: Any, step: str | int) -> Any:  # noqa: ANN401 - any JSON value
    """What lies one step below; None when there is nothing."""
    if isinstance(value, Mapping):
        return value.get(str(step))
    if isinstance(value, list):
        index = int(step) if isinstance(step, int) or _NUMBER.fullmatch(step) else None
        return value[index] if index is not None and -len(value) <= index < len(value) else None
    return None


def _now(reference: Reference, view: View) -> str | int:
    moment = datetime.fromtimestamp(int(view.clock()), UTC)
    match reference.steps:
        case ("unix",):
            return int(view.clock())
        case ("http",):
            return moment.strftime("%a, %d %b %Y %H:%M:%S GMT")
        case ("date",):
            return moment.strftime("%Y-%m-%d")
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _random(reference: Reference, view: View) -> str | int:
    if reference.steps == ("hex",):
        return view.random(reference.arguments[0]).hex()
    if reference.steps == ("int",):
        low, high = reference.arguments
        return low + int.from_bytes(view.random(16)) % (high - low + 1)
    return uuid_of(view.random(16))


def text_of(value: object) -> str:
    """Text as it is, None as "", anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else compact(value)


def evaluate(expression: Expression, view: View) -> tuple[Any, str]:
    """The value, and the filter that escapes it, or ""."""
    value, escape = resolve(expression.reference, view), ""
    for name, argument in expression.filters:
        if name == "default":
            value = argument if value is None or value == "" else value
        elif name == "length":
            value = len(value) if isinstance(value, (str, list, Mapping)) else 0
        else:
            escape = name
    return value, escape


def escaped(value: object, escape: str) -> str:
    """Text for a place; `json` is the inside of a JSON string for text."""
    match escape:
        case "html":
            return html.escape(text_of(value), quote=True)
        case "url":
            return quote(text_of(value), safe="")
        case "json":
            if not isinstance(value, str):
                return "" if value is None else _script_safe(compact(value))
            return _script_safe(json.dumps(value)[1:-1])
        case "json-whole":
            return _script_safe(compact(value))
    return text_of(value)


def _script_safe(text: str) -> str:
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def render(template: Template, view: View, escape: Escape) -> str:
    """Each expression escaped for its place. Raises `RenderError` beyond `MAX_RENDERED_CHARS`."""
    out: list[str] = []
    size = 0
    for part in template.parts:
        if isinstance(part, str):
            out.append(part)
        else:
            value, chosen = evaluate(part, view)
            out.append(escaped(value, "json-whole" if chosen == "json" else chosen or escape))
        size += len(out[-1])
        if size > MAX_RENDERED_CHARS:
            raise RenderError
    return "".join(out)


def render_value(value: Any, view: View) -> Any:  # noqa: ANN401
    """One expression alone becomes what it finds."""
    if isinstance(value, Template):
        sole = value.sole
        escapes = ("html", "url", "json")
        if sole is not None and not any(name in escapes for name, _ in sole.filters):
            return evaluate(sole, view)[0]
        return render(value, view, "none")
    if isinstance(value, Mapping):
        return {name: render_value(item, view) for name, item in value.items()}
    return [render_value(item, view) for item in value] if isinstance(value, list) else value
