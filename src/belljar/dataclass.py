"""The standard library's `dataclass`, with methods generated on first use; its JSON.

Generating them takes half a millisecond a class, a quarter of a short command's time.
Fields and behaviour are the standard library's.
It also generates every method of a class that isn't plain.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import asdict as asdict
from dataclasses import field as field
from dataclasses import fields as fields
from dataclasses import replace as replace
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:  # noqa: ANN401 - as there
        """As `dataclasses.dataclass`."""
        if cls is None:
            return lambda cls: dataclass(cls, **options)
        if _is_plain(cls, options):
            # `cls` again, with slots
            namespace = dict(cls.__dict__)
            del namespace["__dict__"], namespace["__weakref__"]
            names = tuple(cls.__annotations__)
            kinds, defaults, _ = _written.get(cls.__base__ or object, ({}, {}, {}))
            defaults = defaults | {name: namespace.pop(name) for name in names if name in namespace}
            own = tuple(name for name in names if name not in kinds)
            namespace |= _LATE | (_FROZEN if options.get("frozen") else {"__hash__": None})
            made = type(cls.__name__, cls.__bases__, namespace | {"__slots__": own})
            made.__qualname__ = cls.__qualname__
            _written[made] = (kinds | cls.__annotations__, defaults, options)
            return made
        return dataclasses.dataclass(**options)(cls)


def field_names(kind: type) -> Collection[str]:
    """Return the fields of a dataclass in order; none of another class. Nothing is generated."""
    return _written[kind][0] if kind in _written else getattr(kind, "__dataclass_fields__", ())


def json_of(value: Any) -> Any:  # noqa: ANN401 - JSON values of any shape
    """Data as JSON values, names sorted.

    Dataclasses become objects, enumerations their values, paths text.
    """
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

    Raises `ValueError`, `KeyError` or `TypeError`: an unknown field, a lacking one, another type.
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
    """Look up and generate what `from_json` needs of these types and all in them.

    Forks share it, instead of each making its own.
    """
    for kind in kinds:
        prepare(*typing.get_args(kind))
        if field_names(kind):
            _ = kind.__init__
            prepare(*_hints(kind).values())


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


# They stand among annotations and are no fields: such a class is made at once.
_PSEUDO_FIELDS: Final = ("ClassVar", "InitVar", "KW_ONLY")
# What a class writes itself must win over what is generated: such a class is made at once.
_WRITTEN_BY_HAND: Final = {"__slots__", "__init__", "__repr__", "__eq__", "__hash__"} | {
    "__setattr__", "__delattr__", "__getstate__", "__setstate__", "__match_args__"
}  # fmt: skip

_Written = tuple[dict[str, Any], dict[str, Any], dict[str, bool]]

# Each class with late methods: the kinds of its fields, its bases' first, defaults and options.
_written: Final[dict[type, _Written]] = {}


def _is_plain(cls: type, options: dict[str, bool]) -> bool:
    kinds = vars(cls).get("__annotations__", {})
    given = [f for name in kinds if isinstance(f := cls.__dict__.get(name), dataclasses.Field)]
    return (
        options.get("slots", False)
        and options.keys() <= {"frozen", "slots", "kw_only"}
        and type(cls) is type
        and _has_plain_base(cls, options)
        and _WRITTEN_BY_HAND.isdisjoint(cls.__dict__)
        and bool(kinds)
        and all(isinstance(kind, str) for kind in kinds.values())
        and not any(word in " ".join(kinds.values()) for word in _PSEUDO_FIELDS)
        and all(field.init and field.kw_only is dataclasses.MISSING for field in given)
    )


def _has_plain_base(cls: type, options: dict[str, bool]) -> bool:
    base = cls.__bases__[0]
    if len(cls.__bases__) > 1 or base in _written:
        return len(cls.__bases__) == 1 and _written[base][2] == options
    # Methods alone, as a base of the standard library's has fields
    return base is object or (base.__bases__ == (object,) and vars(base).get("__slots__") == ())


class _Late:
    """An attribute of a class that is generated when it is looked up."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:  # noqa: ANN401 - an attribute
        for cls in owner.__mro__:
            if cls.__dict__.get(self.name) is self:
                _generate(cls, self.name)
                made = cls.__dict__[self.name]  # not a subclass's own that calls this one
                return made.__get__(instance, owner) if hasattr(made, "__get__") else made
        return getattr(owner if instance is None else instance, self.name)


def _generate(cls: type, name: str) -> None:
    """Give `cls` its attribute `name`, and what is generated together with it."""
    kinds, defaults, options = _written[cls]
    asked = {"frozen": options.get("frozen", False)}
    if name in {"__dataclass_fields__", "__match_args__"}:
        asked = {"init": False, "repr": False, "eq": False}
    namespace = {"__annotations__": kinds, "__module__": cls.__module__}
    namespace["__doc__"] = (
        "Without one, the standard library writes the signature, which takes long."
    )
    if hasattr(cls, "__post_init__"):
        namespace["__post_init__"] = cls.__post_init__
    template = type(cls.__name__, (), namespace | defaults)
    template.__qualname__ = cls.__qualname__
    template = dataclasses.dataclass(kw_only=options.get("kw_only", False), **asked)(template)
    for each, value in template.__dict__.items():
        is_generated = each != "__dataclass_params__" or "frozen" in asked
        if is_generated and isinstance(cls.__dict__.get(each), _Late):
            setattr(cls, each, value)


def _names(instance: Any) -> list[str]:  # noqa: ANN401 - any dataclass
    return [field.name for field in dataclasses.fields(instance)]


def _refuse_set(self: object, name: str, value: object) -> None:
    if type(self) in _written or name in _names(self):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _refuse_delete(self: object, name: str) -> None:
    if type(self) in _written or name in _names(self):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


# As the standard library's of frozen classes with slots: pickle's own would set attributes.
def _getstate(self: object) -> list[Any]:
    return [getattr(self, name) for name in _names(self)]


def _setstate(self: object, state: list[Any]) -> None:
    for name, value in zip(_names(self), state, strict=True):
        object.__setattr__(self, name, value)


_LATE: Final = {
    name: _Late(name)
    for name in (
        "__init__", "__repr__", "__eq__", "__match_args__", "__dataclass_fields__",
        "__dataclass_params__",
    )
}  # fmt: skip
_FROZEN: Final = {
    "__hash__": _Late("__hash__"),
    "__setattr__": _refuse_set,
    "__delattr__": _refuse_delete,
    "__getstate__": _getstate,
    "__setstate__": _setstate,
}
