"""OpenAPI's schemas as JSON Schema."""

from __future__ import annotations

from typing import Any

import pytest

from belljar.network.stand_ins.schemas import (
    MAX_PATTERN_TEXT,
    MAX_REFERENCES,
    Schemas,
    look,
    pointer_of,
)


def schemas(version: str = "3.0.0", **named: object) -> Schemas:
    """A document's schemas, for requests."""
    return Schemas({"openapi": version, "s": named}, "request")


def test_words_of_30_become_the_standards() -> None:
    """`nullable`, boolean exclusive bounds, and `$ref` alone; data stays as it is."""
    made = schemas(
        a={
            "type": "integer",
            "nullable": True,
            "enum": [1],
            "minimum": 0,
            "exclusiveMinimum": True,
        },
        b={"$ref": "#/s/a", "nullable": True},
        c={"default": {"nullable": True}},
    )
    assert made.root["s"] == {
        "a": {"type": ["integer", "null"], "enum": [1, None], "exclusiveMinimum": 0},
        "b": {"$ref": "#/s/a"},
        "c": {"default": {"nullable": True}},
    }
    assert made.errors(("s", "b"), None) == []
    assert made.errors(("s", "b"), 0) != []


def test_sides() -> None:
    """readOnly is nothing to a request, writeOnly nothing to an answer; neither is demanded."""
    document = {
        "openapi": "3.1.0",
        "s": {
            "required": ["r", "w"],
            "properties": {"r": {"readOnly": True}, "w": {"writeOnly": True}},
        },
    }
    assert [Schemas(document, side).root["s"]["required"] for side in ("request", "answer")] == [
        ["w"],
        ["r"],
    ]


def test_errors_name_the_place_and_are_bounded() -> None:
    """At most five, each with the path inside the value; endless nesting is one."""
    made = schemas(
        "3.1.0",
        a={"type": "array", "items": {"properties": {"n": {"type": "integer"}}}},
        deep={"items": {"$ref": "#/s/deep"}},
    )
    errors = made.errors(("s", "a"), [{"n": "x"}] * 9)
    assert (len(errors), errors[0]) == (5, ("[0].n", "'x' is not of type 'integer'"))
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert made.errors(("s", "deep"), deep) == [("", "nested too deeply")]


def test_a_pattern_never_sees_a_long_text() -> None:
    """Above the bound a text fails unread."""
    made = schemas(a={"type": "string", "pattern": "a"})
    assert made.errors(("s", "a"), "a" * MAX_PATTERN_TEXT) == []
    assert made.errors(("s", "a"), "a" * (MAX_PATTERN_TEXT + 1)) == [("", "is too long")]


def test_a_name_pattern_never_sees_a_long_name() -> None:
    """Where a document has `patternProperties`, a value with a longer name fails unread."""
    made = schemas(a={"patternProperties": {"^a*$": {}}, "additionalProperties": False})
    fits, too_long = {"a" * MAX_PATTERN_TEXT: 1}, [{"b": {"a" * (MAX_PATTERN_TEXT + 1): 1}}]
    assert made.errors(("s", "a"), fits) == []
    assert made.errors(("s", "a"), too_long) == [("", "a property's name is too long")]
    assert schemas(a={}).errors(("s", "a"), too_long) == []


@pytest.mark.parametrize("ref", ["other.yaml", "http://a/b", "#name", "//a", ""])
def test_only_local_references(ref: str) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError, match="same document"):
        pointer_of(ref)


def test_pointers() -> None:
    """RFC 6901's escapes and a URL's are undone; what isn't there is a `KeyError`."""
    assert pointer_of("#/a~1b/c~0d/e%20f") == ("a/b", "c~d", "e f")
    assert look({"a": [1, {"b": 2}]}, ("a", "1", "b")) == 2
    for path in (("a", "2"), ("a", "x"), ("b",), ("a", "0", "x")):
        with pytest.raises(KeyError):
            look({"a": [1]}, path)


def test_a_value_is_held_against_so_many_references() -> None:
    """Two references a level, forty levels deep, would be 2⁴⁰: it breaks the schema, and the next
    value is judged anew."""
    levels = {f"a{at}": {"allOf": [{"$ref": f"#/s/a{at + 1}"}] * 2} for at in range(40)}
    found = Schemas({"openapi": "3.1.0", "s": {**levels, "a40": {"type": "string"}}}, "request")
    assert found.errors(("s", "a0"), "x") == [
        ("", f"held against more than {MAX_REFERENCES:,} references")
    ]
    assert found.spent == MAX_REFERENCES + 1
    assert found.errors(("s", "a35"), "x") == []
