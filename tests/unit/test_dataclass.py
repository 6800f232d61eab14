"""`belljar.dataclass`: late methods behave as the standard library's do."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from belljar.dataclass import dataclass, from_json, json_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    name: str
    limits: tuple[int, ...] = ()
    seen: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("empty")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    name: str
    limits: tuple[int, ...] = ()
    seen: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("empty")


def plain(cls: object) -> str:
    return str(cls).replace("Plain", "Late")


OPERATIONS: list[Callable[[Any], object]] = [
    lambda cls: cls(name="a") == cls(name="a", seen={"x": 1}),
    lambda cls: hash(cls(name="a", limits=(3,))),
    lambda cls: dataclasses.asdict(cls(name="a")),
    lambda cls: dataclasses.replace(cls(name="a"), limits=(4,)),
    lambda cls: [(f.name, f.type, f.kw_only, f.compare) for f in dataclasses.fields(cls)],
    lambda cls: [p.kind for p in inspect.signature(cls).parameters.values()],
    lambda cls: pickle.loads(pickle.dumps(cls(name="a", limits=(5,)))),  # noqa: S301 - our own
    lambda cls: hasattr(cls(name="a"), "__dict__"),
]
REFUSED: list[Callable[[Any], object]] = [
    lambda cls: cls(),
    lambda cls: cls("a"),
    lambda cls: cls(name=""),
    lambda cls: setattr(cls(name="a"), "name", "b"),
]


def test_a_late_class_does_what_the_standard_librarys_does() -> None:
    """Each use of a class gives the same."""
    for operation in OPERATIONS:
        assert plain(operation(Late)) == plain(operation(Plain))
    for operation in REFUSED:
        with pytest.raises((TypeError, ValueError, AttributeError)):
            operation(Late)


class Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    late: Late
    many: tuple[Late, ...] = ()
    place: Path | None = None
    colour: Colour = Colour.RED
    weights: Mapping[Colour, float] = dataclasses.field(default_factory=dict)
    mode: Literal["a", "b"] = "a"
    free: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def test_what_json_holds_becomes_the_same_again() -> None:
    """Through text and back, with every type restored."""
    late = Late(name="x", limits=(1, 2))
    whole = Whole(
        late=late, many=(late,), place=Path("/p"), weights={Colour.RED: 1}, free={"a": [None]}
    )
    assert from_json(Whole, json.loads(json.dumps(json_of(whole)))) == whole


@pytest.mark.parametrize(
    "wrong",
    [
        {"more": 1},
        {"late": None},
        {"late": {"name": 1}},
        {"late": {"name": "x", "limits": "12"}},
        {"late": {"name": "x", "limits": [True]}},
        {"colour": "blue"},
        {"weights": {"red": "1"}},
        {"mode": "c"},
    ],
)
def test_what_is_no_such_value_is_refused(wrong: dict[str, Any]) -> None:
    """Nothing unknown is taken, and no value of another type."""
    with pytest.raises((ValueError, KeyError, TypeError)):
        from_json(Whole, {"late": {"name": "x"}, **wrong})
