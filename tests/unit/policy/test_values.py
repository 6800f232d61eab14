"""Policies from dicts and `Policy` objects: read as files are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import PolicyError
from belljar.policy import PRESETS, load_preset, parse_policy, policy_of

LEAST = {"belljar": 1, "risk": "low"}


def test_a_dict_is_the_file_with_its_fields() -> None:
    """Units, nested fields and defaults are a file's; the text for the record reads as the same."""
    text = b"belljar: 1\nrisk: low\nresources: {memory: 256MiB, cpus: 2}\nenv: {A: 'yes'}\n"
    fields = {**LEAST, "resources": {"memory": "256MiB", "cpus": 2}, "env": {"A": "yes"}}
    loaded = policy_of(fields)
    assert loaded.policy == parse_policy(text, source="-", base=None).policy
    assert parse_policy(loaded.text, source="-", base=None).policy == loaded.policy


@pytest.mark.parametrize("preset", PRESETS)
def test_a_policy_object_is_itself(preset: str) -> None:
    """Nothing is lost or added; a changed copy is checked again."""
    policy = load_preset(preset).policy
    assert policy_of(policy).policy == policy
    with pytest.raises(PolicyError):
        policy_of(policy.model_copy(update={"user": "no user\n"}))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"belljar": 1}, "risk"),
        ({**LEAST, "tire": "gvisor"}, "tire"),
        ({**LEAST, "resources": {"memory": "lots"}}, "resources.memory"),
        ({**LEAST, "files": [{"source": "a", "target": "/a"}]}, "files[0].source"),
        ({**LEAST, "env": {1: "a"}}, "1"),
        ({**LEAST, "env": {"A": b"bytes"}}, "bytes"),
        ({**LEAST, "env": {"A": "\ud800"}}, "surrogates"),
        ({**LEAST, "resources": {"cpus": float("nan")}}, ""),
        ({}, "belljar"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], named: str) -> None:
    """A `PolicyError` with the field, and no line of a text that nobody wrote."""
    with pytest.raises(PolicyError) as raised:
        policy_of(fields)
    assert named in raised.value.what
    assert raised.value.where == "a dict"


def test_all_that_is_wrong_is_told_at_once() -> None:
    """As of a file."""
    with pytest.raises(PolicyError) as raised:
        policy_of({**LEAST, "tire": "gvisor", "user": "no user"})
    assert "tire" in raised.value.what
    assert "user" in raised.value.what


@given(st.dictionaries(st.text(), st.recursive(st.text() | st.none(), st.lists, max_leaves=5)))
def test_any_dict_is_a_policy_or_refused(fields: dict[str, Any]) -> None:
    """Nothing else is raised, whatever text it holds; text arrives as it is."""
    try:
        loaded = policy_of({**LEAST, "env": {"A": str(fields)[:100]}, **fields})
    except PolicyError:
        return
    assert loaded.policy.risk.value == "low"
