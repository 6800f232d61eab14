"""Texts for patterns."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.network.stand_ins.schemas import pattern_problem, text_for


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[A-Z]{3}-\d{4,6}$",
        r"^(a|b)c?d*$",
        r"^#[0-9a-fA-F]{6}$",
        r"^\w+@\w+\.[a-z]{2,3}$",
        r"^[^a-z]+$",
        r"\S",
        r"^.{5}$",
        r"^(?:x|y)(?P<n>z)\s$",
        r"^\D\W$",
        r"^[^@\s]{3,}$",
        r"^\+?[1-9]\d{1,14}$",
    ],
)
def test_a_text_is_made_for_usual_patterns(pattern: str) -> None:
    """It is found by the pattern, and another index still is."""
    for index in range(4):
        text = text_for(pattern, 0, 100, index)
        assert text is not None
        assert re.search(pattern, text)


def test_lengths_are_kept() -> None:
    """Between the two bounds, or none."""
    assert len(text_for("^[a-z]+$", 20, 30, 0) or "") >= 20
    assert text_for("^a{5}$", 0, 4, 0) is None
    assert len(text_for("a", 9, 9, 0) or "") == 9


@pytest.mark.parametrize("pattern", [r"(?=a)b", r"(a)\1", "(", "[z-a]"])
def test_what_is_not_solved_is_none(pattern: str) -> None:
    """Looks around, references back and what can't be read give nothing."""
    assert text_for(pattern, 0, 9, 0) is None


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        ("(a+)+$", "for ever"),
        ("((x*)y?)*", "for ever"),
        ("(", "can't be read"),
        (3, "text"),
        ("^[a-z]+(-[a-z]{1,9})*$", ""),
        ("a+b+", ""),
        ("(ab|a|b)*c", "for ever"),
        ("^(a?b?)*$", "for ever"),
        ("(a{1,2})+$", "for ever"),
        ("((a?|b?)c)*d", "for ever"),
        ("(?=(a|a?)*b)", "for ever"),
        (r"(\w|\dx?)*$", "for ever"),
        (r"(\s|\ta?)*$", "for ever"),
        ("([^a]|bc?)*$", "for ever"),
        ("((a?){2}b)*", "for ever"),
        ("((a{1,256}b){1,256})*", "for ever"),
        (r"^(\\.|[^\\])*$", ""),
        (r"^(%[0-9A-F]{2}|[a-z~.])*$", ""),
        (r"^(\.[a-z]{2,3})*$", ""),
        ("^(ab|b)*$", ""),
        ("^(foo|fob)*$", ""),
        ("^([0-9a-f]{2}:){5}[0-9a-f]{2}$", ""),
        ("^(a(b(c)?)?,)*$", ""),
        ("^([a-z]*+,)*$", ""),
        ("^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==)?$", ""),
    ],
)
def test_exponential_patterns_are_refused(pattern: object, word: str) -> None:
    """A repetition that can match one text in several ways is refused; usual patterns aren't."""
    assert word in pattern_problem(pattern)
    assert bool(pattern_problem(pattern)) is bool(word)


@given(st.text(alphabet="ab01[]()^$.*+?{}|\\dws-,:=!<>P", max_size=16), st.integers(0, 5))
def test_any_pattern_gives_a_match_or_nothing(pattern: str, index: int) -> None:
    """What is given matches; nothing raises."""
    if pattern_problem(pattern):
        return
    text = text_for(pattern, 0, 50, index)
    assert text is None or (len(text) <= 50 and re.search(pattern, text))
