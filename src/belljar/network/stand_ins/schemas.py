"""An OpenAPI document's schemas as JSON Schema 2020-12.

What 3.0 says in its own words becomes the standard's. Two readings: requests (`readOnly` isn't
demanded) and answers (`writeOnly` isn't there). Remote references are never followed. Source:
OpenAPI 3.0.4 and 3.1.1, "Schema Object".
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from itertools import islice
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import unquote

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import SchemaError, ValidationError  # type: ignore[import-untyped]
from jsonschema.validators import extend  # type: ignore[import-untyped]
from referencing import Registry
from referencing.jsonschema import DRAFT202012

MAX_TEXT: Final = 4096
_MAX_REPEATS: Final = 256
_MAX_POSITIONS: Final = 1000
_CLASSES: Final = {
    "CATEGORY_DIGIT": "0123456789",
    "CATEGORY_WORD": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_",
    "CATEGORY_SPACE": " \t\n\r\f\v",
}
_USUAL: Final = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/@ "
    "!#$%&'*+,;=?~()[]{}<>|^`\"\\"
)


class _UnsolvedError(Exception):
    pass


class _AmbiguousError(Exception):
    pass


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """Without Python's warnings on `[[`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern)


def pattern_problem(pattern: object) -> str:
    """Why a pattern is refused, or "". It is unreadable, or exponential on a hostile text."""
    if not isinstance(pattern, str):
        return "a pattern is text"
    try:
        compiled(pattern)
        _check_repeats(_parsed(pattern), inside=False)
    except _AmbiguousError as exc:
        return f"{exc} can take for ever on a hostile text"
    except (re.error, RecursionError, OverflowError) as exc:
        return f"can't be read: {exc}"
    return ""


def _parsed(pattern: str) -> Any:  # noqa: ANN401 - the parser's own types are private
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return import_module("re._parser").parse(pattern)


def _check_repeats(items: Any, *, inside: bool) -> None:  # noqa: ANN401 - the parser's
    """`inside`: of a repetition without a bound. Raises `_AmbiguousError`."""
    for operator, argument in items:
        match str(operator):
            case "MAX_REPEAT" | "MIN_REPEAT":
                is_endless = argument[1] > _MAX_REPEATS
                if is_endless and inside:
                    raise _AmbiguousError("a repetition without a bound inside another")
                _check_repeats(argument[2], inside=inside or is_endless)
                if is_endless:
                    _Automaton(argument[2]).check()
            case "SUBPATTERN":
                _check_repeats(argument[-1], inside=inside)
            case "BRANCH":
                for branch in argument[1]:
                    _check_repeats(branch, inside=inside)
            case "ASSERT" | "ASSERT_NOT":
                _check_repeats(argument[1], inside=inside)
            case "ATOMIC_GROUP":
                _check_repeats(argument, inside=inside)
            case "POSSESSIVE_REPEAT":
                _check_repeats(argument[2], inside=inside)


_Part: TypeAlias = tuple[list[int], list[int], bool]  # first and last positions; can be empty


