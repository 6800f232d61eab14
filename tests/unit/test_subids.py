"""Subordinate ids, as files like /etc/subuid give them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from belljar.subids import parse_subordinate


def test_the_first_range_that_is_large_enough() -> None:
    """By name or uid; host root and what is no id are never in it."""
    for text, start in (
        ("ann:100000:65536\n", 100000),
        ("1000:200000:65536\n", 200000),
        ("bob:100000:65536\nann:165536:1000\nann:300000:70000\n", 300000),
        ("ann:100000:65535\n", None),
        ("ann:0:65536\n", None),
        ("ann:4294967000:65536\n", None),
        ("ann:x:65536\nann:100000\n# ann:1:65536\n\nann:-5:65536\nann:１00000:65536\n", None),
    ):
        assert parse_subordinate(text, name="ann", uid=1000) == start, text


@given(st.text())
def test_any_file_is_read(text: str) -> None:
    """A line that can't be read gives nothing."""
    parse_subordinate(text, name="ann", uid=1000)
