"""What an `http` stand-in remembers: JSON values, counted in bytes and bounded, for all visitors
and for each session.

At a bound nothing is changed and `StateError` is raised; the stand-in then answers as a server out
of room does. The oldest session goes when there are too many.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from belljar.network.stand_ins.web import compact, parse_json

MAX_STATE_BYTES: Final = 4 << 20
MAX_SESSION_BYTES: Final = 64 << 10
MAX_SESSIONS: Final = 1000
MAX_ENTRIES: Final = 10_000
MAX_DEPTH: Final = 24
_MAX_NUMBER: Final = 2**53
_CONTAINER_BYTES, _TEXT_BYTES, _NUMBER_BYTES = 72, 56, 32


class StateError(Exception):
    """What was asked for can't be remembered: out of room, or no such place."""


def size_of(value: object) -> int:
    """What a value counts: its characters as JSON, and what Python needs for each part besides: a
    thousand sessions of empty lists would else be a gigabyte.
    """
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
    """What a new name in a mapping counts besides its value: itself, its colon, a comma before or
    behind it.
    """
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
        if not (isinstance(parent, dict) or _holds(parent, last)):
            raise StateError("no such entry of a list")
        is_new = not _holds(parent, last)
        old = 0 if is_new else size_of(_child(parent, last))
        self._room(parent, size - old + (_name_size(parent, last) if is_new else 0), is_new=is_new)
        parent[str(last) if isinstance(parent, dict) else last] = new

    def append(self, keys: Sequence[str | int], value: object) -> None:
        """Put a value at the end of a list, which is made when it is absent."""
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
        """Add to a number; one that is absent counts as 0."""
        found = self._find(keys)
        number = 0 if found is None else found
        if type(number) is not int or abs(number + by) > _MAX_NUMBER:
            raise StateError("not a whole number")
        self.set(keys, number + by)

    def delete(self, keys: Sequence[str | int]) -> None:
        """Take a value away; nothing happens when it isn't there."""
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
        """The last that there is on the way, the name in it, and the value, in the mappings that
        are missing.
        """
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
    """Sessions by an id that only the server makes; at most `MAX_SESSIONS`, the one unused for the
    longest goes first.
    """

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