class _Automaton:
    """A repetition's body as Glushkov's automaton.

    It has a position for each character that it reads. Where no character leads to two positions, a
    text is matched in one way at most: giving up takes no exponential time. Compares characters
    that `_allowed` knows.
    """

    def __init__(self, body: Any) -> None:  # noqa: ANN401 - the parser's
        self.chars: list[frozenset[str]] = []
        self.following: list[list[int]] = []
        first, last, _ = self.sequence(body)
        self.link(last, first)

    def check(self) -> None:
        for following in self.following:
            seen: set[str] = set()
            for position in following:
                if seen & self.chars[position]:
                    raise _AmbiguousError("a repetition that can match one text in several ways")
                seen |= self.chars[position]

    def link(self, before: list[int], after: list[int]) -> None:
        for position in before:
            self.following[position] += after

    def sequence(self, items: Any) -> _Part:  # noqa: ANN401 - the parser's
        first, last, is_empty = list[int](), list[int](), True
        for operator, argument in items:
            starts, ends, can_be_empty = self.part(str(operator), argument)
            self.link(last, starts)
            first += starts if is_empty else []
            last = [*ends, *(last if can_be_empty else [])]
            is_empty = is_empty and can_be_empty
        return first, last, is_empty

    def part(self, name: str, argument: Any) -> _Part:  # noqa: ANN401 - the parser's
        match name:
            case "AT" | "ASSERT" | "ASSERT_NOT":
                return [], [], True
            case "SUBPATTERN":
                return self.sequence(argument[-1])
            case "ATOMIC_GROUP":
                return self.sequence(argument)
            case "BRANCH":
                parts = [self.sequence(branch) for branch in argument[1]]
                empty = sum(part[2] for part in parts)
                if empty > 1:
                    raise _AmbiguousError("a repetition with two empty alternatives")
                starts = [position for part in parts for position in part[0]]
                ends = [position for part in parts for position in part[1]]
                return starts, ends, bool(empty)
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return self.repeat(*argument)
        known = {chr(argument)} if name == "LITERAL" else set(_USUAL)
        if name in ("IN", "NOT_LITERAL", "CATEGORY"):
            with suppress(_UnsolvedError):
                known = set(_allowed(name, argument))
        self.chars.append(frozenset(known))
        self.following.append([])
        if len(self.chars) > _MAX_POSITIONS:
            raise _AmbiguousError("a repetition of something that long")
        return [len(self.chars) - 1], [len(self.chars) - 1], False

    def repeat(self, low: int, high: int, body: Any) -> _Part:  # noqa: ANN401 - the parser's
        if not high:
            return [], [], True
        first, last, is_empty = self.sequence(body)
        if is_empty and (low == 0 or high > 1):
            raise _AmbiguousError("a repetition of something that may be empty")
        if high > _MAX_REPEATS:  # possessive: others without a bound are refused here
            self.link(last, first)
            return first, last, low == 0
        before, ends = last, list(last) if low <= 1 else []
        for count in range(2, high + 1):
            starts, last, _ = self.sequence(body)
            self.link(before, starts)
            before = last
            ends += last if count >= low else []
        return first, ends, low == 0


def text_for(pattern: str, low: int, high: int, index: int) -> str | None:
    """A matching text, varied by `index`; None: not found."""
    try:
        expression, parsed = compiled(pattern), _parsed(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    for more in (0, 1, 2, 4, 8, 16, 32, 64, low, high):
        for turn in (index, 0):
            try:
                text = _pattern_text(parsed, min(more, _MAX_REPEATS), turn)
            except _UnsolvedError:
                return None
            if not pattern.endswith("$"):
                text = text.ljust(low, "a")
            if low <= len(text) <= min(high, MAX_TEXT) and expression.search(text):
                return text
    return None


def _pattern_text(items: Any, more: int, turn: int) -> str:  # noqa: ANN401 - the parser's
    out: list[str] = []
    for operator, argument in items:
        out.append(_piece(str(operator), argument, more, turn))
        if sum(map(len, out)) > MAX_TEXT:
            raise _UnsolvedError
    return "".join(out)


def _piece(name: str, argument: Any, more: int, turn: int) -> str:  # noqa: ANN401 - the parser's
    match name:
        case "LITERAL":
            return chr(argument)
        case "AT":
            return ""
        case "ANY":
            return chr(97 + turn % 26)
        case "IN" | "NOT_LITERAL" | "CATEGORY":
            allowed = _allowed(name, argument)
            return allowed[turn % len(allowed)]
        case "SUBPATTERN" | "ATOMIC_GROUP":
            return _pattern_text(argument[-1] if name == "SUBPATTERN" else argument, more, turn)
        case "BRANCH":
            return _pattern_text(argument[1][turn % len(argument[1])], more, turn)
        case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
            count = min(max(argument[0], min(more, argument[1])), _MAX_REPEATS)
            return "".join(_pattern_text(argument[2], more, turn + at) for at in range(count))
    raise _UnsolvedError


def _allowed(name: str, argument: Any) -> str:  # noqa: ANN401 - the parser's
    if name == "NOT_LITERAL":
        return _USUAL.replace(chr(argument), "")
    items = [(name, argument)] if name == "CATEGORY" else argument
    chosen = "".join(_class_members(str(kind), value) for kind, value in items)
    if str(items[0][0]) == "NEGATE":
        chosen = "".join(char for char in _USUAL if char not in chosen)
    if not chosen:
        raise _UnsolvedError
    return chosen


def _class_members(kind: str, value: Any) -> str:  # noqa: ANN401 - the parser's
    if kind == "NEGATE":
        return ""
    if kind == "LITERAL":
        return chr(value)
    if kind == "RANGE":
        return "".join(map(chr, range(value[0], min(value[1], value[0] + 127) + 1)))
    known = _CLASSES.get(str(value).replace("NOT_", ""))
    if known is None:
        raise _UnsolvedError
    is_opposite = "NOT_" in str(value)
    return "".join(char for char in _USUAL if char not in known) if is_opposite else known


Side = Literal["request", "answer"]
Pointer = tuple["str | int", ...]

MAX_ERRORS: Final = 5
MAX_REFERENCES: Final = 10_000
# A longer text fails any `pattern`, a longer name any `patternProperties`: no guest may make an
# author's expression slow
MAX_PATTERN_TEXT: Final = 1000
DATA: Final = frozenset({"example", "examples", "default", "enum", "const"})  # An author's values
_URN: Final = "urn:openapi"
_REF: Final = Draft202012Validator.VALIDATORS["$ref"]


def pointer_of(ref: str) -> Pointer:
    """The path of a local reference. Raises `ValueError`."""
    if ref != "#" and not ref.startswith("#/"):
        raise ValueError("only references into the same document (`#/…`) are followed")
    parts = unquote(ref[1:]).split("/")[1:]
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in parts)


