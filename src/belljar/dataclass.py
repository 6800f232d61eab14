"""The standard library's `dataclass`, with methods generated on first use; its JSON.

Generating them takes half a millisecond a class, a quarter of a short command's time.
Fields and behaviour are the standard library's.
It generates every method but `__init__`, and all of a class that isn't plain.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from enum import Enum
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


def json_of(value: Any) -> Any:  # noqa: ANN401 - JSON values of any shape
    """Data as JSON values, names sorted.

    Dataclasses become objects, enumerations their values, paths text.
    """
    if value is None or type(value) in {str, int, bool, float}:
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "__dataclass_fields__"):
        return {name: json_of(getattr(value, name)) for name in sorted(value.__dataclass_fields__)}
    if isinstance(value, Mapping):
        return {str(key): json_of(item) for key, item in sorted(value.items())}
    return [json_of(item) for item in value] if isinstance(value, (list, tuple)) else value


_PSEUDO_FIELDS: Final = ("ClassVar", "InitVar", "KW_ONLY")
_WRITTEN_BY_HAND: Final = {"__slots__", "__init__", "__repr__", "__eq__", "__hash__"} | {
    "__setattr__", "__delattr__", "__getstate__", "__setstate__", "__match_args__"
}  # fmt: skip

_Written = tuple[dict[str, Any], dict[str, Any], dict[str, bool]]

_written: Final[dict[type, _Written]] = {}
"""Each class with late methods: the kinds of its fields, its bases' first, defaults and options."""


def _is_plain(cls: type, options: dict[str, bool]) -> bool:
    kinds = inspect.get_annotations(cls)
    fields = [f for name in kinds if isinstance(f := cls.__dict__.get(name), dataclasses.Field)]
    return (
        options.get("slots", False)
        and options.keys() <= {"frozen", "slots", "kw_only"}
        and type(cls) is type
        and (cls.__bases__ == (object,) or _has_plain_base(cls, options))
        and _WRITTEN_BY_HAND.isdisjoint(cls.__dict__)
        and bool(kinds)
        and all(isinstance(kind, str) for kind in kinds.values())
        and not any(word in kind for kind in kinds.values() for word in _PSEUDO_FIELDS)
        and all(field.init and field.kw_only is dataclasses.MISSING for field in fields)
    )


def _has_plain_base(cls: type, options: dict[str, bool]) -> bool:
    return (
        len(cls.__bases__) == 1 and _written.get(cls.__base__ or object, ({}, {}, {}))[2] == options
    )


class _Late:
    """An attribute of a class that is generated when it is looked up."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:  # noqa: ANN401 - an attribute
        for cls in owner.__mro__:
            if cls.__dict__.get(self.name) is self:
                _generate(cls, self.name)
        return getattr(owner if instance is None else instance, self.name)


def _generate(cls: type, name: str) -> None:
    """Give `cls` its attribute `name`, and what is generated together with it."""
    kinds, defaults, options = _written[cls]
    if name == "__init__":
        setattr(cls, name, _init(cls, kinds, defaults, options))
        return
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


def _init(
    cls: type, kinds: dict[str, Any], defaults: dict[str, Any], options: dict[str, bool]
) -> Any:  # noqa: ANN401 - a method
    scope: dict[str, Any] = {"_set": object.__setattr__, "__name__": cls.__module__}
    arguments = ["self", *(["*"] if options.get("kw_only") else [])]
    assign = "_set(self, {0!r}, {1})" if options.get("frozen") else "self.{0} = {1}"
    body = []
    for name in kinds:
        default, value = defaults.get(name, dataclasses.MISSING), name
        if isinstance(default, dataclasses.Field):
            scope[f"_make_{name}"] = make = default.default_factory
            if make is dataclasses.MISSING:
                default = default.default
            else:  # the field itself stands for an argument that isn't given
                value = f"_make_{name}() if {name} is _default_{name} else {name}"
        scope[f"_default_{name}"] = default
        has_default = default is not dataclasses.MISSING
        arguments.append(f"{name}=_default_{name}" if has_default else name)
        body.append(assign.format(name, value))
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    # What is compiled holds names of fields only.
    exec(f"def __init__({', '.join(arguments)}):\n " + "\n ".join(body), scope)  # noqa: S102
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__annotations__ = {**kinds, "return": None}
    return init


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
