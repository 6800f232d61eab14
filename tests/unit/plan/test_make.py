"""Policy + host facts + image → plan, or a refusal: what stands in a tier's way."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.errors import PolicyError
from belljar.host.model import (
    CgroupFact,
    CgroupVersion,
    HostFacts,
    IdsFact,
    Trial,
    TrialState,
    UsernsFact,
)
from belljar.plan import obstacles
from belljar.plan.explain import ObstacleError, render_plan
from belljar.plan.make import (
    GUEST_OVERHEAD_MIB,
    granted,
    make_plan,
    oci_limits,
    oci_overhead_mib,
    vm_shape,
)
from belljar.plan.model import ImageFacts, MicrovmPlan, ObstacleCode
from belljar.plan.obstacles import KVM_STATES
from belljar.policy.limits import Resources, Risk, Tier, least_tier
from belljar.policy.load import load_preset, policy_of
from belljar.policy.model import Policy
from belljar.policy.sections import FileCopy, Rights
from belljar.policy.yaml_tree import read_tree

RICH: dict[str, Any] = read_tree("""
belljar: 1
name: rich
risk: medium
tier: microvm
image: default
resources: {cpus: 2, memory: 1GiB, disk: 256MiB, processes: 100, lifetime: 30m, exec_timeout: 45s,
            output: 1MiB}
user: 0
workdir: /srv
env: {TASK: a, LANG: de}
files: [{source: data/a.txt, target: in/a.txt, mode: '0600'}]
""").value
RANGE: dict[str, Any] = read_tree("""
belljar: 1
name: range
risk: high
network:
  stand_ins:
    shop:
      {kind: http, names: [shop.example, '*.shop.example'], files: shop,
       routes: [{path: /, template: index.html}]}
    db: {kind: cell, names: [db], ports: [5432], command: [run, it]}
    cloud: {kind: metadata, names: [metadata.google.internal]}
""").value
REAL: dict[str, Any] = read_tree("""
belljar: 1
name: real
risk: low
network:
  default: simulate
  sink: true
  stand_ins: {mail: {kind: smtp, names: [mail.example]}}
  upstreams:
    - {host: real.example, ports: [443], methods: [GET], budget: 10MiB,
       reason: only there is it current}
""").value


def emulated(facts: HostFacts) -> HostFacts:
    return replace(facts, kvm=Trial(state=TrialState.REFUTED, reason="the guest never spoke"))


def ordinary(facts: HostFacts) -> HostFacts:
    why = "no group is delegated to this user where it runs"
    group = CgroupFact(version=CgroupVersion.V2, reason=why)
    return replace(emulated(facts), is_root=False, uid=1000, cgroup=group)


def delegated(facts: HostFacts) -> HostFacts:
    """An ordinary user with subordinate ids and a delegated group, whose runc was never tried."""
    parents = dict.fromkeys(("cpu", "memory", "pids"), "/c/own")
    group = CgroupFact(version=CgroupVersion.V2, parents=parents)
    unproven, why = TrialState.UNPROVEN, "not yet"
    untried = tuple(replace(item, state=unproven, reason=why) for item in facts.runtimes)
    ids = IdsFact(available=True, uid_start=100_000, gid_start=100_000)
    return replace(ordinary(facts), cgroup=group, ids=ids, runtimes=untried)


def codes(policy: Policy | dict[str, Any], host: HostFacts, image: ImageFacts) -> list[str]:
    """Why a plan is refused, the least tier's reason first; each with its hint."""
    if isinstance(policy, dict):
        policy = Policy.model_validate({"belljar": 1, "risk": "low"} | policy, strict=False)
    with pytest.raises(ObstacleError) as refused:
        make_plan(policy, host, image)
    assert all(obstacle.hint for obstacle in refused.value.obstacles)
    assert refused.value.exit_code == 3
    return [obstacle.code for obstacle in refused.value.obstacles]