def look(document: object, path: Pointer) -> Any:  # noqa: ANN401 - any value of a document
    """The value at a path. Raises `KeyError`."""
    at = document
    for part in map(str, path):
        if isinstance(at, dict) and part in at:
            at = at[part]
            continue
        is_index = part.isascii() and part.isdigit() and len(part) < 10
        if not isinstance(at, list) or not is_index or int(part) >= len(at):
            raise KeyError(part)
        at = at[int(part)]
    return at


def _matches(
    validator: Any,  # noqa: ANN401, ARG001 - jsonschema's signature
    pattern: str,
    instance: object,
    schema: object,  # noqa: ARG001 - as above
) -> Iterator[ValidationError]:
    if not isinstance(instance, str):
        return
    if len(instance) > MAX_PATTERN_TEXT:
        yield ValidationError("is too long")
    elif not compiled(pattern).search(instance):
        yield ValidationError(f"does not match {pattern!r}")


class _TooManyReferencesError(Exception):
    pass


class Schemas:
    """One side's schemas; `document` itself is left as it is.

    A value, and all that is tried while an example is made, is held against at most
    `MAX_REFERENCES` references, and breaks the schema beyond them: a few that name each other twice
    can mean any number. `spent` counts them all.
    """

    def __init__(self, document: Mapping[str, Any], side: Side) -> None:
        self.spent = 0
        self._references = 0
        self._validator = extend(Draft202012Validator, {"pattern": _matches, "$ref": self._counted})
        self.is_30 = str(document.get("openapi", "")).startswith("3.0")
        self.hidden = "readOnly" if side == "request" else "writeOnly"
        self.has_name_patterns = False
        self.root = self._converted(document)
        self._registry: Any = Registry().with_resource(_URN, DRAFT202012.create_resource(self.root))

    def _converted(self, value: Any) -> Any:  # noqa: ANN401 - any value of a document
        if isinstance(value, list):
            return [self._converted(item) for item in value]
        if not isinstance(value, dict):
            return value
        if self.is_30 and isinstance(value.get("$ref"), str):
            return {"$ref": value["$ref"]}
        self.has_name_patterns |= "patternProperties" in value
        # An answer's or parameter's `examples` is a mapping of names; a property may be called
        # `example`: then it holds a schema, which is converted all the same.
        words = {"type", "$ref", "content", "schema", "description"}
        new = {
            name: self._converted(item)
            if name not in DATA or (isinstance(item, dict) and not words.isdisjoint(item))
            else item
            for name, item in value.items()
        }
        if self.is_30 and ("type" in new or "nullable" in new):
            _from_30(new)
        properties, required = new.get("properties"), new.get("required")
        if isinstance(properties, dict):
            hidden = {
                name
                for name, item in properties.items()
                if isinstance(item, dict) and item.get(self.hidden) is True
            }
            new["properties"] = {n: item for n, item in properties.items() if n not in hidden}
            if isinstance(required, list):
                new["required"] = [name for name in required if name not in hidden]
        return new

    def _counted(
        self,
        validator: Any,  # noqa: ANN401 - as above
        ref: str,
        instance: object,
        schema: object,
    ) -> Iterator[ValidationError]:
        self.spent += 1
        self._references += 1
        if self._references > MAX_REFERENCES:
            raise _TooManyReferencesError
        yield from _REF(validator, ref, instance, schema)

    def restart(self) -> None:
        """Another value or example follows."""
        self._references = 0

    def errors(self, path: Pointer, value: object) -> list[tuple[str, str]]:
        """Places and messages; at most `MAX_ERRORS`."""
        # Other keywords look names up in `patternProperties`, too: so none gets that far.
        if self.has_name_patterns and _has_long_name(value):
            return [("", "a property's name is too long")]
        self.restart()
        parts = (str(part).replace("~", "~0").replace("/", "~1") for part in path)
        reference = "".join((_URN, "#", *(f"/{part}" for part in parts)))
        validator = self._validator({"$ref": reference}, registry=self._registry)
        try:
            found = islice(validator.iter_errors(value), MAX_ERRORS)
            return [(_place(error)[:200], str(error.message)[:300]) for error in found]
        except RecursionError:
            return [("", "nested too deeply")]
        except _TooManyReferencesError:
            return [("", f"held against more than {MAX_REFERENCES:,} references")]

    def fault(self, path: Pointer) -> str:
        """Why the value at a path is no schema, or ""."""
        try:
            Draft202012Validator.check_schema(look(self.root, path))
        except SchemaError as exc:
            place = ".".join(str(part) for part in exc.absolute_path)
            return f"not a schema{f' at {place}' if place else ''}: {str(exc.message)[:200]}"
        return ""

    def plain(self, path: Pointer) -> dict[str, Any]:
        """The schema at a path, its `$ref` followed."""
        return self._followed(look(self.root, path))

    def kinds(self, schema: object) -> list[str]:
        """The types that a schema names."""
        kind = self._followed(schema).get("type", [])
        return [kind] if isinstance(kind, str) else list(kind)

    def _followed(self, schema: object) -> dict[str, Any]:
        for _ in range(32):
            if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
                break
            schema = look(self.root, pointer_of(schema["$ref"]))
        return schema if isinstance(schema, dict) else {}

    def fits(self, schema: object, value: object) -> bool:
        """Whether it fits a schema made for an example."""
        try:
            validator = self._validator(_absolute(schema), registry=self._registry)
            return bool(validator.is_valid(value))
        except (RecursionError, _TooManyReferencesError):
            return False


def _place(error: ValidationError) -> str:
    parts = error.absolute_path
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts)
    return place.lstrip(".")


def _has_long_name(value: object) -> bool:
    todo = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            if any(len(name) > MAX_PATTERN_TEXT for name in part):
                return True
            todo += part.values()
        elif isinstance(part, list):
            todo += part
    return False


def _absolute(schema: Any) -> Any:  # noqa: ANN401 - any value of a document
    if isinstance(schema, list):
        return [_absolute(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    new = {name: item if name in DATA else _absolute(item) for name, item in schema.items()}
    ref = new.get("$ref")
    return {**new, "$ref": _URN + ref} if isinstance(ref, str) and ref.startswith("#") else new


def _from_30(schema: dict[str, Any]) -> None:
    for name, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(name), bool) and schema.pop(name) and bound in schema:
            schema[name] = schema.pop(bound)
    if schema.pop("nullable", False) is True and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
