"""Canonical JSON, the refusal of what only looks like it, and the tree over its lines."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.ledger.chain import MerkleTree, canonical, parse_canonical

SAFE_INT = st.integers(min_value=-(2**53) + 1, max_value=2**53 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | SAFE_INT
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.floats(min_value=1e-7, max_value=1e22)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(TEXT, JSON, max_size=5))
def test_round_trip(value: dict[str, object]) -> None:
    """What was written is read back, and written the same again."""
    assert canonical(parse_canonical(canonical(value))) == canonical(value)


@given(st.text())
def test_text_that_utf8_cannot_carry_is_still_recorded(text: str) -> None:
    """A lone surrogate becomes its escape; nothing that can be typed refuses a record."""
    shown = json.loads(canonical({"argv": [text]}))["argv"][0]
    assert shown == text.encode("utf-8", "backslashreplace").decode()


def test_what_json_cannot_say_exactly_is_refused() -> None:
    """Large integers, NaN, bytes and keys that are not text are errors, never approximations."""
    nan, infinite = float("nan"), float("inf")
    for value in (2**53, -(2**53), nan, infinite, {"a": {1: 2}}, {"a": b"x"}, {"a": {3}}):
        with pytest.raises(ValueError):  # noqa: PT011 - the library's own subclasses
            canonical({"x": value})
    for depth in (101, 5000):
        nested: object = 1
        for _ in range(depth):
            nested = [nested]
        with pytest.raises(ValueError, match="deeply"):
            canonical(nested)


NOT_CANONICAL = [
    *(b'{"a":1,"a":1}', b'{"a":1, "b":2}', b'{"b":1,"a":2}', b'{"a":1.0}', b'{"a":-0}'),
    *(b'{"a":1e2}', b'{"a":"\\u0041"}', b'{"a":"\\ud800"}', b'{"a":NaN}', b'{"a":1}\r'),
    *(b'{"a":9007199254740993}', b"[]", b"1", b"", b"\xff\xfe{\x00}\x00", b'\xef\xbb\xbf{"a":1}'),
    *(b'{"a":' + b"[" * depth + b"]" * depth + b"}" for depth in (100, 100_000)),
    b'{"a":' + b"9" * 5000 + b"}",
]


@pytest.mark.parametrize("line", NOT_CANONICAL, ids=lambda line: repr(line[:24]))
def test_only_the_canonical_form_is_read(line: bytes) -> None:
    """Duplicate keys, other spellings or encodings, too deep or large: `ValueError`."""
    with pytest.raises(ValueError):  # noqa: PT011 - any of them will do
        parse_canonical(line)


@given(st.binary(max_size=200))
def test_hostile_bytes_are_refused_or_canonical(line: bytes) -> None:
    """Any bytes give a `ValueError` or an object whose canonical form is exactly those bytes."""
    try:
        value = parse_canonical(line)
    except ValueError:
        return
    assert canonical(value) == line


def tree_hash(entries: list[bytes]) -> bytes:
    if not entries:
        return hashlib.sha256(b"").digest()
    if len(entries) == 1:
        return hashlib.sha256(b"\x00" + entries[0]).digest()
    k = 1
    while k * 2 < len(entries):
        k *= 2
    return hashlib.sha256(b"\x01" + tree_hash(entries[:k]) + tree_hash(entries[k:])).digest()


@given(st.lists(st.binary(max_size=40), max_size=70))
def test_every_prefix_has_the_root_of_the_definition(entries: list[bytes]) -> None:
    """After each leaf, size and root are those of the recursive definition."""
    tree = MerkleTree()
    for index, entry in enumerate(entries):
        assert (tree.size, tree.root()) == (index, tree_hash(entries[:index]))
        tree = tree.added(entry)
    assert tree.root() == tree_hash(entries)
