"""What an `http` stand-in answers and remembers. `site` reads it, `http` acts on it."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
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
from belljar.network.stand_ins.web import compact, parse_json

MAX_STATE_BYTES: Final = 4 << 20
MAX_SESSION_BYTES: Final = 64 << 10
MAX_SESSIONS: Final = 1000
MAX_ENTRIES: Final = 10_000
MAX_DEPTH: Final = 24
_MAX_NUMBER: Final = 2**53
_CONTAINER_BYTES, _TEXT_BYTES, _NUMBER_BYTES = 72, 56, 32


class StateError(Exception):
    """Out of room, or no such place."""


def size_of(value: object) -> int:
    """Characters as JSON, and Python's bytes for each part."""
    size, todo = len(compact(value)), [value]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            size += _CONTAINER_BYTES + _TEXT_BYTES * len(part)
            todo += part.values()
        elif isinstance(part, list):
            size += _CONTAINER_BYTES
            todo += part
        else:
            size += _TEXT_BYTES if isinstance(part, str) else _NUMBER_BYTES
    return size


def _name_size(parent: Mapping[str, Any], name: str | int) -> int:
    return size_of(str(name)) + 1 + bool(parent)


def _copied(value: object) -> tuple[Any, int]:
    try:
        copy = parse_json(compact(value))
        return copy, size_of(copy)
    except (TypeError, ValueError, RecursionError):
        raise StateError("no JSON value") from None


class Store:
    """One tree of JSON values."""

    def __init__(self, initial: Mapping[str, Any], max_bytes: int) -> None:
        self.values, self.size = _copied(dict(initial))
        self.max_bytes = self.size + max_bytes

    def set(self, keys: Sequence[str | int], value: object) -> None:
        """Put a value at a place; mappings on the way are made."""
        parent, last, value = self._place(keys, value)
        new, size = _copied(value)
        is_new = not _holds(parent, last)
        if is_new and not isinstance(parent, dict):
            raise StateError("no such entry of a list")
        old = 0 if is_new else size_of(_child(parent, last))
        self._room(parent, size - old + (_name_size(parent, last) if is_new else 0), is_new=is_new)
        parent[str(last) if isinstance(parent, dict) else last] = new

    def append(self, keys: Sequence[str | int], value: object) -> None:
        """An absent list is made."""
        found = self._find(keys)
        if found is None:
            self.set(keys, [value])
            return
        if not isinstance(found, list):
            raise StateError("not a list")
        new, size = _copied(value)
        self._room(found, size + bool(found), is_new=True)
        found.append(new)

    def increment(self, keys: Sequence[str | int], by: int) -> None:
        """An absent number counts as 0."""
        found = self._find(keys)
        number = 0 if found is None else found
        if type(number) is not int or abs(number + by) > _MAX_NUMBER:
            raise StateError("not a whole number")
        self.set(keys, number + by)

    def delete(self, keys: Sequence[str | int]) -> None:
        """Nothing happens when it isn't there."""
        parent: Any = self._find(keys[:-1]) if keys else None
        last = keys[-1] if keys else 0
        if not _holds(parent, last):
            return
        gone = size_of(_child(parent, last))
        del parent[str(last) if isinstance(parent, dict) else last]
        self.size -= gone + (_name_size(parent, last) if isinstance(parent, dict) else bool(parent))

    def _find(self, keys: Sequence[str | int]) -> Any:  # noqa: ANN401 - any JSON value
        at: Any = self.values
        for step in keys:
            at = _child(at, step)
        return at

    def _place(self, keys: Sequence[str | int], value: object) -> tuple[Any, str | int, object]:
        """The last parent, the name in it, the wrapped value."""
        if not keys or len(keys) > MAX_DEPTH:
            raise StateError("no such place")
        at: Any = self.values
        for depth, step in enumerate(keys[:-1], 1):
            below = _child(at, step)
            if below is None and isinstance(at, dict):
                for name in reversed(keys[depth:]):
                    value = {str(name): value}
                return at, step, value
            at = below
        if not isinstance(at, (dict, list)):
            raise StateError("no such place")
        return at, keys[-1], value

    def _room(self, parent: dict[str, Any] | list[Any], more: int, *, is_new: bool) -> None:
        if self.size + more > self.max_bytes or (is_new and len(parent) >= MAX_ENTRIES):
            raise StateError("no room left")
        self.size += more


def _holds(parent: object, step: str | int) -> bool:
    if isinstance(parent, dict):
        return str(step) in parent
    return isinstance(parent, list) and isinstance(step, int) and -len(parent) <= step < len(parent)


