"""Policy + host facts + image → plan. Pure: nothing is weakened to make it fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from belljar.dataclass import replace
from belljar.host.model import HostFacts, RuntimeFact, TrialState
from belljar.plan import explain, obstacles
from belljar.plan.jail import JailLimits
from belljar.plan.model import ImageFacts, MicrovmPlan, Obstacle, OciPlan, Plan
from belljar.plan.network import NetworkPlan, plan_network
from belljar.plan.oci import guest_limits, oci_shape
from belljar.plan.qemu import VmShape, vmm_limits
from belljar.policy import limits
from belljar.policy.limits import NOTHING_GRANTED, Granted, Resources, Tier
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy.model import Policy
    from belljar.policy.sections import Rights

_MIB: Final = 1 << 20
GUEST_OVERHEAD_MIB: Final = 120  # of the guest's kernel and agent; with less the guest thrashes
OCI_OVERHEAD_MIB: Final = {Tier.CONTAINER: 32, Tier.GVISOR: 192}  # host memory of runtime and agent
# Measured: 0.4 MiB of the host for each process in the cell beside its own memory (the sentry's
# record, stubs, page tables), at 100 and at 300.
_GVISOR_PROCESSES_A_MIB: Final = 2
_CONTAINER_SPARE_TASKS: Final = 32  # the runtime and the agent are in the workload's group
_GVISOR_SPARE_TASKS: Final = 192  # with the slope below 98 tasks or more above each measurement
# Measured: 46 tasks of the host for one process in the cell, 169 for 50, 318 for 200; threads of a
# process add none.
_GVISOR_TASKS_PER_TWO_PROCESSES: Final = 3
# One part in so many of the RAM is the guest kernel's record of its pages (1/64) and what else
# grows with them.
_PAGE_TABLE_SHARE: Final = 40
_MIB_A_CPU: Final = 2  # measured: the guest's kernel takes 1.6 MiB for each processor
_RAM_STEP_MIB: Final = 2


def make_plan(
    policy: Policy,
    facts: HostFacts,
    image: ImageFacts | None,
    *,
    base: Path | None = None,
    has_port: bool = False,
) -> Plan:
    """Raises `PolicyError`, `ObstacleError`."""
    network = _network(policy, facts, base)
    has_port = has_port or (network is not None and network.has_own_cell)
    user = policy.user or (image.user if image else "root")
    isolation, skipped = _choose(policy, facts, user=user, has_port=has_port)
    tier, emulated = isolation["tier"], isolation["emulated"]
    env = {**(image.env if image else {}), **policy.env}
    sentences = tuple(
        printable(f"using tier {tier}: {weaker} can't be used here (`belljar doctor`): {each.what}")
        for weaker, each in skipped.items()
    )
    unbuilt = () if image else (f"image {printable(policy.image)} is not built",)
    warnings = explain.warnings_of(tier, facts, network, emulated=emulated)
    consumed = explain.bounds_of(policy.resources, isolation["jail"])
    reached = network if network is not None and network.has_cells else None
    kind = MicrovmPlan if tier is Tier.MICROVM else OciPlan
    return kind(
        **isolation,
        policy=policy,
        risk=policy.risk,
        demanded_tier=limits.demanded_tier(policy.risk, policy.tier),
        image=image,
        layers=explain.layers_of(tier, emulated=emulated),
        jail_controllers=facts.cgroup.controllers,
        user=user,
        workdir=policy.workdir or (image.workdir if image else "/"),
        env=env,
        hostname="random",
        limits=policy.resources,
        blast_radius=explain.blast_radius(policy, image, env, consumed, tier=tier, network=reached),
        warnings=(*unbuilt, *sentences, *warnings),
        skipped_tiers=sentences,
        network=network,
    )


def _network(policy: Policy, facts: HostFacts, base: Path | None) -> NetworkPlan | None:
    if policy.network is None:
        return None
    most = facts.open_files_max
    planned = plan_network(policy.network, base, decoys=policy.decoys, open_files_max=most)
    kinds = {item.kind for item in planned.stand_ins}
    if found := obstacles.network_obstacles(facts, kinds) if planned.has_cells else ():
        raise explain.ObstacleError(found[0].what, *found)
    return replace(planned, controllers=facts.cgroup.controllers)


def _choose(
    policy: Policy, facts: HostFacts, *, user: str, has_port: bool
) -> tuple[dict[str, Any], dict[Tier, Obstacle]]:
    """Return the tier's part, and why lower ones were skipped."""
    refused: dict[Tier, Obstacle] = {}
    devices = () if policy.model is None else policy.model.devices
    for tier in Tier:
        if tier < limits.demanded_tier(policy.risk, policy.tier) or policy.tier not in (None, tier):
            continue
        asked = obstacles.policy_obstacles(tier, policy.rights, user, devices)
        if found := (*asked, *obstacles.tier_obstacles(tier, facts)):
            refused[tier] = found[0]
            continue
        isolation = _isolation(tier, policy, facts, has_port=has_port)
        # The tier could run here; whether this policy fits it is another question.
        most_bytes = isolation["jail"].memory_max_bytes
        if (unfit := next(obstacles.fit_obstacles(policy, most_bytes, facts), None)) is None:
            return isolation, refused
        refused[tier] = unfit
    first, *others = refused.values()
    what = first.what
    # A size is the same matter in all of them.
    if others and not first.where.startswith("resources."):
        whys = "; ".join(f"{tier}: {each.what}" for tier, each in refused.items())
        what = f"no tier that this risk allows can run here: {whys}"
    raise explain.ObstacleError(what, first, *others)