# One plan for each tier.
IN_JSON = ("critical-kvm", "low-ordinary-user", "medium-gvisor")
# The others show layers that nothing else does: rich-ordinary-user the emulated machine, in a jail
# with the user's own uid; range-microvm the machine's network device; range-real a container in its
# jail's network, with root's own range of ids.
CASES: dict[str, tuple[Callable[[], Policy], Callable[[HostFacts], HostFacts]]] = {
    "critical-kvm": (lambda: load_preset("critical").policy, lambda facts: facts),
    "low-ordinary-user": (lambda: load_preset("low").policy, delegated),
    "rich-ordinary-user": (lambda: Policy.model_validate(RICH), ordinary),
    "medium-gvisor": (lambda: load_preset("medium").policy, lambda facts: facts),
    "range-microvm": (lambda: Policy.model_validate(RANGE), lambda facts: facts),
    "range-real": (lambda: Policy.model_validate(REAL), lambda facts: facts),
}


@pytest.mark.promise("2.6")
@pytest.mark.parametrize("case", CASES)
def test_plans_are_golden(
    case: str, facts: HostFacts, image: ImageFacts, golden: Callable[[str, str], None]
) -> None:
    """What a person reads and what a run directory keeps change only when it is meant."""
    policy, host = CASES[case]
    plan = make_plan(policy(), host(facts), image, base=Path("/srv/evaluation"))
    golden(f"{case}.txt", "\n".join(render_plan(plan)) + "\n")
    if case in IN_JSON:
        golden(f"{case}.json", json.dumps(_brief(plan.to_json()), indent=1) + "\n")


def _brief(shown: dict[str, Any]) -> dict[str, Any]:
    if shown["oci"] is not None:
        shown["oci"]["config"]["linux"]["seccomp"]["syscalls"] = "as seccomp.toml says"
    return shown


@pytest.mark.promise("1.2", "2.3")
@pytest.mark.parametrize("risk", list(Risk))
@pytest.mark.parametrize("state", list(KVM_STATES))
def test_the_tier_is_never_less_than_the_risk_demands(
    risk: Risk, state: TrialState, facts: HostFacts, image: ImageFacts
) -> None:
    """And `critical` runs on proven hardware or not at all: emulation is never a silent substitute."""
    host = replace(facts, kvm=Trial(state=state, reason="because"))
    policy = Policy(belljar=1, risk=risk)
    if risk is Risk.CRITICAL and state is not TrialState.PROVEN:
        assert codes(policy, host, image) == [ObstacleCode.KVM]
        return
    plan = make_plan(policy, host, image)
    assert plan.tier is plan.demanded_tier is least_tier(risk)
    if isinstance(plan, MicrovmPlan):
        assert plan.emulated is (state is not TrialState.PROVEN)
        assert plan.vm.accel == ("tcg" if plan.emulated else "kvm")
    assert plan.emulated is any("not a security boundary" in warning for warning in plan.warnings)
    assert [layer.name for layer in plan.layers] == LAYERS[plan.tier]
    # No layer of a container claims more than this host's kernel can hold.
    shares_kernel = {layer.state for layer in plan.layers} == {"shared"}
    assert shares_kernel is (plan.tier is Tier.CONTAINER)
    assert any("shared kernel" in warning for warning in plan.warnings) is shares_kernel
    assert all("shared" in each.enforced_by for each in plan.layers if each.state == "shared")


LAYERS = {
    Tier.CONTAINER: ["jail", "container", "workload"],
    Tier.GVISOR: ["jail", "gvisor", "workload"],
    Tier.MICROVM: ["jail", "microvm", "container"],
}


@pytest.mark.promise("1.2")
def test_an_unsaid_tier_is_the_least_that_can_be_carried_out_and_a_said_one_is_that_or_nothing(
    facts: HostFacts, image: ImageFacts
) -> None:
    """Why others were passed over is in the plan; a policy that names its tier is refused."""
    silent = replace(facts.runtimes[0], state=TrialState.REFUTED, reason="it said nothing")
    without_runc = replace(facts, runtimes=(silent, facts.runtimes[1]))
    plan = make_plan(Policy(belljar=1, risk=Risk.LOW), without_runc, image)
    assert plan.tier is Tier.GVISOR
    (why,) = plan.skipped_tiers
    assert "container can't be used here" in why
    assert "it said nothing" in why
    assert why in plan.warnings
    assert codes({"tier": "container"}, without_runc, image) == [ObstacleCode.RUNTIME]
    no_userns = replace(facts, userns=UsernsFact(available=False, reason="a switch", hint="do"))
    assert codes({}, no_userns, image) == [ObstacleCode.NO_USER_NAMESPACES] * 3


