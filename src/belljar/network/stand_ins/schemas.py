"""The schemas of an OpenAPI document, as JSON Schema 2020-12: what 3.0 says in its own words is put
into the standard's, local references stay references.

Two readings: of requests (what is `readOnly` isn't demanded) and of answers (what is `writeOnly`
isn't there). Remote references are never followed. Source: OpenAPI 3.0.4 and 3.1.1, "Schema
Object".
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, Literal
from urllib.parse import unquote

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import SchemaError, ValidationError  # type: ignore[import-untyped]
from jsonschema.validators import extend  # type: ignore[import-untyped]
from referencing import Registry
from referencing.jsonschema import DRAFT202012

MAX_TEXT: Final = 4096
_MAX_REPEATS: Final = 256
_CLASSES: Final = {
    "CATEGORY_DIGIT": "0123456789",
    "CATEGORY_WORD": "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_",
    "CATEGORY_SPACE": " ",
}
_USUAL: Final = (
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/@ "
    "!#$%&'*+,;=?~()[]{}<>|^`\"\\"
)


class _UnsolvedError(Exception):
    pass


@lru_cache(maxsize=4096)
def compiled(pattern: str) -> re.Pattern[str]:
    """The expression, without Python's warnings on `[[`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return re.compile(pattern)


def pattern_problem(pattern: object) -> str:
    """Why a pattern is refused, or "": unreadable, or exponential on a hostile text."""
    if not isinstance(pattern, str):
        return "a pattern is text"
    try:
        compiled(pattern)
        if _nested(_parsed(pattern), inside=False):
            return "a repetition without a bound inside another can take for ever on a hostile text"
    except (re.error, RecursionError, OverflowError) as exc:
        return f"can't be read: {exc}"
    return ""


def _parsed(pattern: str) -> Any:  # noqa: ANN401 - the parser's own types are private
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return import_module("re._parser").parse(pattern)


def _nested(items: Any, *, inside: bool) -> bool:  # noqa: ANN401 - the parser's
    for operator, argument in items:
        name = str(operator)
        if name in ("MAX_REPEAT", "MIN_REPEAT"):
            endless = argument[1] > _MAX_REPEATS
            if (endless and inside) or _nested(argument[2], inside=inside or endless):
                return True
        elif any(_nested(part, inside=inside) for part in _inner(name, argument)):
            return True
    return False


def _inner(name: str, argument: Any) -> list[Any]:  # noqa: ANN401 - the parser's
    if name == "SUBPATTERN":
        return [argument[-1]]
    if name == "BRANCH":
        return list(argument[1])
    return (
        [argument[1]]
        if name in ("ASSERT", "ASSERT_NOT")
        else [argument]
        if name == "ATOMIC_GROUP"
        else []
    )


