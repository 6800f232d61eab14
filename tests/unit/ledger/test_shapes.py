"""Strict shapes of JSON objects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.ledger import kinds as shapes
from belljar.ledger.kinds import TYPES, Check, Shape, check_shape

SHAPE: Shape = {"name": shapes.text, "sizes?": shapes.items(shapes.count, max_items=2)}


CHECKS: list[tuple[Check, list[object], list[object]]] = [
    (shapes.text, ["", "x"], [None, 1, b"x", ["x"]]),
    (TYPES["flag"], [True, False], [0, 1, "true", None]),
    (TYPES["whole"], [-1, 0, 2**60], [True, 1.0, "1", None]),
    (shapes.count, [0, 2**53 - 1], [-1, 2**53, True, 1.0, "1"]),
    (TYPES["number"], [1, 1.5, -0.0], [True, "1", None]),
    (TYPES["object"], [{}, {"a": 1}], [[], None, "{}"]),
    (shapes.exactly(1), [1], [True, 1.0, 2, "1"]),
    (shapes.one_of("a", "b"), ["a", "b"], ["c", "", None, ["a"]]),
    (shapes.matching("[0-9]{2}"), ["12"], ["1", "123", "12\n", "\u0663\u0663", 12]),
    (shapes.maybe(shapes.text), [None, "x"], [1]),
    (shapes.items(shapes.text, max_items=1), [[], ["x"]], ["x", [1], ["x", "y"], {"x": 1}]),
    (shapes.objects(SHAPE), [[], [{"name": "x"}]], [[1], [{}], [{"name": "x", "sizes?": []}]]),
]


def test_each_check_takes_its_own_type_alone() -> None:
    """No value of another type is converted: true is no number, a number no text."""
    for check, good, bad in CHECKS:
        for value in good:
            check(value)
        for value in bad:
            with pytest.raises(ValueError):  # noqa: PT011
                check(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_any_value_passes_or_is_a_value_error(value: object) -> None:
    """No other error, whatever the value; with `extra` further fields never matter."""
    try:
        check_shape(value, SHAPE)
    except ValueError:
        return
    assert isinstance(value, dict)
    check_shape({**value, "more": value}, SHAPE, extra=True)
