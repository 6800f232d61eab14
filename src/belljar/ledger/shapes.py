"""Strict shapes of JSON objects: which fields an object must have, which it may, and of what type
each is. Pure.

Each check raises `ValueError` that says what is wrong without showing the value. Not pydantic:
every recorded event is checked, and a short command would spend a third of its time importing that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from belljar.dataclass import dataclass

Check: TypeAlias = Callable[[Any], object]
MAX_COUNT: Final = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Optional:
    """A field that may be missing."""

    check: Check


Shape: TypeAlias = Mapping[str, Check | Optional]


def check_shape(value: Any, shape: Shape, *, extra: bool = False) -> None:  # noqa: ANN401
    """Whether `value` is an object of this shape; with `extra` it may have more fields.

    Raises `ValueError` that names the first field that is wrong.
    """
    if not isinstance(value, dict):
        raise ValueError("an object is needed")
    for name, rule in shape.items():
        check = rule.check if isinstance(rule, Optional) else rule
        if name not in value:
            if check is rule:
                raise ValueError(f"{name}: is missing")
            continue
        try:
            check(value[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    if not extra and not value.keys() <= shape.keys():
        raise ValueError("it has fields that are not known")


def text(value: object) -> None:
    """Text."""
    if not isinstance(value, str):
        raise ValueError("text is needed")


def flag(value: object) -> None:
    """true or false."""
    if not isinstance(value, bool):
        raise ValueError("true or false is needed")


def whole(value: object) -> None:
    """A whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("a whole number is needed")


def count(value: object) -> None:
    """A whole number from 0 to what JSON carries exactly."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_COUNT:
        raise ValueError("a whole number from 0 to 2^53 - 1 is needed")


def number(value: object) -> None:
    """A number, whole or not."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ValueError("a number is needed")


def json_object(value: object) -> None:
    """An object of any shape."""
    if not isinstance(value, dict):
        raise ValueError("an object is needed")


def one_of(*words: str) -> Check:
    """One of these words."""
    allowed = frozenset(words)

    def check(value: object) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError("not a word that is known here")

    return check


def exactly(number: int) -> Check:
    """This whole number; true is not 1."""

    def check(value: object) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value != number:
            raise ValueError(f"{number} is needed")

    return check


def matching(pattern: str) -> Check:
    """Text that this pattern matches from its first to its last character."""
    compiled = re.compile(pattern)

    def check(value: object) -> None:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise ValueError("not of its form")

    return check


HEX64: Final = matching("[0-9a-f]{64}")
RUN_ID: Final = matching("[0-9A-Za-z][0-9A-Za-z.-]{0,63}")


def maybe(check: Check) -> Check:
    """As `check`, or null."""

    def check_unless_null(value: object) -> None:
        if value is not None:
            check(value)

    return check_unless_null


def items(check: Check, *, most: int | None = None) -> Check:
    """A list (in an event also a tuple) of such items, `most` at most."""

    def check_items(value: object) -> None:
        if not isinstance(value, list | tuple):
            raise ValueError("a list is needed")
        if most is not None and len(value) > most:
            raise ValueError(f"at most {most} items are allowed")
        for index, item in enumerate(value):
            try:
                check(item)
            except ValueError as error:
                raise ValueError(f"{index}: {error}") from None

    return check_items


def objects(shape: Shape, *, most: int | None = None, extra: bool = False) -> Check:
    """A list of objects of this shape."""
    return items(lambda value: check_shape(value, shape, extra=extra), most=most)


texts: Final[Check] = items(text)
