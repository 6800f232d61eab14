"""Run directories for cells: what made them stands beside the ledger, once for each policy."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tests.fakes.hosts import capable_host, image_with_a_user, some_image, some_kernel

from belljar.cell.parts import MachineParts, Parts, describe, start_run
from belljar.ledger.verification import Status, verify
from belljar.plan.make import make_plan
from belljar.plan.model import MicrovmPlan
from belljar.policy.load import resolve_policy
from belljar.policy.loaded import LoadedPolicy


def parts_for(loaded: LoadedPolicy) -> Parts:
    """A policy planned for a capable host."""
    plan = make_plan(loaded.policy, capable_host(), image_with_a_user())
    assert isinstance(plan, MicrovmPlan)
    return MachineParts(plan=plan, facts=capable_host(), image=some_image(), kernel=some_kernel())


def test_another_policy_of_the_same_run_has_names_of_its_own(tmp_path: Path) -> None:
    """Its files are told by the policy's digest; the first policy's stay."""
    first, second = resolve_policy("high"), resolve_policy("critical")
    with start_run("run", "task", [], home=tmp_path) as run:
        for loaded in (first, second, first, second):
            describe(run, loaded, parts_for(loaded))
    tag = hashlib.sha256(second.text).hexdigest()[:12]
    assert {path.name for path in run.path.glob("p*.*")} >= {"policy.yaml", "plan.json"}
    assert {path.name for path in run.path.glob("*-*.*")} == {
        f"policy-{tag}.yaml",
        f"plan-{tag}.json",
        f"parts-{tag}.json",
    }
    assert (run.path / "policy.yaml").read_bytes() == first.text
    assert verify(run.path).status is Status.VERIFIED
