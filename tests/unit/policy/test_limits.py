"""The scales and the rule that joins them."""

from __future__ import annotations

import pytest

from belljar.errors import PolicyError
from belljar.policy.limits import Risk, Tier, demanded_tier, least_tier


def test_words_are_compared_by_place_and_not_by_spelling() -> None:
    """`critical` comes before `low` in the alphabet, and must not on the scale."""
    assert list(Risk) == sorted(Risk)
    assert Risk.CRITICAL > Risk.HIGH > Risk.MEDIUM > Risk.LOW
    assert Tier.MICROVM >= Tier.MICROVM > Tier.GVISOR > Tier.CONTAINER <= Tier.CONTAINER
    with pytest.raises(TypeError):
        assert Risk.LOW < Tier.MICROVM


@pytest.mark.promise("1.2")
@pytest.mark.parametrize("risk", list(Risk))
@pytest.mark.parametrize("asked", [None, *Tier])
def test_a_tier_is_raised_and_never_lowered(risk: Risk, asked: Tier | None) -> None:
    """What is demanded is never below the least, and asking for less is refused with the hint."""
    if asked is not None and asked < least_tier(risk):
        with pytest.raises(PolicyError) as refused:
            demanded_tier(risk, asked)
        assert str(least_tier(risk)) in refused.value.hint
    else:
        assert demanded_tier(risk, asked) is (asked or least_tier(risk))
