"""Policy + host facts + image → plan, or a refusal."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from belljar.errors import HostError, PolicyError
from belljar.host import CgroupFact, CgroupVersion, HostFacts, KvmFact, KvmState
from belljar.plan import GUEST_OVERHEAD_MIB, ImageFacts, make_plan, render_plan
from belljar.plan.jail import vmm_memory_max_bytes
from belljar.policy import FileCopy, Policy, Resources, Risk, Tier, load_preset

RICH: dict[str, Any] = {
    "belljar": 1,
    "name": "rich",
    "risk": "medium",
    "tier": "microvm",
    "image": "default",
    "resources": {
        "cpus": 2,
        "memory": "1GiB",
        "disk": "256MiB",
        "processes": 100,
        "lifetime": "30m",
        "exec_timeout": "45s",
        "output": "1MiB",
    },
    "user": 0,
    "workdir": "/srv",
    "env": {"TASK": "a", "LANG": "de"},
    "files": [{"source": "data/a.txt", "target": "in/a.txt", "mode": "0600"}],
}


def emulated(facts: HostFacts) -> HostFacts:
    """The same host, whose KVM never ran a guest."""
    return replace(facts, kvm=KvmFact(state=KvmState.REFUTED, reason="the guest never spoke"))


def ordinary(facts: HostFacts) -> HostFacts:
    """An ordinary user on it, to whom nothing is delegated, emulated."""
    group = CgroupFact(version=CgroupVersion.V2, reason="no group is delegated to this user where it runs")
    return replace(emulated(facts), is_root=False, uid=1000, cgroup=group)


CASES: dict[str, tuple[Callable[[], Policy], Callable[[HostFacts], HostFacts], bool]] = {
    "critical-kvm": (lambda: load_preset("critical").policy, lambda facts: facts, True),
    "high-emulated": (lambda: load_preset("high").policy, emulated, True),
    "rich-ordinary-user": (lambda: Policy.model_validate(RICH), ordinary, True),
    "low-without-image": (lambda: load_preset("low").policy, lambda facts: facts, False),
}


@pytest.mark.parametrize("case", CASES)
def test_plans_are_golden(case: str, facts: HostFacts, image: ImageFacts, golden: Callable[[str, str], None]) -> None:
    """What a person reads and what a run directory keeps change only when it is meant."""
    policy, host, has_image = CASES[case]
    plan = make_plan(policy(), host(facts), image if has_image else None)
    golden(f"{case}.txt", "\n".join(render_plan(plan)) + "\n")
    golden(f"{case}.json", json.dumps(plan.to_json(), indent=1) + "\n")


@pytest.mark.parametrize("risk", list(Risk))
@pytest.mark.parametrize("state", list(KvmState))
def test_the_tier_is_never_less_than_the_risk_demands(
    risk: Risk, state: KvmState, facts: HostFacts, image: ImageFacts
) -> None:
    """And `critical` runs on proven hardware or not at all: emulation is never a silent substitute."""
    host = replace(facts, kvm=KvmFact(state=state, reason="because"))
    policy = Policy(belljar=1, risk=risk)
    if risk is Risk.CRITICAL and state is not KvmState.PROVEN:
        with pytest.raises(HostError, match="demands hardware") as refused:
            make_plan(policy, host, image)
        assert refused.value.mend
        return
    plan = make_plan(policy, host, image)
    assert plan.tier is Tier.MICROVM >= plan.demanded_tier
    assert plan.emulated is (state is not KvmState.PROVEN)
    assert plan.vm.accel == ("tcg" if plan.emulated else "kvm")
    assert plan.emulated is any("no security boundary" in warning for warning in plan.warnings)
    assert [layer.name for layer in plan.layers] == ["jail", "microvm", "container"]


def test_a_lowered_tier_is_refused_even_when_the_model_was_not_asked(facts: HostFacts, image: ImageFacts) -> None:
    """`model_copy` checks nothing, so the plan does."""
    policy = load_preset("high").policy.model_copy(update={"tier": Tier.CONTAINER})
    with pytest.raises(PolicyError, match="less than risk `high` demands"):
        make_plan(policy, facts, image)


@pytest.mark.parametrize(
    ("change", "where", "told"),
    [
        ({"arch": "aarch64"}, "host", "x86_64 so far"),
        ({"cpus": 1}, "resources.cpus", "this host has 1"),
        ({"memory_total_mib": 1024}, "resources.memory", "this host has 1 GiB"),
    ],
)
def test_what_this_host_has_not_got_is_refused_with_the_mend(
    change: dict[str, Any], where: str, told: str, facts: HostFacts, image: ImageFacts
) -> None:
    """Where, what and what to do; nothing is made smaller to fit."""
    with pytest.raises(HostError, match=told) as refused:
        make_plan(Policy.model_validate(RICH), replace(facts, **change), image)
    assert refused.value.where == where
    assert refused.value.mend
    assert refused.value.exit_code == 3


def test_the_first_missing_tool_refuses(facts: HostFacts, image: ImageFacts) -> None:
    """Only what a cell needs: a missing skopeo keeps no cell from running."""
    old = replace(facts.tools[0], version="7.2", ok=False, mend="run `belljar setup`")
    with pytest.raises(HostError, match=r"7\.2 is too old: 8\.2 is needed"):
        make_plan(load_preset("high").policy, replace(facts, tools=(old,)), image)


def test_an_image_says_how_processes_start_and_the_policy_has_the_last_word(
    facts: HostFacts, image: ImageFacts
) -> None:
    """User, working directory and environment."""
    plain = make_plan(load_preset("high").policy, facts, image)
    assert (plain.user, plain.workdir, plain.env) == ("user", "/home/user", image.env)
    rich = make_plan(Policy.model_validate(RICH), facts, image)
    assert (rich.user, rich.workdir, rich.env) == ("0", "/srv", {"PATH": "/usr/bin:/bin", "LANG": "de", "TASK": "a"})


def test_without_control_groups_the_plan_says_what_holds_instead(facts: HostFacts, image: ImageFacts) -> None:
    """No bound disappears silently."""
    plan = make_plan(Policy.model_validate(RICH), ordinary(facts), image)
    assert (plan.memory_by_rlimit, plan.jail_controllers, plan.jail.cpu_quota_percent) == (True, (), None)
    held = {bound.what: " ".join(bound.enforced_by) for bound in plan.bounds}
    assert "RLIMIT_AS" in held["this host's memory"]
    assert "no control group" in held["processors"]
    assert "RLIMIT_NPROC" in held["threads on this host"]
    assert any("control groups" in warning for warning in plan.warnings)
    assert not any(
        "control groups" in warning for warning in make_plan(Policy.model_validate(RICH), facts, image).warnings
    )


RESOURCES = st.builds(
    Resources,
    cpus=st.integers(1, 8),
    memory_bytes=st.integers(64 << 20, 8 << 30),
    disk_bytes=st.integers(16 << 20, 8 << 30),
    processes=st.integers(16, 32768),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(resources=RESOURCES, hardware=st.booleans())
def test_every_bound_lies_within_the_one_around_it(
    resources: Resources, hardware: bool, facts: HostFacts, image: ImageFacts
) -> None:
    """What the workload may take fits the VM, with room for the guest's kernel; the VM fits what the jail allows."""
    plan = make_plan(
        Policy(belljar=1, risk=Risk.HIGH, resources=resources), facts if hardware else emulated(facts), image
    )
    assert plan.guest.memory_max_bytes == resources.memory_bytes + resources.disk_bytes
    assert plan.guest.memory_max_bytes + (GUEST_OVERHEAD_MIB << 20) <= plan.vm.ram_mib << 20
    assert (
        plan.vm.ram_mib << 20
        < plan.jail.memory_max_bytes
        == vmm_memory_max_bytes(plan.vm)
        < plan.jail.address_space_bytes
    )
    assert plan.guest.disk_inodes >= 16_384
    assert plan.vm.ram_mib % 2 == 0
    assert plan.vm.vcpus == resources.cpus
    assert plan.limits == resources


