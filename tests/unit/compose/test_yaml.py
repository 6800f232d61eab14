"""A compose file's text is read, or refused at its line, within a counted number of steps."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.compose.document import NotReadError, read_yaml
from belljar.policy.yaml_tree import MAX_CHARACTERS, MAX_NODES


def size(value: object) -> tuple[int, int]:
    if isinstance(value, dict):
        sizes = [size(item) for item in (*value.values(), *value)]
    elif isinstance(value, list):
        sizes = [size(item) for item in value]
    else:
        return 1, len(value) if isinstance(value, str) else 0
    return 1 + sum(nodes for nodes, _ in sizes), sum(characters for _, characters in sizes)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: [1, 0o17, 0755, 1_000, 1.5, yes, true, null, ~, 22:22, '1', x]", {"a": [1, 15, 493, 1000, 1.5, "yes", True, None, None, "22:22", "1", "x"]}),
        ("a: &n x\nb: *n", {"a": "x", "b": "x"}),
        ("a: &l [1]\nb: [*l, *l]", {"a": [1], "b": [[1], [1]]}),
        ("a: &m {k: 1, l: 2}\nb: {<<: *m, l: 3}", {"a": {"k": 1, "l": 2}, "b": {"k": 1, "l": 3}}),
        ("a: &m {k: 1}\nb: &o {k: 2, l: 2}\nc: {<<: [*m, *o]}", {"a": {"k": 1}, "b": {"k": 2, "l": 2}, "c": {"k": 1, "l": 2}}),
        ("b: {<<: {k: 1}, '<<': 2}", {"b": {"k": 1, "<<": 2}}),
        ("a: &x 1\nb: &x 2\nc: *x", {"a": 1, "b": 2, "c": 2}),
    ],
)  # fmt: skip
def test_what_a_text_means(text: str, value: object) -> None:
    """By YAML 1.2, with anchors, aliases and merge keys."""
    assert read_yaml(text) == value


def doubling(levels: int) -> str:
    return "a0: &a0 [x]\n" + "".join(
        f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, levels)
    )


def merging(levels: int) -> str:
    merged = "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, levels))
    return "a0: &a0 {x: 1, y: 2}\n" + merged


@pytest.mark.parametrize(
    ("text", "said", "line"),
    [
        (doubling(40), f"more than {MAX_NODES:,} values", 13),
        (merging(40), f"more than {MAX_NODES:,} values", 12),
        ("a: &a '" + "$$" * 1000 + "'\nb: [" + "*a, " * 600 + "]", f"{MAX_CHARACTERS:,} characters", 2),
        ("[" + "1," * MAX_NODES + "]", f"more than {MAX_NODES:,} values", 1),
        ("a: 1\nb: &b [*b]", "`*b` refers to no value", 2),
        ("a: &m {<<: *m}", "`*m` refers to no value", 1),
        ("a: *none", "`*none` refers to no value", 1),
        ("a: 1\nb: {<<: 1}", "a merge key", 2),
        ("a: !!python/object:os.system x", "tags are not read", 1),
    ],
)  # fmt: skip
def test_what_is_refused(text: str, said: str, line: int) -> None:
    """With the bound, at its line; forty levels that double would be 2⁴⁰ values."""
    with pytest.raises(NotReadError, match=said.replace("*", r"\*")) as caught:
        read_yaml(text)
    assert caught.value.line == line


_PIECES = st.sampled_from(
    ["a: ", "b: ", "<<: ", "&x ", "*x", "*y", "&y ", "[", "]", "{", "}", ", ", "\n", "  ", "- ", "1", "'", '"', "$$"]
)  # fmt: skip


@pytest.mark.promise("1.5")
@given(st.lists(_PIECES, max_size=60).map("".join) | st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """What is read is no more than the bound, however it is walked."""
    value: Any = None
    with suppress(NotReadError):
        value = read_yaml(text)
    nodes, characters = size(value)
    assert nodes <= MAX_NODES
    assert characters <= MAX_CHARACTERS