def text_for(pattern: str, least: int, most: int, index: int) -> str | None:
    """A text that the pattern matches, varied by `index`; None when none is found."""
    try:
        expression, parsed = compiled(pattern), _parsed(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
    for more in (0, 1, 2, 4, 8, 16, 32, 64, least, most):
        for turn in (index, 0):
            try:
                text = _pattern_text(parsed, min(more, _MAX_REPEATS), turn)
            except _UnsolvedError:
                return None
            if not pattern.endswith("$") and len(text) < least:
                text += "a" * (least - len(text))
            if least <= len(text) <= min(most, MAX_TEXT) and expression.search(text):
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
    items = (
        [(name, argument)]
        if name == "CATEGORY"
        else [(str(operator), value) for operator, value in argument]
    )
    negated = items[0][0] == "NEGATE"
    chosen = "".join(_class_members(kind, value) for kind, value in items if kind != "NEGATE")
    allowed = "".join(char for char in _USUAL if char not in chosen) if negated else chosen
    if not allowed:
        raise _UnsolvedError
    return allowed


def _class_members(kind: str, value: Any) -> str:  # noqa: ANN401 - the parser's
    if kind == "LITERAL":
        return chr(value)
    if kind == "RANGE":
        return "".join(map(chr, range(value[0], min(value[1], value[0] + 127) + 1)))
    word = str(value)
    if word in _CLASSES:
        return _CLASSES[word]
    opposite = _CLASSES.get(word.replace("NOT_", ""))
    if opposite is None:
        raise _UnsolvedError
    return "".join(char for char in _USUAL if char not in opposite)


Side = Literal["request", "answer"]
Pointer = tuple["str | int", ...]

MAX_ERRORS: Final = 5
MAX_REFERENCES: Final = 10_000
MAX_PATTERN_TEXT: Final = 1000
"""A longer text fails any `pattern`: no guest may make an author's expression slow."""
_DATA: Final = frozenset({"example", "examples", "default", "enum", "const"})
_URN: Final = "urn:openapi"
_REF: Final = Draft202012Validator.VALIDATORS["$ref"]


def escape(part: str | int) -> str:
    """A part of a JSON pointer (RFC 6901)."""
    return str(part).replace("~", "~0").replace("/", "~1")


def pointer_of(ref: str) -> Pointer:
    """The path that a local reference names. Raises `ValueError` for any other."""
    if ref != "#" and not ref.startswith("#/"):
        raise ValueError("only references into the same document (`#/…`) are followed")
    return tuple(
        part.replace("~1", "/").replace("~0", "~") for part in unquote(ref[1:]).split("/")[1:]
    )


def look(document: object, path: Pointer) -> Any:  # noqa: ANN401 - any value of a document
    """The value at a path. Raises `KeyError` when there is none."""
    at = document
    for part in path:
        if isinstance(at, dict) and str(part) in at:
            at = at[str(part)]
        elif (
            isinstance(at, list)
            and str(part).isascii()
            and str(part).isdigit()
            and int(part) < len(at)
        ):
            at = at[int(part)]
        else:
            raise KeyError(part)
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
    """One side's schemas of a document; `document` itself is left as it is.

    A value, and all that is tried while an example is made, is held against at most
    `MAX_REFERENCES` references, and breaks the schema beyond them: a few that name each other twice
    can mean any number. `spent` counts all of them.
    """

    def __init__(self, document: Mapping[str, Any], side: Side) -> None:
        self.spent = 0
        self._references = 0
        self._validator = extend(Draft202012Validator, {"pattern": _matches, "$ref": self._counted})
        self.is_30 = str(document.get("openapi", "")).startswith("3.0")
        self.hidden = "readOnly" if side == "request" else "writeOnly"
        self.root = self._converted(document)
        self._registry: Any = Registry().with_resource(_URN, DRAFT202012.create_resource(self.root))

    def _converted(self, value: Any) -> Any:  # noqa: ANN401 - any value of a document
        if isinstance(value, list):
            return [self._converted(item) for item in value]
        if not isinstance(value, dict):
            return value
        if self.is_30 and isinstance(value.get("$ref"), str):
            return {"$ref": value["$ref"]}
        # An answer's or parameter's `examples` is a mapping of names; a property may be called
        # `example`: then it holds a schema, which is converted all the same.
        new = {
            name: item if name in _DATA and not _is_schema(item) else self._converted(item)
            for name, item in value.items()
        }
        if self.is_30 and ("type" in new or "nullable" in new):
            _from_30(new)
        self._hide(new)
        return new

    def _hide(self, schema: dict[str, Any]) -> None:
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            return
        hidden = {
            name
            for name, item in properties.items()
            if isinstance(item, dict) and item.get(self.hidden) is True
        }
        schema["properties"] = {
            name: item for name, item in properties.items() if name not in hidden
        }
        if isinstance(schema.get("required"), list):
            schema["required"] = [name for name in schema["required"] if name not in hidden]

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
        """What follows is another value, or another example."""
        self._references = 0

    def validator(self, path: Pointer) -> Any:  # noqa: ANN401 - jsonschema has no types
        """A validator of the schema at a path, for one value."""
        reference = f"{_URN}#" + "".join(f"/{escape(part)}" for part in path)
        self.restart()
        return self._validator({"$ref": reference}, registry=self._registry)

    def errors(self, path: Pointer, value: object) -> list[tuple[str, str]]:
        """Where a value breaks the schema, and how; at most `MAX_ERRORS`."""
        try:
            found = []
            for error in self.validator(path).iter_errors(value):
                place = "".join(
                    f"[{part}]" if isinstance(part, int) else f".{part}"
                    for part in error.absolute_path
                )
                found.append((place.lstrip(".")[:200], str(error.message)[:300]))
                if len(found) == MAX_ERRORS:
                    break
            return found
        except RecursionError:
            return [("", "nested too deeply")]
        except _TooManyReferencesError:
            return [("", f"held against more than {MAX_REFERENCES:,} references")]

    def fault(self, path: Pointer) -> str:
        """What keeps the value at a path from being a schema, or ""."""
        try:
            Draft202012Validator.check_schema(look(self.root, path))
        except SchemaError as exc:
            place = ".".join(str(part) for part in exc.absolute_path)
            return f"not a schema{f' at {place}' if place else ''}: {str(exc.message)[:200]}"
        return ""

    def plain(self, path: Pointer) -> dict[str, Any]:
        """The schema at a path, references at its top followed; empty when there is none."""
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
        """Whether a value fits a schema that was put together while an example is made."""
        try:
            validator = self._validator(_absolute(schema), registry=self._registry)
            return bool(validator.is_valid(value))
        except (RecursionError, _TooManyReferencesError):
            return False


def _is_schema(item: object) -> bool:
    return isinstance(item, dict) and bool(
        {"type", "$ref", "content", "schema", "description"} & item.keys()
    )


def _absolute(schema: Any) -> Any:  # noqa: ANN401 - any value of a document
    if isinstance(schema, list):
        return [_absolute(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    new = {name: item if name in _DATA else _absolute(item) for name, item in schema.items()}
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
