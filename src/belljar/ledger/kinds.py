"""The shapes of event kinds' data (docs/events.md), and their checks.

A check raises `ValueError` without showing the value; data may carry further fields. Pydantic's
import would take a third of a short command's time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from belljar.events import Kind

Check: TypeAlias = Callable[[Any], object]
# Beyond it, JSON's readers in other languages round.
MAX_COUNT: Final = 2**53 - 1


# By field; `name?`: it may be missing.
Shape: TypeAlias = Mapping[str, Check]


def check_shape(value: Any, shape: Shape, *, extra: bool = False) -> None:  # noqa: ANN401
    """Check an object; `extra`: further fields are allowed. Raises `ValueError`."""
    if not isinstance(value, dict):
        raise ValueError("an object is needed")
    for field, check in shape.items():
        name = field.removesuffix("?")
        if name in value:
            try:
                check(value[name])
            except ValueError as error:
                # The path of the field says enough: a cause for each level would not.
                raise ValueError(f"{name}: {error}") from None
        elif name == field:
            raise ValueError(f"{name}: is missing")
    if not extra and not value.keys() <= {field.removesuffix("?") for field in shape}:
        raise ValueError("it has fields that are not known")


def _that(is_good: Callable[[Any], object], what: str) -> Check:
    def check(value: object) -> None:
        if not is_good(value):
            raise ValueError(what)

    return check


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)  # true is no number


text: Final = _that(lambda value: isinstance(value, str), "text is needed")
count: Final = _that(
    lambda value: _is_int(value) and 0 <= value <= MAX_COUNT,
    "a whole number from 0 to 2^53 - 1 is needed",
)


def one_of(*words: str) -> Check:
    allowed = frozenset(words)
    return _that(
        lambda value: isinstance(value, str) and value in allowed, "not a word that is known here"
    )


def exactly(number: int) -> Check:
    return _that(lambda value: _is_int(value) and value == number, f"{number} is needed")


def matching(pattern: str) -> Check:
    compiled = re.compile(pattern)
    return _that(
        lambda value: isinstance(value, str) and compiled.fullmatch(value), "not of its form"
    )


_WALL_TIME: Final = matching("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}Z")


def wall_time(value: Any) -> None:  # noqa: ANN401 - as `Check`
    """Check a calendar time (RFC 3339, UTC, microseconds), as readers compute with it."""
    _WALL_TIME(value)
    datetime.fromisoformat(value)


# Lower case alone, so that a digest has one spelling.
HEX64: Final = matching("[0-9a-f]{64}")
# A reader refuses another version's lines: it would have to guess.
SCHEMA_VERSION: Final = 3


def maybe(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def items(check: Check, *, min_items: int = 0, max_items: int | None = None) -> Check:
    def check_items(value: object) -> None:
        if not isinstance(value, list | tuple):
            raise ValueError("a list is needed")
        if len(value) < min_items or (max_items is not None and len(value) > max_items):
            raise ValueError("it has too few or too many items")
        for index, item in enumerate(value):
            try:
                check(item)
            except ValueError as error:
                raise ValueError(f"{index}: {error}") from None

    return check_items


def objects(shape: Shape, *, max_items: int | None = None, extra: bool = False) -> Check:
    return items(lambda value: check_shape(value, shape, extra=extra), max_items=max_items)


# By the names that `kinds.txt` and `shape_of` give them.
TYPES: Final[dict[str, Check]] = {
    "text": text,
    "texts": items(text),
    "flag": _that(lambda value: isinstance(value, bool), "true or false is needed"),
    "count": count,
    "whole": _that(_is_int, "a whole number is needed"),
    "number": _that(lambda value: _is_int(value) or isinstance(value, float), "no number"),
    "object": _that(lambda value: isinstance(value, dict), "an object is needed"),
    "sha256": HEX64,
    "hex128": matching("[0-9a-f]{128}"),
    "run_id": matching("[0-9A-Za-z][0-9A-Za-z.-]{0,63}"),
    "version": exactly(SCHEMA_VERSION),
    "wall_time": wall_time,
    # Of a stream: milliseconds since the start, and how many bytes there were by then.
    "times": items(items(count, min_items=2, max_items=2)),
    # Of a terminal: milliseconds since the start, and its columns and rows from then on.
    "sizes": items(items(count, min_items=3, max_items=3)),
    "reaped": objects(
        {"cell_id": text, "kind": text, "removed": items(text), "remaining": items(text)},
        extra=True,
    ),
    "findings": objects({"name": text, "state": text, "how": text, "evidence": text}),
    "differences": objects({"kind": text, "key": text, "detail": text}, extra=True),
}


def shape_of(fields: str, **types: Check) -> Shape:
    """Return the shape that `fields` describe, as `kinds.txt` has them; `types`: more."""
    shape: dict[str, Check] = {}
    for name, _, type_name in (field.partition(":") for field in fields.split()):
        inner = type_name.removesuffix("-or-null")
        check = types.get(type_name) or TYPES.get(inner) or one_of(*inner.split("|"))
        shape[name] = maybe(check) if type_name not in types and inner != type_name else check
    return shape


def _read_table() -> Iterator[tuple[Kind, str]]:
    text = re.sub("#.*\n", "", Path(__file__).with_name("kinds.txt").read_text("utf-8"))
    for line in re.sub("\n +", " ", text.strip()).splitlines():
        name, _, fields = line.partition(" ")
        yield Kind(name), fields


FIELDS: Final[Mapping[Kind, str]] = dict(_read_table())
DATA: Final[Mapping[Kind, Shape]] = {kind: shape_of(text) for kind, text in FIELDS.items()}
