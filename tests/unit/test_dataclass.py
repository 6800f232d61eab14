"""`belljar.dataclass`: late methods behave as the standard library's do."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import pickle
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import pytest

from belljar.dataclass import dataclass, from_json, json_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A class like most of ours."""

    name: str
    limits: tuple[int, ...] = ()
    seen: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """A check, as ours have."""
        if not self.name:
            raise ValueError("empty")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """The same by the standard library."""

    name: str
    limits: tuple[int, ...] = ()
    seen: dict[str, int] = dataclasses.field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """As above."""
        if not self.name:
            raise ValueError("empty")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Heir(Late):
    """A class of the standard library's, of a late one."""

    more: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LateHeir(Late):
    """A late one of a late one, with another default."""

    more: int = 1
    limits: tuple[int, ...] = (9,)


def fresh() -> type[Any]:
    """A class of which nothing was used."""

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Fresh:
        """One."""

        name: str
        limits: tuple[int, ...] = ()

    return Fresh


def plain(cls: object) -> str:
    """How the two classes differ in their names only."""
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


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_late_class_does_what_the_standard_librarys_does(
    operation: Callable[[Any], object],
) -> None:
    """Each use of a class gives the same, whichever of them is the first."""
    assert plain(operation(Late)) == plain(operation(Plain))


@pytest.mark.parametrize("operation", REFUSED)
def test_a_late_class_refuses_what_the_standard_librarys_does(
    operation: Callable[[Any], object],
) -> None:
    """What is missing, unknown, by position, invalid or frozen."""
    with pytest.raises((TypeError, ValueError, AttributeError)) as late:
        operation(Late)
    if late.type is not dataclasses.FrozenInstanceError:  # stdlib: a TypeError for what is no field
        with pytest.raises(late.type):
            operation(Plain)


@pytest.mark.parametrize("kind", [Heir, LateHeir])
def test_an_heir_has_the_late_classes_fields(kind: type[Any]) -> None:
    """A class with a late one as its base, whoever makes it: its fields come after the base's."""
    heir = kind(name="a", more=2)
    assert [field.name for field in dataclasses.fields(kind)] == ["name", "limits", "seen", "more"]
    assert heir == kind(name="a", more=2) != kind(name="a")
    assert pickle.loads(pickle.dumps(heir)) == heir  # noqa: S301 - our own
    assert LateHeir(name="a").limits == (9,)
    with pytest.raises(ValueError, match="empty"):
        kind(name="")


def test_nothing_is_generated_before_it_is_used() -> None:
    """The decorator generates nothing; the first instance does."""
    made = fresh()
    assert not inspect.isfunction(made.__dict__["__init__"])
    assert "name='a'" in repr(made(name="a"))
    assert inspect.isfunction(made.__dict__["__init__"])


def test_threads_may_use_a_class_at_once() -> None:
    """Whoever comes first generates; nobody sees a class half made."""
    found: list[object] = []

    def use(cls: type[Any], together: threading.Barrier) -> None:
        together.wait()
        one = cls(name="a")
        found.append((one == cls(name="a"), hash(one) == hash(cls(name="a")), len(repr(one)) > 0))

    for _ in range(20):
        made, together = fresh(), threading.Barrier(4)
        threads = [threading.Thread(target=use, args=(made, together)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [(True, True, True)] * 80


class Colour(enum.StrEnum):
    """Of an enumeration."""

    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A field of each kind that documents have."""

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
