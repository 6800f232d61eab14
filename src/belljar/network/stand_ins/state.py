"""What an `http` stand-in remembers: JSON values, counted in bytes and bounded, for all visitors and for each session.

At a bound nothing is changed and `StateError` is raised; the stand-in then answers as a server out of room does. The oldest session goes when there are too many.
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


class StateError(Exception):
    """What was asked for can't be remembered: out of room, or no such place."""


def size_of(value: object) -> int:
    """What a value counts: its characters as JSON."""
    return len(compact(value))


def _copied(value: object) -> tuple[Any, int]:
    try:
        text = compact(value)
        return parse_json(text), len(text)
    except (ValueError, RecursionError):
        raise StateError("no JSON value") from None


class Store:
    """One tree of JSON values."""

    def __init__(self, initial: Mapping[str, Any], max_bytes: int) -> None:
        self.values, self.size = _copied(dict(initial))
        self.max_bytes = max_bytes

    def set(self, keys: Sequence[str | int], value: object) -> None:
        """Put a value at a place; mappings on the way are made."""
        new, size = _copied(value)
        parent, last = self._parent(keys)
        if isinstance(parent, list) and not (isinstance(last, int) and -len(parent) <= last < len(parent)):
            raise StateError("no such entry of a list")
        is_new = isinstance(parent, dict) and str(last) not in parent
        old = 0 if is_new else size_of(self._child(parent, last))
        self._room(parent, size - old + (len(str(last)) + 4) * is_new, is_new=is_new)
        parent[str(last) if isinstance(parent, dict) else last] = new

    def append(self, keys: Sequence[str | int], value: object) -> None:
        """Put a value at the end of a list, which is made when it is absent."""
        new, size = _copied(value)
        parent, last = self._parent(keys)
        found = self._child(parent, last)
        if found is None:
            self.set(keys, [new])
            return
        if not isinstance(found, list):
            raise StateError("not a list")
        self._room(found, size + 1, is_new=True)
        found.append(new)

    def increment(self, keys: Sequence[str | int], by: int) -> None:
        """Add to a number; one that is absent counts as 0."""
        parent, last = self._parent(keys)
        found = self._child(parent, last)
        number = 0 if found is None else found
        if type(number) is not int or abs(number + by) > _MAX_NUMBER:
            raise StateError("not a whole number")
        self.set(keys, number + by)

    def delete(self, keys: Sequence[str | int]) -> None:
        """Take a value away; nothing happens when it isn't there."""
        parent, last = self._parent(keys, make=False)
        found = self._child(parent, last)
        if found is None and not (isinstance(parent, dict) and str(last) in parent):
            return
        self.size -= size_of(found)
        if isinstance(parent, dict):
            del parent[str(last)]
        elif isinstance(parent, list) and isinstance(last, int):
            del parent[last]

    def _parent(self, keys: Sequence[str | int], *, make: bool = True) -> tuple[Any, str | int]:
        if not keys or len(keys) > MAX_DEPTH:
            raise StateError("no such place")
        at: Any = self.values
        for step in keys[:-1]:
            below = self._child(at, step)
            if below is None and make and isinstance(at, dict):
                self._room(at, len(str(step)) + 6, is_new=True)
                below = at[str(step)] = {}
            at = below
        if make and not isinstance(at, (dict, list)):
            raise StateError("no such place")
        return at, keys[-1]

    @staticmethod
    def _child(at: object, step: str | int) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(at, dict):
            return at.get(str(step))
        if isinstance(at, list) and isinstance(step, int) and -len(at) <= step < len(at):
            return at[step]
        return None

    def _room(self, parent: dict[str, Any] | list[Any], more: int, *, is_new: bool) -> None:
        if self.size + more > self.max_bytes or (is_new and len(parent) >= MAX_ENTRIES):
            raise StateError("no room left")
        self.size += more


class Sessions:
    """Sessions by an id that only the server makes; at most `MAX_SESSIONS`, the one unused for the longest goes first."""

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
