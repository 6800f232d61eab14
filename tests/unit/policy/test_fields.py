"""The kinds of value."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.policy import fields as kinds
from belljar.policy.sections import IMAGE
from belljar.units import printable

ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
SIZE, TIME = kinds.size("1MiB", "1GiB"), kinds.duration("1s", "1h")
EVERY_KIND = [
    *(kinds.NAME, IMAGE, kinds.USER, kinds.WORKDIR, kinds.TARGET, kinds.SOURCE, kinds.MODE),
    *(kinds.DIRECTORY, kinds.LINE, kinds.TEXT, kinds.URL_PATH, kinds.ENV_NAME, kinds.ENV_VALUE),
    *(SIZE, TIME),
]


@settings(max_examples=40)
@given(value=ANYTHING)
def test_every_kind_reads_a_value_or_says_what_is_allowed(value: object) -> None:
    """Nothing but `ValueError`, and a message that can be shown as it is."""
    for kind in EVERY_KIND:
        told = ""
        try:
            kind.read(value)
        except ValueError as exc:
            told = str(exc) or "an empty message\0"
        assert printable(told) == told
        assert len(told) < 500


@pytest.mark.parametrize(
    ("kind", "value", "read"),
    [
        (IMAGE, "debian-dev", "debian-dev"),
        (kinds.USER, 1000, "1000"),
        (kinds.USER, "_apt", "_apt"),
        (kinds.WORKDIR, "//srv//x/", "/srv/x"),
        (kinds.TARGET, "/etc//hosts", "/etc/hosts"),
        (kinds.SOURCE, "./data/x", "data/x"),
        (kinds.MODE, "0755", 0o755),
        (SIZE, "1GiB", 1 << 30),
        (TIME, "1s", 1.0),
        (TIME, 60, 60.0),
    ],
)
def test_what_is_meant_is_read(kind: kinds.FieldKind, value: object, read: object) -> None:
    """Bounds are allowed themselves; paths come out plain."""
    assert kind.read(value) == read


REFUSED: list[tuple[kinds.FieldKind, str, tuple[object, ...]]] = [
    (IMAGE, "lower case", ("Debian",)),
    (kinds.USER, "not a valid user", (-1, "root;id", "9" * 5000, "٣")),
    (kinds.USER, "4294867293", (4294967295, "0:4294967295")),
    (kinds.TARGET, "none is under", ("/proc/1/mem", "//dev/null", "/sys", "a/", "/", "a/../../b")),
    (kinds.TARGET, "not the path", ("x" * 5000, ".", "")),
    (kinds.SOURCE, "below the policy", ("/etc/passwd", ".")),
    (kinds.MODE, "set-user-ID", ("4755",)),
    (kinds.MODE, "quotes", (644,)),
    (kinds.ENV_NAME, "not a valid name of a variable", ("A=B", "")),
    (kinds.ENV_VALUE, "quotes", (True,)),
    (kinds.ENV_VALUE, "too long", ("x" * 200_000,)),
    (kinds.DIRECTORY, "below the policy's directory", (".", "/srv")),
    (kinds.LINE, "one line", ("a\nb", " ")),
    (kinds.TEXT, "at most 65536", ("x" * 70_000,)),
    (kinds.TEXT, "half a character", ("\ud800",)),
    (kinds.URL_PATH, "not the path of a URL", ("health", "/a b")),
    (SIZE, "from 1MiB to 1GiB", ("2GiB", 512)),
    (TIME, "from 1s to 1h", ("2h",)),
]


def test_what_is_not_meant_is_refused_with_what_is_allowed() -> None:
    """The message says what to write instead."""
    for kind, told, values in REFUSED:
        for value in values:
            with pytest.raises(ValueError, match=re.escape(told)):
                kind.read(value)
