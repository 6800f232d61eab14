"""Run directories for cells: what made them stands beside the ledger, once for each policy."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from tests.fakes.hosts import capable_host, image_with_a_user, some_image, some_kernel

from belljar.cell.parts import MachineParts, Parts, describe, start_run
from belljar.ledger.listing import list_runs
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


def test_policy_plan_and_host_stand_beside_the_ledger(tmp_path: Path) -> None:
    """The policy is kept as written, and a run that holds them verifies."""
    loaded = resolve_policy("high")
    with start_run("exec", None, ["true"], home=tmp_path) as run:
        describe(run, loaded, parts_for(loaded))
        describe(run, loaded, parts_for(loaded))
    assert (run.path / "policy.yaml").read_bytes() == loaded.text
    assert json.loads((run.path / "plan.json").read_text())["tier"] == "microvm"
    assert json.loads((run.path / "host.json").read_text())["arch"] == "x86_64"
    assert set(json.loads((run.path / "parts.json").read_text())) == {
        "guest_kernel",
        "image",
        "qemu",
    }
    assert verify(run.path).status is Status.VERIFIED


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


def test_a_run_is_called_by_what_it_runs(tmp_path: Path) -> None:
    """The word that was given, or the beginning of the command."""
    for what, argv in (("task", ["a"]), (None, ["python3", "-c", "print()", "rest"])):
        with start_run("exec", what, argv, home=tmp_path):
            pass
    assert {listed.what for listed in list_runs(tmp_path)[0]} == {"task", "python3 -c print()"}
