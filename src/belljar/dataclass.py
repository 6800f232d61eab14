"""The standard library's `dataclass`, with methods generated on first use; its JSON.

Generating them takes half a millisecond a class, a quarter of a short command's time.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict as asdict
from dataclasses import field as field
from dataclasses import fields as fields
from dataclasses import replace as replace
from enum import Enum
from functools import cache, partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:  # noqa: ANN401 - as there
        """As `dataclasses.dataclass`."""
        if not options.get("slots") or options.keys() - {"frozen", "slots", "kw_only"}:
            return dataclasses.dataclass(cls, **options)
        return partial(_with_late_methods, **options)


def _with_late_methods(cls: type, *, frozen: bool = False, **options: bool) -> type:
    by_hand = {*vars(cls)}
    made: type = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(cls)
    methods: dict[str, Any] = {name: _late(made, name) for name in _LATE}
    # As there: what is equal and may change has no hash
    methods |= _FROZEN | {"__hash__": _late(made, "__hash__")} if frozen else {"__hash__": None}
    for name, method in methods.items():
        if name not in by_hand:
            setattr(made, name, method)
    return made


def _late(cls: type, name: str) -> Callable[..., Any]:
    def first(self: object, *args: object, **options: object) -> object:
        _generate(cls)
        return getattr(cls, name)(self, *args, **options)

    return first


def _generate(cls: type) -> None:
    named = [(each.name, each.type, each) for each in dataclasses.fields(cls)]
    namespace: dict[str, Any] = {"__module__": cls.__module__, "__doc__": "none is written"}
    if hasattr(cls, "__post_init__"):
        namespace["__post_init__"] = cls.__post_init__
    is_frozen = cls.__setattr__ is _refuse
    full = dataclasses.make_dataclass(cls.__name__, named, namespace=namespace, frozen=is_frozen)
    for name in (*_LATE, "__hash__"):
        if getattr(vars(cls).get(name), "__code__", None) is _FIRST:
            method = vars(full)[name]
            method.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)


_FIRST: Final = _late(object, "").__code__


def _refuse(self: object, name: str, *_value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"{type(self).__name__}.{name} can't be changed")


def _state(self: Any) -> list[Any]:  # noqa: ANN401 - any dataclass
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


# As the standard library's of frozen classes with slots: pickle's own would set attributes.
def _set_state(self: Any, state: list[Any]) -> None:  # noqa: ANN401 - as above
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


_LATE: Final = ("__init__", "__repr__", "__eq__")
_FROZEN: Final = {
    "__setattr__": _refuse,
    "__delattr__": _refuse,
    "__getstate__": _state,
    "__setstate__": _set_state,
}


def field_names(kind: type) -> Collection[str]:
    return getattr(kind, "__dataclass_fields__", ())


def json_of(value: Any) -> Any:  # noqa: ANN401 - JSON values of any shape
    """Return data as JSON values; dataclasses become sorted objects."""
    # Exact types: a member of a `StrEnum` is a `str`, too.
    if value is None or type(value) in {str, int, bool, float}:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if names := field_names(type(value)):
        return {name: json_of(getattr(value, name)) for name in sorted(names)}
    if isinstance(value, Mapping):
        return {str(key): json_of(item) for key, item in sorted(value.items())}
    return [json_of(item) for item in value] if isinstance(value, (list, tuple)) else value


def from_json(kind: Any, value: Any) -> Any:  # noqa: ANN401 - as the annotations of fields say
    """Return the inverse of `json_of`, by the types of the fields.

    Raises `ValueError`, `KeyError` or `TypeError`: a field unknown, lacking or of another type.
    """
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in {typing.Union, types.UnionType}:
        options = [option for option in inner if option is not types.NoneType]
        if value is None and len(options) < len(inner):
            return None
        # Of several types, as of JSON values, none can be told from the others.
        return from_json(options[0], value) if len(options) == 1 else value
    names = field_names(kind)
    is_object = bool(names) or origin in {Mapping, dict}
    wanted: Any = list if origin is tuple else dict if is_object else object
    if not isinstance(value, wanted):
        raise TypeError(f"{value!r} is no {wanted.__name__}")
    if origin is tuple:
        return tuple(from_json(inner[0], item) for item in value)
    if origin in {Mapping, dict}:
        return {from_json(inner[0], key): from_json(inner[1], value[key]) for key in value}
    if origin is typing.Literal:
        if value not in inner:
            raise ValueError(f"{value!r} is none of {inner}")
        return value
    if names:
        if unknown := value.keys() - set(names):
            raise KeyError(min(unknown))
        hints = _hints(kind)
        return kind(**{name: from_json(hints[name], item) for name, item in value.items()})
    if kind is typing.Any or issubclass(kind, (Enum, PurePath)):
        return value if kind is typing.Any else kind(value)
    # JSON has one kind of number: a float without decimals may come back as an int.
    if type(value) is not kind and (kind, type(value)) != (float, int):
        raise TypeError(f"{value!r} is no {kind}")
    return value


def prepare(*kinds: Any) -> None:  # noqa: ANN401 - as the annotations of fields say
    """Generate, once for all forks, what `from_json` needs."""
    for kind in kinds:
        prepare(*typing.get_args(kind))
        if field_names(kind):
            _generate(kind)
            prepare(*_hints(kind).values())


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
