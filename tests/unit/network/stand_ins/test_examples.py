"""Made-up values fit their schemas, or none is given."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from belljar.network.stand_ins.examples import Maker, NoExampleError
from belljar.network.stand_ins.schemas import MAX_REFERENCES, Schemas


def make(schema: object, **named: object) -> Any:  # noqa: ANN401 - any JSON value
    """A value for a schema of a 3.1 document."""
    return Maker(Schemas({"openapi": "3.1.0", "s": schema, "n": named}, "answer")).make(("s",))


BOUNDS = st.integers(-30, 30)
NUMBERS = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": BOUNDS,
        "maximum": BOUNDS,
        "exclusiveMinimum": BOUNDS,
        "exclusiveMaximum": BOUNDS,
        "multipleOf": st.sampled_from([1, 2, 3, 0.5, 0.25]),
    },
)
STRINGS = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 40),
        "maxLength": st.integers(0, 40),
        "enum": st.lists(st.text(max_size=4), min_size=1, max_size=3),
    },
)
FORMATS = st.fixed_dictionaries(
    {
        "type": st.just("string"),
        "format": st.sampled_from(
            [
                "date",
                "date-time",
                "email",
                "uuid",
                "ipv4",
                "ipv6",
                "uri",
                "hostname",
                "time",
                "duration",
                "regex",
                "json-pointer",
            ]
        ),
    }
)


def compound(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of objects, lists and choices."""
    properties = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    objects = st.builds(
        lambda p, r, x: {
            "type": "object",
            "properties": p,
            "required": r,
            "additionalProperties": x,
        },
        properties,
        st.lists(st.sampled_from("abc"), unique=True, max_size=2),
        st.booleans(),
    )
    lists = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner},
        optional={
            "minItems": st.integers(0, 4),
            "maxItems": st.integers(0, 6),
            "uniqueItems": st.booleans(),
        },
    )
    return (
        objects
        | lists
        | st.lists(inner, min_size=1, max_size=2).flatmap(
            lambda parts: st.sampled_from(["oneOf", "anyOf", "allOf"]).map(
                lambda word: {word: parts}
            )
        )
    )


@given(
    st.recursive(
        NUMBERS
        | STRINGS
        | FORMATS
        | st.just({"type": "boolean"})
        | st.just({"type": ["null", "integer"]}),
        compound,
        max_leaves=8,
    )
)
def test_what_is_made_fits(schema: dict[str, Any]) -> None:
    """Judged by jsonschema alone, formats checked (but where they would make one of two the other:
    they are notes in OpenAPI); the same value comes each time."""
    try:
        value = make(schema)
    except NoExampleError:
        return
    formats = None if "oneOf" in str(schema) else Draft202012Validator.FORMAT_CHECKER
    Draft202012Validator(schema, format_checker=formats).validate(value)
    assert make(schema) == value


def test_a_branch_of_another_type_is_none() -> None:
    """What two types are demanded of at once is nothing; the next branch is tried."""
    either = {"oneOf": [{"type": "integer"}, {"type": "string", "format": "date"}]}
    assert make({"allOf": [{"type": "string"}, either]}) == "2026-01-01"
    assert make({"allOf": [{"type": "number"}, {"type": ["integer", "string"]}]}) == 1
    with pytest.raises(NoExampleError, match="two types"):
        make({"allOf": [{"type": "number"}, {"type": "string"}]})
    with pytest.raises(NoExampleError, match="two formats"):
        make(
            {
                "allOf": [
                    {"type": "string", "format": "date"},
                    {"type": "string", "format": "date-time"},
                ]
            }
        )


@given(st.integers(-30, 30), st.integers(0, 40), st.sampled_from([1, 2, 5]), st.booleans())
def test_a_number_is_found_where_there_is_one(
    least: int, span: int, step: int, exclusive: bool
) -> None:
    """Bounds that leave a number never give none."""
    words = ("exclusiveMinimum", "exclusiveMaximum") if exclusive else ("minimum", "maximum")
    schema = {"type": "integer", words[0]: least, words[1]: least + span, "multipleOf": step}
    allowed = [n for n in range(least + exclusive, least + span + 1 - exclusive) if n % step == 0]
    if allowed:
        assert make(schema) in allowed
    else:
        with pytest.raises(NoExampleError):
            make(schema)


@given(st.integers(0, 50), st.integers(0, 50))
def test_a_text_is_found_where_there_is_one(least: int, more: int) -> None:
    """Lengths that can be met are met, for every entry of a list without doubles."""
    assert (
        least
        <= len(make({"type": "string", "minLength": least, "maxLength": least + more}))
        <= least + more
    )


@pytest.mark.parametrize("named", ["optional", "list", "nullable", "map", "choice"])
def test_recursion_ends(named: str) -> None:
    """A schema that allows itself ends where nothing more is demanded."""
    self = {"$ref": "#/s"}
    schema = {
        "optional": {"type": "object", "properties": {"a": self, "b": self}},
        "list": {
            "type": "object",
            "required": ["a"],
            "properties": {"a": {"type": "array", "items": self}},
        },
        "nullable": {
            "type": "object",
            "required": ["a"],
            "properties": {"a": {"anyOf": [self, {"type": "null"}]}},
        },
        "map": {"type": "object", "additionalProperties": self},
        "choice": {"oneOf": [{"type": "array", "items": self, "minItems": 1}, {"type": "integer"}]},
    }[named]
    assert make(schema) is not None


@pytest.mark.parametrize(
    "schema",
    [
        False,
        {"type": "object", "required": ["a"], "properties": {"a": {"$ref": "#/s"}}},
        {"$ref": "#/s"},
        {"allOf": [{"$ref": "#/s"}]},
        {"type": "array", "minItems": 10**9},
        {"type": "string", "minLength": 10**9},
        {"enum": []},
        {"not": {}},
        {"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6},
    ],
)
def test_what_cannot_be_met_says_so(schema: object) -> None:
    """Nothing invalid is given in its place, and nothing runs without end."""
    with pytest.raises(NoExampleError):
        make(schema)


def test_an_authors_words_go_first_when_they_fit() -> None:
    """`example`, `default` and `examples` are taken if valid, else a value is made."""
    assert make({"type": "integer", "example": 7}) == 7
    assert make({"type": "integer", "example": "seven", "default": 3}) == 3
    assert make({"type": "string", "examples": [1, "b"]}) == "b"
    assert isinstance(make({"type": "integer", "example": "seven"}), int)


@pytest.mark.parametrize("word", ["allOf", "anyOf"])
def test_references_that_multiply_are_given_up(word: str) -> None:
    """Five levels of twenty each would be three million; what is counted is references and steps,
    not time."""
    levels: dict[str, Any] = {
        f"a{at}": {word: [{"$ref": f"#/n/a{at + 1}"}] * 20} for at in range(5)
    }
    named = {**levels, "a5": {"type": "string", "minLength": 5, "maxLength": 2}}
    maker = Maker(Schemas({"openapi": "3.1.0", "s": {"$ref": "#/n/a0"}, "n": named}, "answer"))
    with pytest.raises(NoExampleError):
        maker.make(("s",))
    assert maker.schemas.spent <= 2 * MAX_REFERENCES
    assert maker.steps <= 3 * MAX_REFERENCES
