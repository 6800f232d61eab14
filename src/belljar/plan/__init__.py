"""Policy + host facts → a plan, as frozen data. Pure.

Lives here: the tier decision, limits, layers and blast radius, and the argument lists that carry
them out (QEMU, an OCI runtime, the jail).
Must not: touch a file, a clock, a process or the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.lazy import lazy_names

if TYPE_CHECKING:
    from belljar.plan.explain import render_plan
    from belljar.plan.make import GUEST_OVERHEAD_MIB, make_plan
    from belljar.plan.model import (
        BlastRadius,
        Bound,
        ImageFacts,
        Layer,
        MicrovmPlan,
        Obstacle,
        OciPlan,
        Plan,
    )
    from belljar.plan.obstacles import (
        hardware_obstacle,
        network_obstacles,
        tier_obstacles,
    )

__all__ = [
    "GUEST_OVERHEAD_MIB",
    "BlastRadius",
    "Bound",
    "ImageFacts",
    "Layer",
    "MicrovmPlan",
    "Obstacle",
    "OciPlan",
    "Plan",
    "hardware_obstacle",
    "make_plan",
    "network_obstacles",
    "render_plan",
    "tier_obstacles",
]

__getattr__ = lazy_names(
    __name__,
    {
        "make_plan": "belljar.plan.make",
        **dict.fromkeys(
            ("BlastRadius", "Bound", "ImageFacts", "Layer", "Obstacle"), "belljar.plan.model"
        ),
        **dict.fromkeys(("MicrovmPlan", "OciPlan", "Plan"), "belljar.plan.model"),
        **dict.fromkeys(
            ("hardware_obstacle", "network_obstacles", "tier_obstacles"),
            "belljar.plan.obstacles",
        ),
        "render_plan": "belljar.plan.explain",
        "GUEST_OVERHEAD_MIB": "belljar.plan.make",
    },
)
