"""SPECIFICATION.md: each promise is held by tests, and each mark names a promise."""

from __future__ import annotations

from scripts import promises


def test_each_promise_has_tests_and_each_mark_a_promise() -> None:
    """No number is used twice, none is without a test, and no test holds what isn't promised."""
    numbers = [number for number, _ in promises.promises()]
    assert len(set(numbers)) == len(numbers) > 20
    assert promises.tests_by_promise().keys() == set(numbers)
