"""The routes of an `http` stand-in: what an author writes, read into frozen data, every mistake
with its place.

A route says what a request must be (path, methods, conditions), what is done to the state, and what
is answered. Pure: `belljar.network.stand_ins.site` reads the file into these,
`belljar.network.stand_ins.http` acts on them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import unquote

from belljar.network.stand_ins.templates import (
    Escape,
    Reference,
    Template,
    View,
    render_value,
    resolve,
    text_of,
)

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(\.\.\.)?\}", re.ASCII)
_TEXT_ROOTS: Final = frozenset(
    {"path", "query", "header", "cookie", "form", "body", "method", "host", "url"}
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A segment of any text; `rest` takes all segments that are left, at least one."""

    name: str
    rest: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """A path's segments: text that must be the same, and parameters."""

    segments: tuple[str | Parameter, ...]

    @property
    def parameters(self) -> frozenset[str]:
        """Names of its parameters."""
        return frozenset(
            segment.name for segment in self.segments if isinstance(segment, Parameter)
        )

    @property
    def shape(self) -> tuple[str | bool, ...]:
        """What it matches, names of parameters left out."""
        return tuple(
            segment.rest if isinstance(segment, Parameter) else segment for segment in self.segments
        )

    def match(self, raw_path: str) -> dict[str, str] | None:
        """The parameters, percent-decoded, when the path fits.

        Segments are split before they are decoded: `%2F` doesn't split.
        """
        parts = [unquote(part, errors="replace") for part in raw_path.split("/")[1:]]
        found: dict[str, str] = {}
        for index, segment in enumerate(self.segments):
            if isinstance(segment, Parameter) and segment.rest:
                found[segment.name] = "/".join(parts[index:])
                return found if len(parts) > index and found[segment.name] else None
            if index >= len(parts):
                return None
            if isinstance(segment, Parameter):
                if not parts[index]:
                    return None
                found[segment.name] = parts[index]
            elif segment != parts[index]:
                return None
        return found if len(parts) == len(self.segments) else None


def parse_pattern(text: str) -> Pattern:
    """`/items/{id}` or `/files/{rest...}`. Raises `ValueError` with a sentence."""
    if not text.startswith("/") or any(char in text for char in "?# \t\r\n"):
        raise ValueError("a path begins with `/` and has no query, no fragment and no blank")
    segments: list[str | Parameter] = []
    for part in text.split("/")[1:]:
        match = _PARAMETER.fullmatch(part)
        if match is None and ("{" in part or "}" in part):
            raise ValueError(
                "a parameter fills a whole segment, as in `/items/{id}` or `/files/{rest...}`"
            )
        segments.append(Parameter(match[1], rest=bool(match[2])) if match else unquote(part))
    pattern = Pattern(tuple(segments))
    if any(isinstance(segment, Parameter) and segment.rest for segment in segments[:-1]):
        raise ValueError("`{…...}` takes all that is left, so it can only stand at the end")
    if len(pattern.parameters) != sum(isinstance(segment, Parameter) for segment in segments):
        raise ValueError("two parameters have one name")
    return pattern


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a reference must find. `expected` may hold templates."""

    reference: Reference
    operator: Literal["equals", "exists", "contains", "starts"]
    expected: Any

    def holds(self, view: View) -> bool:
        """Whether it does. Text from a request is compared with a number as text."""
        found = resolve(self.reference, view)
        if self.operator == "exists":
            return (found is not None) is self.expected
        expected = render_value(self.expected, view)
        if expected is None and self.expected is not None:
            # A template that finds nothing equals nothing: or an absent password would open what
            # has none.
            return False
        if self.operator == "equals":
            if self.reference.root in _TEXT_ROOTS:
                return found is not None and found == text_of(expected)
            return found == expected and type(found) is type(expected)
        if self.operator == "contains" and isinstance(found, list):
            return expected in found
        text = text_of(expected)
        if not isinstance(found, str):
            return False
        return text in found if self.operator == "contains" else found.startswith(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One change of `state` or `session`.

    `value` may hold templates; for `increment` it is a whole number.
    """

    verb: Literal["set", "append", "increment", "delete"]
    target: Reference
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What is answered: at most one of `text`, `value` (with `has_value`), `file` and
    `redirect`.
    """

    status: int = 200
    headers: tuple[tuple[str, Template], ...] = ()
    cookies: tuple[tuple[str, Template | None], ...] = ()
    media: str = ""
    text: Template | None = None
    has_value: bool = False
    value: Any = None
    file: str = ""
    redirect: Template | None = None
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One step of a WebSocket's script: text to send, text to wait for (`None`: any), or a close
    code.
    """

    verb: Literal["send", "expect", "close"]
    text: Template | None = None
    code: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route; the first of a site that fits answers.

    `replies` are given in order, the last one again and again.
    """

    pattern: Pattern
    methods: tuple[str, ...] = ("GET",)
    conditions: tuple[Condition, ...] = ()
    operations: tuple[Operation, ...] = ()
    replies: tuple[Reply, ...] = (Reply(),)
    websocket: Literal["", "echo", "script"] = ""
    script: tuple[Line, ...] = ()

    def takes(self, method: str) -> bool:
        """Whether the method is one of its own; HEAD is answered where GET is."""
        return method in self.methods or (method == "HEAD" and "GET" in self.methods)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """All of an `http` stand-in.

    `static` maps a path's beginning, which ends with `/`, to a directory below the stand-in's own
    ("" is itself).
    """

    routes: tuple[Route, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict)
    static: tuple[tuple[str, str], ...] = ()
    session_cookie: str = "session"


def escape_for(media: str) -> Escape:
    """How text is escaped in a body of that type."""
    kind = media.partition(";")[0].strip().lower()
    if kind == "text/html" or kind.endswith(("/xml", "+xml")):
        return "html"
    if kind.endswith(("/json", "+json", "/javascript")):
        return "json"
    return "url" if kind == "application/x-www-form-urlencoded" else "none"
