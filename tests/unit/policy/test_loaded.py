"""Presets without the reader of people's files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from belljar.errors import PolicyError
from belljar.policy import PRESETS, Policy, Risk, Tier, load_preset, loaded, with_tier
from belljar.policy.loaded import known_preset


def stated(policy: Any) -> dict[str, Any]:  # noqa: ANN401 - a policy, or what stands for it
    """Everything that plans and cells read of a policy."""
    names = {*Policy.model_fields, "images", "host_tools_rule", "guard_rules"}
    return {name: getattr(policy, name) for name in names} | {"json": policy.to_json()}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("tier", [None, Tier.MICROVM])
def test_a_known_preset_says_what_its_text_says(name: str, tier: Tier | None) -> None:
    """In every field and property, in JSON, with another tier too, and from the same text."""
    known, read = known_preset(name), load_preset(name)
    assert known is not None
    assert (known.text, known.source, known.base, known.data) == (read.text, read.source, None, None)
    assert stated(with_tier(known, tier).policy) == stated(with_tier(read, tier).policy)


def test_a_changed_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands here as data counts only for the text that it was written for."""
    monkeypatch.setattr(loaded, "preset_text", lambda _name: b"belljar: 1\nrisk: high\n")
    assert known_preset("low") is None


def test_what_is_no_preset_or_is_raised_here_is_read() -> None:
    """A file, an unknown name, and a preset below the least risk of this host; None is the default."""
    assert known_preset("policy.yaml") is None
    assert known_preset("./low") is None
    assert known_preset("low", Risk.MEDIUM) is None
    assert known_preset(None) == known_preset("high", Risk.HIGH)


def test_a_known_presets_tier_is_not_lowered() -> None:
    """By the same rule as a policy that was read."""
    known = known_preset("medium")
    assert known is not None
    with pytest.raises(PolicyError):
        with_tier(known, Tier.CONTAINER)
    assert with_tier(replace(known), None) == known
