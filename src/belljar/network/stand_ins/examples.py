"""Makes a value that a schema allows, the same one each time.

Checked against the schema before it is given.

Honoured: type, enum, const, default, example(s), properties, required, additionalProperties, items,
prefixItems, allOf, oneOf, anyOf, local $ref, format, pattern, all bounds, uniqueItems,
minProperties. `not`, `if` and `dependent…` are not solved for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from belljar.network.stand_ins.schemas import (
    MAX_TEXT,
    Pointer,
    Schemas,
    look,
    pointer_of,
    text_for,
)

MAX_DEPTH: Final = 12
_OPTIONAL_DEPTH: Final = 4
_MAX_ITEMS: Final = 200
_MAX_STEPS: Final = 20_000
_FORMATS: Final = {
    "date-time": "2026-01-{:02}T09:30:00Z",
    "date": "2026-01-{:02}",
    "time": "09:30:{:02}Z",
    "duration": "P{}D",
    **dict.fromkeys(("email", "idn-email"), "user{}@example.com"),
    **dict.fromkeys(("hostname", "idn-hostname"), "host{}.example.com"),
    "ipv4": "192.0.2.{}",
    "ipv6": "2001:db8::{}",
    **dict.fromkeys(("uri", "url", "iri"), "https://example.com/{}"),
    **dict.fromkeys(("uri-reference", "iri-reference", "json-pointer"), "/items/{}"),
    "uri-template": "/items/{{id}}/{}",
    "uuid": "3f2b8c1e-5a47-4d19-9c60-0000000000{:02}",
    "relative-json-pointer": "{}",
    "regex": "^a{{{}}}$",
    "byte": "ZXhhbXBsZQ==",
    "binary": "example",
    "password": "correct-horse-{}",
}
_WORDS: Final = {
    "name": "Alex Morgan",
    **dict.fromkeys(("firstname", "first_name"), "Alex"),
    **dict.fromkeys(("lastname", "last_name"), "Morgan"),
    "username": "alex",
    "email": "alex@example.com",
    "phone": "+1 555 0100",
    "city": "Springfield",
    "country": "US",
    "currency": "USD",
    "language": "en",
    "locale": "en-US",
    "timezone": "UTC",
    "title": "First draft",
    "description": "A short description.",
    "message": "OK",
    "status": "active",
    **dict.fromkeys(("url", "href"), "https://example.com/"),
    "color": "blue",
    "version": "1.0.0",
}


class NoExampleError(Exception):
    """Says why no value could be made."""


class Maker:
    """Makes examples from one document's schemas."""

    def __init__(self, schemas: Schemas) -> None:
        self.schemas = schemas
        self.steps = 0

    def make(self, path: Pointer) -> Any:  # noqa: ANN401 - any JSON value
        """A value for the schema at a path. Raises `NoExampleError`."""
        self.steps = 0
        self.schemas.restart()
        try:
            value = self._value(look(self.schemas.root, path), "", 0, 0)
        except KeyError:
            raise NoExampleError("a reference leads nowhere") from None
        for place, message in self.schemas.errors(path, value):
            where = f" at {place}" if place else ""
            raise NoExampleError(f"what can be made breaks it{where}: {message}")
        return value

    def _value(self, schema: Any, name: str, depth: int, index: int) -> Any:  # noqa: ANN401
        self.steps += 1
        if depth > MAX_DEPTH or self.steps > _MAX_STEPS:
            raise NoExampleError("it demands itself without end, or is too large")
        if schema is True or schema == {}:
            return {}
        if not isinstance(schema, dict):
            raise NoExampleError("it allows nothing")
        if "$ref" in schema or "allOf" in schema:
            schema = self._merged(schema, 0)
        given = [schema[word] for word in ("const", "example", "default") if word in schema]
        for word in ("examples", "enum"):
            given += schema[word][:50] if isinstance(schema.get(word), list) else []
        for value in given:
            if self.schemas.fits(schema, value):
                return value
        for word in ("oneOf", "anyOf"):
            if word in schema:
                rest = {key: item for key, item in schema.items() if key != word}
                why = NoExampleError(f"no branch of `{word}` can be met")
                for branch in schema[word]:
                    try:
                        both = _both(rest, self._merged(branch, 0))
                        value = self._value(both, name, depth + 1, index)
                    except NoExampleError as exc:
                        why = exc
                        continue
                    if self.schemas.fits(schema, value):
                        return value
                raise why
        match _type_of(schema):
            case "object":
                return self._object(schema, depth, index)
            case "array":
                return self._array(schema, name, depth)
            case "string":
                return _string(schema, name, index)
            case "integer" | "number" as kind:
                return _number(schema, index, whole=kind == "integer")
            case "boolean":
                return True
            case "null":
                return None
        return {}

    def _merged(self, schema: Any, depth: int) -> dict[str, Any]:  # noqa: ANN401 - a schema
        if not isinstance(schema, dict):
            return {} if schema is True else {"not": {}}
        self.steps += 1
        if depth > MAX_DEPTH or self.steps > _MAX_STEPS:
            raise NoExampleError("references go round in a circle, or are too many")
        merged = {key: item for key, item in schema.items() if key not in ("$ref", "allOf")}
        if "$ref" in schema:
            named = look(self.schemas.root, pointer_of(schema["$ref"]))
            merged = _both(self._merged(named, depth + 1), merged)
        for part in schema.get("allOf", ()):
            merged = _both(merged, self._merged(part, depth + 1))
        return merged

    def _object(self, schema: Mapping[str, Any], depth: int, index: int) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        found: dict[str, Any] = {}
        for key, item in properties.items():
            if key not in required and depth >= _OPTIONAL_DEPTH:
                continue
            try:
                found[key] = self._value(item, key, depth + 1, index)
            except NoExampleError:
                if key in required:
                    raise
        extra = schema.get("additionalProperties", True)
        for key in required:
            if key not in found:
                found[key] = self._value(extra, key, depth + 1, index)
        low = schema.get("minProperties", 0)
        for number in range(min(low, _MAX_ITEMS)):
            if len(found) < low:
                found.setdefault(f"key{number + 1}", self._value(extra, "key", depth + 1, number))
        for key in [key for key in found if key not in required][::-1]:
            if len(found) > schema.get("maxProperties", math.inf):
                del found[key]
        return found

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        first, items = schema.get("prefixItems", []), schema.get("items", {})
        low, high = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if low > _MAX_ITEMS:
            raise NoExampleError(f"a list of {low} entries is too long")
        wanted = max(low, len(first), 1 if depth < _OPTIONAL_DEPTH and items is not False else 0)
        found: list[Any] = []
        for index in range(int(min(wanted, high))):
            item = first[index] if index < len(first) else items
            try:
                found.append(self._value(item, name.removesuffix("s"), depth + 1, index))
            except NoExampleError:
                if index < low:
                    raise
                break
        return found


