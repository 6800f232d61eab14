"""The kinds of value."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.policy import fields as kinds
from belljar.policy.limits import Risk
from belljar.policy.sections import IMAGE
from belljar.units import parse_duration, parse_size, printable

ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=5,
)
EVERY_KIND = [
    kinds.NAME,
    IMAGE,
    kinds.USER,
    kinds.WORKDIR,
    kinds.TARGET,
    kinds.SOURCE,
    kinds.MODE,
    kinds.DIRECTORY,
    kinds.LINE,
    kinds.TEXT,
    kinds.URL_PATH,
    kinds.ENV_NAME,
    kinds.ENV_VALUE,
    kinds.version(1),
    kinds.choice(Risk),
    kinds.whole(1, 9),
    kinds.size("1MiB", "1GiB"),
    kinds.duration("1s", "1h"),
]


@pytest.mark.parametrize(
    "kind", EVERY_KIND, ids=lambda kind: re.sub(r" at 0x[0-9a-f]+", "", repr(kind))
)
@given(value=ANYTHING)
def test_a_kind_reads_a_value_or_says_what_is_allowed(kind: kinds.FieldKind, value: object) -> None:
    """Nothing but `ValueError`, and a message that can be shown as it is."""
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
        (IMAGE, "sha256:" + "0a" * 32, "sha256:" + "0a" * 32),
        (kinds.USER, 1000, "1000"),
        (kinds.USER, "1000:1000", "1000:1000"),
        (kinds.USER, "_apt", "_apt"),
        (kinds.WORKDIR, "//srv//x/", "/srv/x"),
        (kinds.TARGET, "a/b", "a/b"),
        (kinds.TARGET, "/etc//hosts", "/etc/hosts"),
        (kinds.TARGET, "/device", "/device"),
        (kinds.SOURCE, "./data/x", "data/x"),
        (kinds.MODE, "0755", 0o755),
        (kinds.MODE, "600", 0o600),
        (kinds.size("1MiB", "1GiB"), "1GiB", 1 << 30),
        (kinds.duration("1s", "1h"), "1s", 1.0),
        (kinds.whole(1, 9), 9, 9),
    ],
)
def test_what_is_meant_is_read(kind: kinds.FieldKind, value: object, read: object) -> None:
    """Bounds are allowed themselves; paths come out plain."""
    assert kind.read(value) == read


@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (IMAGE, "sha256:12", "64 hexadecimal"),
        (IMAGE, "-rm", "not a valid image name"),
        (IMAGE, "Debian", "lower case"),
        (IMAGE, "a b", "not a valid image name"),
        (kinds.USER, -1, "not a valid user"),
        (kinds.USER, 4294967295, "4294867293"),
        (kinds.USER, "0:4294967295", "4294867293"),
        (kinds.USER, "root;id", "not a valid user"),
        (kinds.USER, True, "true/false"),
        (kinds.USER, "9" * 5000, "not a valid user"),
        (kinds.USER, "٣", "not a valid user"),
        (kinds.WORKDIR, "srv", "not absolute"),
        (kinds.WORKDIR, "/a/../b", "contains `..`"),
        (kinds.TARGET, "/proc/1/mem", "kernel"),
        (kinds.TARGET, "//dev/null", "kernel"),
        (kinds.TARGET, "/sys", "kernel"),
        (kinds.TARGET, "a/", "directory"),
        (kinds.TARGET, "/", "directory"),
        (kinds.TARGET, "a/../../b", "contains `..`"),
        (kinds.TARGET, "a\0b", "NUL"),
        (kinds.TARGET, "x" * 5000, "4095"),
        (kinds.SOURCE, "/etc/passwd", "below the policy"),
        (kinds.SOURCE, "../x", "contains `..`"),
        (kinds.SOURCE, ".", "below the policy"),
        (kinds.MODE, "4755", "set-user-ID"),
        (kinds.MODE, 644, "quotes"),
        (kinds.MODE, "٧٧٧", "not a valid mode"),
        (kinds.ENV_NAME, "A=B", "not a valid name of a variable"),
        (kinds.ENV_NAME, "", "not a valid name of a variable"),
        (kinds.ENV_VALUE, "a\0b", "NUL"),
        (kinds.ENV_VALUE, True, "quotes"),
        (kinds.ENV_VALUE, "x" * 200_000, "128 KiB"),
        (kinds.DIRECTORY, ".", "below the policy's directory"),
        (kinds.DIRECTORY, "/srv", "below the policy's directory"),
        (kinds.DIRECTORY, "a/../b", "contains `..`"),
        (kinds.LINE, "a\nb", "one line"),
        (kinds.LINE, " ", "one line"),
        (kinds.TEXT, "x" * 70_000, "at most 65536"),
        (kinds.TEXT, "\ud800", "half a character"),
        (kinds.URL_PATH, "health", "not the path of a URL"),
        (kinds.URL_PATH, "/a b", "not the path of a URL"),
        (kinds.size("1MiB", "1GiB"), 512, "such as"),
        (kinds.size("1MiB", "1GiB"), "2GiB", "from 1MiB to 1GiB"),
        (kinds.duration("1s", "1h"), "2h", "from 1s to 1h"),
        (kinds.whole(1, 9), True, "true/false"),
        (kinds.whole(1, 9), 1.0, "whole number"),
        (kinds.version(1), True, "write 1"),
        (kinds.choice(Risk), "HIGH", "did you mean `high`?"),
        (kinds.choice(Risk), "hgh", "did you mean `high`?"),
        (kinds.choice(Risk), ["high"], "not one of"),
    ],
)
def test_what_is_not_meant_is_refused_with_what_is_allowed(
    kind: kinds.FieldKind, value: object, told: str
) -> None:
    """The message says what to write instead."""
    with pytest.raises(ValueError, match=re.escape(told)):
        kind.read(value)


@given(st.integers(min_value=1, max_value=1 << 50), st.integers(min_value=1, max_value=10**6))
def test_what_is_written_reads_back(size_bytes: int, seconds: int) -> None:
    """Sizes and durations as the schema shows them are exact."""
    assert parse_size(kinds.written_size(size_bytes)) == size_bytes
    assert parse_duration(kinds.written_duration(seconds)) == seconds
