"""What the plan says in words: the blast radius, bounds, decoys' sensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from belljar.compose.values import SETTLE_S
from belljar.host.model import HostFacts
from belljar.plan.explain import ObstacleError, render_plan
from belljar.plan.make import make_plan
from belljar.plan.model import ImageFacts, ObstacleCode
from belljar.policy.load import load_preset, policy_of


@pytest.mark.promise("1.6")
def test_an_images_program_and_when_it_is_ready(facts: HostFacts, image: ImageFacts) -> None:
    """What runs before a sample starts, and what is waited for; nothing without a program."""

    def text(**of: Any) -> str:  # noqa: ANN401 - facts
        plan = make_plan(load_preset("high").policy, facts, replace(image, **of))
        return " ".join(" ".join(render_plan(plan)).split())

    assert "runs " not in text()
    when = f"before a sample starts, until it has run for {SETTLE_S:g} s"
    assert f"runs /enter serve — {when}" in text(program="/enter serve")
    checked = text(program="/enter serve", has_check=True)
    assert "until the image's health check passes" in checked


@pytest.mark.parametrize("risk", ["medium", "high"])
def test_no_other_tier_passes_a_gpu_through(risk: str, facts: HostFacts, image: ImageFacts) -> None:
    """Whatever the reason: each tier is refused by name, and none is used in its place."""
    gpu = {"devices": ["/dev/nvidia0"], "reason": "measured"}
    model = {"weights": {"sha256": "ab" * 32}, "gpu": gpu}
    policy = policy_of({"belljar": 1, "risk": risk, "model": model}).policy
    with pytest.raises(ObstacleError) as refused:
        make_plan(policy, facts, image)
    assert {each.code for each in refused.value.obstacles} == {ObstacleCode.GPU_NEEDS_CONTAINER}