def _type_of(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if isinstance(kind, str):
        return kind
    for words, meant in (
        (("properties", "required", "additionalProperties", "minProperties"), "object"),
        (("items", "prefixItems", "minItems"), "array"),
        (("format", "pattern", "minLength", "maxLength"), "string"),
        (("minimum", "maximum", "multipleOf", "exclusiveMinimum"), "number"),
    ):
        if any(word in schema for word in words):
            return meant
    return "object"


def _string(schema: Mapping[str, Any], name: str, index: int) -> str:
    low = int(schema.get("minLength", 0))
    high = min(int(schema.get("maxLength", MAX_TEXT)), MAX_TEXT)
    if low > MAX_TEXT:
        raise NoExampleError(f"a text of {low} characters is too long")
    if "pattern" in schema:
        text = text_for(schema["pattern"], low, high, index)
        if text is None:
            raise NoExampleError(f"no text could be made for the pattern {schema['pattern']!r}")
        return text
    form = schema.get("format")
    if form in _FORMATS:
        text = _FORMATS[form].format(1 + index % 28)
    else:
        words = _WORDS.get(name.lower(), name.replace("_", " ").replace("-", " ").lower() or "text")
        text = f"{words} {index + 1}" if index else words
    text += "".join(chr(97 + (at + index) % 26) for at in range(low - len(text)))
    if len(text) <= high or not index:
        return text[:high]
    return (text[: max(0, high - len(str(index)))] + str(index))[:high]


def _number(schema: Mapping[str, Any], index: int, *, whole: bool) -> float | int:
    above = schema.get("exclusiveMinimum", -math.inf)
    low = max(schema.get("minimum", -math.inf), above)
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    step = schema.get("multipleOf", 1 if whole else 0)
    if not step:
        low, high = float(low), float(high)
        if low == -math.inf:
            return 1.5 + index if high == math.inf else min(high, 10.0) - 0.5 - index
        return low + 1.5 + index if high == math.inf else low + (high - low) / (index + 2)
    if whole and step != int(step):
        step *= 10 ** len(str(step).partition(".")[2])
    if low == -math.inf:
        first = 1 if high >= step * (index + 2) else math.floor(high / step) - index - 1
    else:
        first = math.ceil(low / step) + (math.ceil(low / step) * step <= above)
    value = (first + index) * step
    return int(value) if whole or value == int(value) else float(round(value, 10))


def _both(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(one)
    for key, item in two.items():
        merged[key] = _joined(key, merged[key], item) if key in merged else item
    return merged


def _joined(key: str, one: Any, two: Any) -> Any:  # noqa: ANN401 - parts of schemas
    if one == two:
        return one
    match key:
        case "properties":
            return {**one, **two} | {
                name: {"allOf": [one[name], two[name]]} for name in one if name in two
            }
        case "required":
            return [*one, *(name for name in two if name not in one)]
        case "minimum" | "exclusiveMinimum" | "minLength" | "minItems" | "minProperties":
            return max(one, two)
        case "maximum" | "exclusiveMaximum" | "maxLength" | "maxItems" | "maxProperties":
            return min(one, two)
        case "enum":
            return [item for item in one if item in two]
        case "type":
            one, two = ([kind] if isinstance(kind, str) else kind for kind in (one, two))
            # An integer is a number.
            found = [kind for kind in one if kind in two or (kind == "integer" and "number" in two)]
            found += ["integer"] if "integer" in two and "number" in one else []
            if not found:
                raise NoExampleError("it demands two types at once")
            return list(dict.fromkeys(found))
        case "format" if one in _FORMATS and two in _FORMATS:
            raise NoExampleError("it demands two formats at once")
        case "additionalProperties":
            return one if one is False else two
        case "items":
            return {"allOf": [one, two]}
    return two
