"""What the plan says beforehand of the sensor of its tier."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.fakes.hosts import capable_host

from belljar.plan.touch_sight import touch_sight, touch_warnings
from belljar.policy import Tier, resolve_policy


@pytest.mark.parametrize(
    ("tier", "is_root", "sensor"),
    [
        (Tier.CONTAINER, True, "fanotify"),
        (Tier.CONTAINER, False, "inotify"),
        (Tier.GVISOR, False, "runsc-trace"),
        (Tier.MICROVM, True, "guest-fanotify"),
    ],
)
def test_each_tier_has_a_sensor_with_limits(tier: Tier, is_root: bool, sensor: str) -> None:
    """Named as in the record; what it can't see is never empty."""
    sight = touch_sight(tier, replace(capable_host(), is_root=is_root))
    assert sight.sensor == sensor
    assert sight.reason


def test_a_policy_without_decoys_is_not_told() -> None:
    """One with decoys is, in its plan's notes."""
    policy, facts = resolve_policy("low").policy, capable_host()
    assert touch_warnings(policy, Tier.GVISOR, facts) == ()
    with_decoys = policy.model_copy(update={"decoys": ("anything",)})
    assert len(touch_warnings(with_decoys, Tier.GVISOR, facts)) == 1