def granted(rights: Rights | None, tier: Tier) -> Granted:
    if rights is None:
        return NOTHING_GRANTED
    most = limits.GRANTABLE[tier]
    setuid_programs = most.setuid_programs and rights.setuid_programs != "off"
    if rights.privileged:
        return replace(most, setuid_programs=setuid_programs)
    return Granted(
        capabilities=tuple(name for name in most.capabilities if name in rights.capabilities),
        calls=most.calls if rights.seccomp == "unconfined" else (),
        setuid_programs=setuid_programs,
    )


def _isolation(tier: Tier, policy: Policy, facts: HostFacts, *, has_port: bool) -> dict[str, Any]:
    resources, model, rights = policy.resources, policy.model, granted(policy.rights, tier)
    controllers = facts.cgroup.controllers
    common = {"tier": tier, "rights": rights, "emulated": False, "memory_by_rlimit": False}
    if tier is not Tier.MICROVM:
        runtime = facts.runtime(tier.value)  # `tier_obstacles` asked for one
        container = oci_shape(
            tier,
            runtime or RuntimeFact(tier=tier.value, name="none", kind="runc"),
            resources,
            arch=facts.arch,
            open_files_max=facts.open_files_max,
            rights=rights,
            devices=() if model is None else model.devices,
        )
        return {**common, "jail": oci_limits(tier, resources), "oci": container}
    emulated = facts.kvm.state is not TrialState.PROVEN
    shape = vm_shape(resources, emulated=emulated, has_port=has_port, has_data=model is not None)
    guest = replace(
        guest_limits(resources, rights),
        capabilities=rights.mask,
        setuid_programs=rights.setuid_programs,
    )
    return {
        **common,
        # Without the controller the number of threads bounds it.
        "jail": vmm_limits(shape, resources.lifetime_s, has_cpu_limit="cpu" in controllers),
        "vm": shape,
        "guest": guest,
        "emulated": emulated,
        "memory_by_rlimit": "memory" not in controllers,
    }


def vm_shape(
    resources: Resources, *, emulated: bool, has_port: bool = False, has_data: bool = False
) -> VmShape:
    """RAM holds processes, files and kernel."""
    workload_mib = _up(resources.memory_bytes + resources.disk_bytes, _MIB)
    overhead_mib = GUEST_OVERHEAD_MIB + _MIB_A_CPU * resources.cpus
    ram_mib = workload_mib + _up(workload_mib, _PAGE_TABLE_SHARE) + overhead_mib
    return VmShape(
        vcpus=resources.cpus,
        ram_mib=_up(ram_mib, _RAM_STEP_MIB) * _RAM_STEP_MIB,
        accel="tcg" if emulated else "kvm",
        cpu_model="max" if emulated else "host",
        nic=has_port,
        data_disk=has_data,
    )


def _up(amount: int, step: int) -> int:
    return -(-amount // step)


def oci_overhead_mib(tier: Tier, resources: Resources) -> int:
    of_processes = _up(resources.processes, _GVISOR_PROCESSES_A_MIB) if tier is Tier.GVISOR else 0
    return OCI_OVERHEAD_MIB[tier] + of_processes


def oci_limits(tier: Tier, resources: Resources) -> JailLimits:
    tasks = resources.processes + _CONTAINER_SPARE_TASKS
    if tier is Tier.GVISOR:
        tasks = _up(_GVISOR_TASKS_PER_TWO_PROCESSES * resources.processes, 2) + _GVISOR_SPARE_TASKS
    overhead_bytes = oci_overhead_mib(tier, resources) * _MIB
    memory_bytes = resources.memory_bytes + resources.disk_bytes + overhead_bytes
    return JailLimits(
        memory_max_bytes=memory_bytes,
        cpu_quota_percent=100 * resources.cpus,
        processes=tasks,
        lifetime_s=resources.lifetime_s,
        address_space_bytes=memory_bytes,
    )