@pytest.mark.promise("1.3")
@pytest.mark.parametrize("name", ["cpu", "memory", "pids"])
@pytest.mark.parametrize("tier", [Tier.CONTAINER, Tier.GVISOR])
def test_a_container_without_one_of_its_limits_is_refused(
    tier: Tier, name: str, facts: HostFacts, image: ImageFacts
) -> None:
    """Never ignored: no machine around it would bound it otherwise."""
    parents = {other: path for other, path in facts.cgroup.parents.items() if other != name}
    host = replace(facts, cgroup=replace(facts.cgroup, parents=parents, reason=f"{name}: gone"))
    assert codes({"tier": str(tier)}, host, image) == [ObstacleCode.CGROUPS]
    plan = make_plan(Policy(belljar=1, risk=Risk.LOW), host, image)
    assert plan.tier is Tier.MICROVM
    assert any(f"the control groups {name}, which" in why for why in plan.skipped_tiers)


def test_a_lowered_tier_is_refused_even_when_the_model_was_not_asked(
    facts: HostFacts, image: ImageFacts
) -> None:
    """`model_copy` checks nothing, so the plan does."""
    policy = load_preset("high").policy.model_copy(update={"tier": Tier.CONTAINER})
    with pytest.raises(PolicyError, match="less than risk `high` demands"):
        make_plan(policy, facts, image)


RESOURCES = st.builds(
    Resources,
    cpus=st.integers(1, 8),
    memory_bytes=st.integers(64 << 20, 8 << 30),
    disk_bytes=st.integers(16 << 20, 8 << 30),
    processes=st.integers(16, 32768),
)


@given(resources=RESOURCES, hardware=st.booleans())
def test_every_bound_lies_within_the_one_around_it(
    resources: Resources, hardware: bool, facts: HostFacts, image: ImageFacts
) -> None:
    """The workload fits the VM, with its kernel; the VM fits what the jail allows."""
    policy = Policy(belljar=1, risk=Risk.HIGH, resources=resources)
    plan = make_plan(policy, facts if hardware else emulated(facts), image)
    assert isinstance(plan, MicrovmPlan)
    ram_bytes = plan.vm.ram_mib << 20
    assert plan.guest.memory_max_bytes == resources.memory_bytes + resources.disk_bytes
    assert plan.guest.memory_max_bytes + (GUEST_OVERHEAD_MIB << 20) <= ram_bytes
    assert ram_bytes < plan.jail.memory_max_bytes < plan.jail.address_space_bytes
    assert plan.guest.disk_inodes >= 16_384
    assert plan.vm.ram_mib % 2 == 0
    assert plan.vm.vcpus == resources.cpus
    assert plan.limits == resources


def test_hostile_words_are_shown_escaped(facts: HostFacts, image: ImageFacts) -> None:
    """An image's environment and a file's name come from others, and can't act on a terminal."""
    strange = replace(image, env={"A\x1b[2J": "x"}, user="u\u202e", workdir="/\x07")
    policy = Policy(belljar=1, risk=Risk.HIGH, files=(FileCopy(source="a\x1bb", target="c\nd"),))
    text = "\n".join(render_plan(make_plan(policy, facts, strange)))
    assert not {"\x1b", "\u202e", "\x07"} & set(text)
    assert "c\\nd" in text


@pytest.mark.promise("2.4")
@pytest.mark.parametrize(
    ("rights", "tier"),
    [
        ({"seccomp": "unconfined"}, Tier.GVISOR),
        ({"privileged": True}, Tier.GVISOR),
        ({"capabilities": ["SYS_PTRACE"]}, Tier.MICROVM),
    ],
)
def test_rights_are_granted_by_the_least_tier_that_has_them(
    rights: dict[str, Any], tier: Tier, facts: HostFacts, image: ImageFacts
) -> None:
    """In a named tier without them, or where no tier grants them, the plan is refused."""
    policy = Policy.model_validate({"belljar": 1, "risk": "low", "rights": rights}, strict=False)
    plan = make_plan(policy, facts, image)
    assert plan.tier is tier
    assert plan.rights == granted(Rights.model_validate(rights), tier)
    assert plan.skipped_tiers
    assert any(line.lstrip().startswith("rights") for line in render_plan(plan))
    named = {"rights": rights, "tier": "container"}
    assert codes(named, facts, image) == [ObstacleCode.RIGHTS]
    of_none = {"rights": {"capabilities": ["SYS_ADMIN"]}, "risk": "high"}
    assert codes(of_none, facts, image) == [ObstacleCode.RIGHTS]