def _child(parent: Any, step: str | int) -> Any:  # noqa: ANN401 - any JSON value
    if not _holds(parent, step):
        return None
    return parent[str(step) if isinstance(parent, dict) else step]


class Sessions:
    """Sessions by ids that only the server makes. Beyond `MAX_SESSIONS` the oldest unused goes."""

    def __init__(self, random: Callable[[int], bytes]) -> None:
        self._random = random
        self._stores: OrderedDict[str, Store] = OrderedDict()

    def find(self, name: str) -> Store | None:
        """The session of that id."""
        store = self._stores.get(name)
        if store is not None:
            self._stores.move_to_end(name)
        return store

    def start(self) -> tuple[str, Store]:
        """A new, empty session and its id."""
        name, store = self._random(16).hex(), Store({}, MAX_SESSION_BYTES)
        self._stores[name] = store
        while len(self._stores) > MAX_SESSIONS:
            self._stores.popitem(last=False)
        return name, store


METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(\.\.\.)?\}", re.ASCII)
_TEXT_ROOTS: Final = frozenset(
    {"path", "query", "header", "cookie", "form", "body", "method", "host", "url"}
)


@dataclass(frozen=True, slots=True)
class PathParameter:
    """`rest`: all segments left, at least one."""

    name: str
    rest: bool = False


@dataclass(frozen=True, slots=True)
class Pattern:
    """A path's segments: fixed text, and parameters."""

    segments: tuple[str | PathParameter, ...]

    @property
    def parameters(self) -> frozenset[str]:
        """Names of its parameters."""
        return frozenset(each.name for each in self.segments if isinstance(each, PathParameter))

    @property
    def shape(self) -> tuple[str | bool, ...]:
        """What it matches, names of parameters left out."""
        return tuple(
            each.rest if isinstance(each, PathParameter) else each for each in self.segments
        )

    def match(self, raw_path: str) -> dict[str, str] | None:
        """Decoded parameters; `%2F` doesn't split segments."""
        parts = [unquote(part, errors="replace") for part in raw_path.split("/")[1:]]
        found: dict[str, str] = {}
        for index, segment in enumerate(self.segments):
            if isinstance(segment, PathParameter) and segment.rest:
                found[segment.name] = "/".join(parts[index:])
                return found if len(parts) > index and found[segment.name] else None
            if index >= len(parts):
                return None
            if isinstance(segment, PathParameter):
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
    segments: list[str | PathParameter] = []
    for part in text.split("/")[1:]:
        match = _PARAMETER.fullmatch(part)
        if match is None and ("{" in part or "}" in part):
            example = "as in `/items/{id}` or `/files/{rest...}`"
            raise ValueError(f"a parameter fills a whole segment, {example}")
        segments.append(PathParameter(match[1], rest=bool(match[2])) if match else unquote(part))
    pattern = Pattern(tuple(segments))
    if any(isinstance(segment, PathParameter) and segment.rest for segment in segments[:-1]):
        raise ValueError("`{…...}` takes all that is left, so it can only stand at the end")
    if len(pattern.parameters) != sum(isinstance(segment, PathParameter) for segment in segments):
        raise ValueError("two parameters have one name")
    return pattern


@dataclass(frozen=True, slots=True)
class Condition:
    """`expected` may hold templates."""

    reference: Reference
    operator: Literal["equals", "exists", "contains", "starts"]
    expected: Any

    def holds(self, view: View) -> bool:
        """Text from a request is compared with numbers as text."""
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


@dataclass(frozen=True, slots=True)
class StateChange:
    """One change of `state` or `session`; `value` may hold templates."""

    verb: Literal["set", "append", "increment", "delete"]
    target: Reference
    value: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """At most one of `text`, `value`, `file`, `redirect`."""

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
    """A WebSocket's step; `expect` without text: any message."""

    verb: Literal["send", "expect", "close"]
    text: Template | None = None
    code: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The last of `replies` is repeated."""

    pattern: Pattern
    methods: tuple[str, ...] = ("GET",)
    conditions: tuple[Condition, ...] = ()
    changes: tuple[StateChange, ...] = ()
    replies: tuple[Reply, ...] = (Reply(),)
    websocket: Literal["", "echo", "script"] = ""
    script: tuple[Line, ...] = ()

    def takes(self, method: str) -> bool:
        """HEAD is answered where GET is."""
        return method in self.methods or (method == "HEAD" and "GET" in self.methods)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """`static`: a path's beginning, up to a `/`, and a directory."""

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
