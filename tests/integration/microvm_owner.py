"""What a microVM is made of, without a cell around it: for tests, benches and owner programs."""

from __future__ import annotations

from pathlib import Path

from belljar.cell.parts import facts_of, find_facts
from belljar.image.kernel import Kernel, current_kernel
from belljar.image.store import Image, Store
from belljar.plan.make import make_plan
from belljar.plan.model import MicrovmPlan
from belljar.policy.load import load_preset


def parts(home: Path) -> tuple[MicrovmPlan, Image, Kernel]:
    policy = load_preset("high").policy
    image = Store(home).find(policy.image)
    plan = make_plan(policy, find_facts(home), facts_of(image, policy.image))
    assert isinstance(plan, MicrovmPlan)
    return plan, image, current_kernel(home)
