"""YAML into values with places."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.policy import yaml_tree


def test_a_scalar_means_what_the_core_schema_says() -> None:
    """YAML 1.2, section 10.3.2, and nothing of 1.1's surprises."""
    values = {
        "Null": None, "~": None, "": None, "TRUE": True, "0o17": 15, "0x1F": 31, "017": 15,
        "1.5e3": 1500.0, "0b11": 3, "1_000": 1000, "9" * 5000: "9" * 5000,
    } | {text: text for text in ("22:22", "no", "on", "2026-01-01", "=")}  # fmt: skip
    for text, value in values.items():
        assert yaml_tree.scalar(text, plain=True) == value
        assert type(yaml_tree.scalar(text, plain=True)) is type(value)
        assert yaml_tree.scalar(text, plain=False) == text


@pytest.mark.promise("1.1")
@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a: &x 1\n", 1, 4, "anchors and aliases are not read"),
        ("a: 1\nb: *a\n", 2, 4, "aliases are not read"),
        ("a: !!str 1\n", 1, 4, "tags are not read"),
        ("<<: {a: 1}\n", 1, 1, "merge keys"),
        ("a: 1\nbc: 2\na: 3\n", 3, 1, "written twice; the first is on line 1"),
        ("a: 1\n---\nb: 1\n", 2, 1, "second document"),
        ("%YAML 1.1\n---\na: 1\n", 2, 1, "directives"),
        ("1: a\n", 1, 1, "put it in quotes"),
        ("? [a]\n: b\n", 1, 3, "a field's name is text"),
        ("a:\n  b:\n", 2, 3, "is empty"),
        ("a: [1\n", 2, 1, "not YAML"),
        ("a: '\x07'\n", 1, 1, "not YAML"),
    ],
)
def test_what_a_policy_must_not_hold_is_refused_where_it_stands(
    text: str, line: int, column: int, message: str
) -> None:
    """Each with its own line and column, counted from 1."""
    found = yaml_tree.read_tree(text.encode()).problems
    assert [(problem.mark.line, problem.mark.column) for problem in found][:1] == [(line, column)]
    assert message in found[0].message


def test_a_number_that_two_readers_read_differently_stays_as_it_is_written() -> None:
    """In a policy, `user: 0100` is no octal number; a compose file's is read as Docker does."""
    assert yaml_tree.read_tree("a: 0100").value == {"a": "0100"}
    assert yaml_tree.read_tree("a: 0100", is_compose=True).value == {"a": 64}


def test_a_large_file_is_refused_unread() -> None:
    """64 KiB and not one byte more."""
    comment = b"#" * (yaml_tree.MAX_BYTES - 6)
    assert yaml_tree.read_tree(b"a: b\n" + comment + b"\n").value == {"a": "b"}
    assert "at most 64 KiB" in yaml_tree.read_tree(b"a: b\n" + comment + b"\n ").problems[0].message


def test_nesting_is_bounded_and_costs_little() -> None:
    """Neither deep nesting nor a billion laughs costs time or memory."""
    laughs = "a: &a [x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)},*{chr(97 + n)}]\n" for n in range(20)
    )
    for text in ("[" * 60_000, "{a: " * 15_000, "- " * 30_000, "? " * 30_000, laughs):
        started = time.perf_counter()
        assert yaml_tree.read_tree(text.encode()).problems
        assert time.perf_counter() - started < 60
    assert not yaml_tree.read_tree(
        ("[" * yaml_tree.MAX_DEPTH + "1" + "]" * yaml_tree.MAX_DEPTH).encode()
    ).problems


BUSY = st.text(alphabet="abc:-[]{}?&*!|>'\"%@`#, \n\t<=~0123x\\", max_size=80).map(str.encode)


@given(st.binary(max_size=300) | BUSY)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Nothing is ever raised for what the bytes hold, also where the parser is most busy."""
    yaml_tree.read_tree(data)