def test_a_plan_is_a_function_of_what_it_is_given(facts: HostFacts, image: ImageFacts) -> None:
    """Twice the same, and JSON all through."""
    policy = Policy.model_validate(RICH)
    first, second = (make_plan(policy, facts, image) for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first.to_json())) == second.to_json()
    assert set(first.to_json()) == {"version", *first.__slots__}


def test_shortages_are_told_and_not_hidden(facts: HostFacts, image: ImageFacts) -> None:
    """Memory that is taken now, and a store without room for a template, are warnings: they pass."""
    short = make_plan(load_preset("high").policy, replace(facts, memory_available_mib=100, disk_free_mib=100), image)
    assert [any(word in warning for warning in short.warnings) for word in ("free now", "the store has")] == [
        True,
        True,
    ]
    assert make_plan(load_preset("high").policy, facts, image).warnings == ()


def test_hostile_words_are_shown_escaped(facts: HostFacts, image: ImageFacts) -> None:
    """An image's environment and a file's name come from others, and can't act on a terminal."""
    strange = replace(image, env={"A\x1b[2J": "x"}, user="u\u202e", workdir="/\x07")
    policy = Policy(belljar=1, risk=Risk.HIGH, files=(FileCopy(source="a\x1bb", target="c\nd"),))
    text = "\n".join(render_plan(make_plan(policy, facts, strange)))
    assert not {"\x1b", "\u202e", "\x07"} & set(text)
    assert "c\\nd" in text