@pytest.mark.promise("8.1")
def test_what_holds_a_cell_takes_nothing_from_its_workload() -> None:
    """Memory and tasks of the runtime, the agent and gVisor's kernel come on top."""
    few, many = Resources(processes=100), Resources(processes=500)
    for tier, least in ((Tier.CONTAINER, 0), (Tier.GVISOR, 0.4 * 400)):
        limits, overhead_mib = oci_limits(tier, few), oci_overhead_mib(tier, few)
        assert limits.memory_max_bytes - (overhead_mib << 20) == few.memory_bytes + few.disk_bytes
        assert limits.processes >= few.processes + 32
        assert oci_overhead_mib(tier, many) - overhead_mib >= least
    assert oci_overhead_mib(Tier.CONTAINER, many) == oci_overhead_mib(Tier.CONTAINER, few)
    one, more = (vm_shape(Resources(cpus=cpus), emulated=True).ram_mib for cpus in (1, 65))
    assert more - one >= 64 * 1.6


@pytest.mark.parametrize("risk", ["medium", "high"])
def test_no_other_tier_passes_a_gpu_through(risk: str, facts: HostFacts, image: ImageFacts) -> None:
    """Whatever the reason: each tier is refused by name, and none is used in its place."""
    gpu = {"devices": ["/dev/nvidia0"], "reason": "measured"}
    model = {"weights": {"sha256": "ab" * 32}, "gpu": gpu}
    policy = policy_of({"belljar": 1, "risk": risk, "model": model}).policy
    with pytest.raises(ObstacleError) as refused:
        make_plan(policy, facts, image)
    assert {each.code for each in refused.value.obstacles} == {ObstacleCode.GPU}


@pytest.mark.parametrize("user", ["1:65536", "9" * 5000, "65535", "root"])
def test_only_ids_that_a_container_has_will_do(user: str) -> None:
    """Up to 65,535, also of a number that is too long to be read; a microVM has them all."""
    refused = user not in {"65535", "root"}
    for tier in (Tier.CONTAINER, Tier.GVISOR):
        assert any(obstacles.policy_obstacles(tier, None, user, ())) == refused
    assert not any(obstacles.policy_obstacles(Tier.MICROVM, None, user, ()))


def test_what_a_network_lacks_is_named_with_its_hint(facts: HostFacts) -> None:
    """nft, modules, namespaces, and an ordinary user's ids."""
    assert obstacles.network_obstacles(facts) == ()

    def with_nft(**changed: Any) -> HostFacts:  # noqa: ANN401 - facts
        nft = {tool.name: tool for tool in facts.tools}["nft"]
        return replace(facts, tools=(replace(nft, ok=False, **changed),))

    refused = UsernsFact(available=False, reason="a switch", hint="switch it")
    no_ids = IdsFact(available=False, reason="none", hint="add some")
    for host, code in [
        (replace(facts, tools=()), ObstacleCode.TOOL),
        (with_nft(version="0.9", needed_min="1.0.6", hint="get it"), ObstacleCode.TOOL),
        (replace(facts, modules_missing=("dns", "h11")), ObstacleCode.MODULES),
        (replace(facts, network_namespaces_max=0), ObstacleCode.NETWORK_NAMESPACES),
        (replace(facts, open_files_max=300), ObstacleCode.OPEN_FILES),
        (replace(facts, is_root=False, ids=no_ids), ObstacleCode.NO_IDS),
        (replace(facts, is_root=False, userns=refused), ObstacleCode.NO_USER_NAMESPACES),
    ]:
        (obstacle,) = obstacles.network_obstacles(host)
        assert (obstacle.code, obstacle.where) == (code, "network")
        assert obstacle.what
        assert obstacle.hint.endswith("; or write `network: none`")
    assert obstacles.network_obstacles(replace(facts, userns=refused)) == ()
