"""Makes a value that a schema allows: the same one each time, as plausible as the schema's words
permit, and checked against the schema before it is given.

Honoured: type, enum, const, default, example(s), properties, required, additionalProperties, items,
prefixItems, allOf, oneOf, anyOf, local $ref, format, pattern, all bounds, uniqueItems,
minProperties. `not`, `if` and `dependent…` are not solved for: a value that breaks them is not
given. Recursion ends where nothing more is demanded, at the latest `MAX_DEPTH` levels down. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from belljar.network.stand_ins.schemas import Pointer, Schemas, look, pointer_of, text_for

MAX_DEPTH: Final = 12
_OPTIONAL_DEPTH: Final = 4
_MAX_ITEMS: Final = 200
_MAX_STEPS: Final = 20_000
_MAX_TEXT: Final = 4096
_FORMATS: Final = {
    "date-time": "2026-01-{:02}T09:30:00Z",
    "date": "2026-01-{:02}",
    "time": "09:30:{:02}Z",
    "duration": "P{}D",
    "email": "user{}@example.com",
    "idn-email": "user{}@example.com",
    "hostname": "host{}.example.com",
    "idn-hostname": "host{}.example.com",
    "ipv4": "192.0.2.{}",
    "ipv6": "2001:db8::{}",
    "uri": "https://example.com/{}",
    "url": "https://example.com/{}",
    "iri": "https://example.com/{}",
    "uri-reference": "/items/{}",
    "iri-reference": "/items/{}",
    "uri-template": "/items/{{id}}/{}",
    "uuid": "3f2b8c1e-5a47-4d19-9c60-0000000000{:02}",
    "json-pointer": "/items/{}",
    "relative-json-pointer": "{}",
    "regex": "^a{{{}}}$",
    "byte": "ZXhhbXBsZQ==",
    "binary": "example",
    "password": "correct-horse-{}",
}
_WORDS: Final = {
    "name": "Alex Morgan",
    "firstname": "Alex",
    "first_name": "Alex",
    "lastname": "Morgan",
    "last_name": "Morgan",
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
    "url": "https://example.com/",
    "href": "https://example.com/",
    "color": "blue",
    "version": "1.0.0",
}


class NoExampleError(Exception):
    """No value could be made; `str()` says why."""


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
        errors = self.schemas.errors(path, value)
        if errors:
            place, message = errors[0]
            raise NoExampleError(
                f"what can be made breaks it{f' at {place}' if place else ''}: {message}"
            )
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
        for given in _given(schema):
            if self.schemas.fits(schema, given):
                return given
        for word in ("oneOf", "anyOf"):
            if word in schema:
                rest = {key: item for key, item in schema.items() if key != word}
                why = NoExampleError(f"no branch of `{word}` can be met")
                for branch in schema[word]:
                    try:
                        value = self._value(
                            _both(rest, self._merged(branch, 0)), name, depth + 1, index
                        )
                    except NoExampleError as exc:
                        why = exc
                        continue
                    if self.schemas.fits(schema, value):
                        return value
                raise why
        return self._typed(schema, name, depth, index)

    def _merged(self, schema: Any, depth: int) -> dict[str, Any]:  # noqa: ANN401 - a schema
        """The schema without `$ref` and `allOf` at its top."""
        if not isinstance(schema, dict):
            return {} if schema is True else {"not": {}}
        self.steps += 1
        if depth > MAX_DEPTH or self.steps > _MAX_STEPS:
            raise NoExampleError("references go round in a circle, or are too many")
        merged = {key: item for key, item in schema.items() if key not in ("$ref", "allOf")}
        if "$ref" in schema:
            merged = _both(
                self._merged(look(self.schemas.root, pointer_of(schema["$ref"])), depth + 1), merged
            )
        for part in schema.get("allOf", ()):
            merged = _both(merged, self._merged(part, depth + 1))
        return merged

    def _typed(self, schema: Mapping[str, Any], name: str, depth: int, index: int) -> Any:  # noqa: ANN401
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
        least = schema.get("minProperties", 0)
        for number in range(min(least, _MAX_ITEMS)):
            if len(found) < least:
                found.setdefault(f"key{number + 1}", self._value(extra, "key", depth + 1, number))
        for key in [key for key in found if key not in required][::-1]:
            if len(found) > schema.get("maxProperties", math.inf):
                del found[key]
        return found

    def _array(self, schema: Mapping[str, Any], name: str, depth: int) -> list[Any]:
        first, items = schema.get("prefixItems", []), schema.get("items", {})
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if least > _MAX_ITEMS:
            raise NoExampleError(f"a list of {least} entries is too long")
        wanted = max(least, len(first), 1 if depth < _OPTIONAL_DEPTH and items is not False else 0)
        singular = name.removesuffix("s")
        found: list[Any] = []
        for index in range(int(min(wanted, most))):
            try:
                found.append(
                    self._value(
                        first[index] if index < len(first) else items, singular, depth + 1, index
                    )
                )
            except NoExampleError:
                if index < least:
                    raise
                break
        return found


def _given(schema: Mapping[str, Any]) -> Iterator[Any]:
    if "const" in schema:
        yield schema["const"]
    for name in ("example", "default"):
        if name in schema:
            yield schema[name]
    for name in ("examples", "enum"):
        if isinstance(schema.get(name), list):
            yield from schema[name][:50]


def _type_of(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((word for word in kind if word != "null"), "null")
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
    least, most = (
        int(schema.get("minLength", 0)),
        min(int(schema.get("maxLength", _MAX_TEXT)), _MAX_TEXT),
    )
    if least > _MAX_TEXT:
        raise NoExampleError(f"a text of {least} characters is too long")
    if "pattern" in schema:
        text = text_for(schema["pattern"], least, most, index)
        if text is None:
            raise NoExampleError(f"no text could be made for the pattern {schema['pattern']!r}")
        return text
    form = schema.get("format")
    if form in _FORMATS:
        text = _FORMATS[form].format(1 + index % 28)
    else:
        words = _WORDS.get(name.lower(), name.replace("_", " ").replace("-", " ").lower() or "text")
        text = f"{words} {index + 1}" if index else words
    if len(text) < least:
        text += "".join(chr(97 + (at + index) % 26) for at in range(least - len(text)))
    if len(text) <= most:
        return text
    return (
        text[:most] if not index else (text[: max(0, most - len(str(index)))] + str(index))[:most]
    )


def _number(schema: Mapping[str, Any], index: int, *, whole: bool) -> float | int:
    low = max(schema.get("minimum", -math.inf), schema.get("exclusiveMinimum", -math.inf))
    high = min(schema.get("maximum", math.inf), schema.get("exclusiveMaximum", math.inf))
    step = schema.get("multipleOf", 1 if whole else 0)
    if not step:
        return _between(float(low), float(high), index)
    if whole and step != int(step):
        step *= 10 ** len(str(step).partition(".")[2])
    if low == -math.inf:
        first = 1 if high >= step * (index + 2) else math.floor(high / step) - index - 1
    else:
        first = math.ceil(low / step) + (
            1 if math.ceil(low / step) * step <= schema.get("exclusiveMinimum", -math.inf) else 0
        )
    value = (first + index) * step
    return int(value) if whole or value == int(value) else float(round(value, 10))


def _between(low: float, high: float, index: int) -> float:
    if low == -math.inf:
        return 1.5 + index if high == math.inf else min(high, 10.0) - 0.5 - index
    return low + 1.5 + index if high == math.inf else low + (high - low) / (index + 2)


def _both(one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that demands what both demand, as far as the words that are made from go."""
    merged = dict(one)
    for key, item in two.items():
        merged[key] = _joined(key, merged[key], item) if key in merged else item
    return merged


def _kinds_of_both(one: Sequence[str], two: Sequence[str]) -> list[str]:
    """Raises `NoExampleError` where no type fits both; an integer is a number."""
    found = [kind for kind in one if kind in two or (kind == "integer" and "number" in two)]
    found += [kind for kind in two if kind == "integer" and "number" in one and kind not in found]
    if not found:
        raise NoExampleError("it demands two types at once")
    return found


def _joined(key: str, one: Any, two: Any) -> Any:  # noqa: ANN401 - parts of schemas
    if one == two:
        return one
    match key:
        case "properties":
            names = {**one, **two}
            return {
                name: {"allOf": [one[name], two[name]]}
                if name in one and name in two
                else names[name]
                for name in names
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
            return _kinds_of_both(
                [one] if isinstance(one, str) else one, [two] if isinstance(two, str) else two
            )
        case "format" if one in _FORMATS and two in _FORMATS:
            raise NoExampleError("it demands two formats at once")
        case "additionalProperties":
            return one if one is False else two
        case "items":
            return {"allOf": [one, two]}
    return two
