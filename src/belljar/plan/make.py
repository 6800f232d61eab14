"""Policy + host facts + image → plan: tier, machine or container, limits, layers.

Pure: the same in, the same out, and nothing is weakened to make it fit.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from belljar.dataclass import dataclass, replace
from belljar.host.model import HostFacts, RuntimeFact, TrialState
from belljar.plan import explain
from belljar.plan.jail import JailLimits
from belljar.plan.model import ImageFacts, MicrovmPlan, Obstacle, OciPlan, Plan
from belljar.plan.obstacles import (
    hardware_obstacle,
    network_obstacles,
    policy_obstacles,
    size_obstacles,
    tier_obstacles,
)
from belljar.plan.oci import OciShape, oci_shape, writable_inodes
from belljar.plan.qemu import (
    GuestLimits,
    VmShape,
    vmm_address_space_bytes,
    vmm_memory_max_bytes,
    vmm_processes,
)
from belljar.policy.limits import (
    GRANTABLE,
    NOTHING_GRANTED,
    Granted,
    Resources,
    Risk,
    Tier,
    demanded_tier,
)
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy.model import Policy
    from belljar.policy.sections import Rights

_MIB: Final = 1 << 20
# Of the guest's kernel and agent; with less the guest thrashes.
GUEST_OVERHEAD_MIB: Final = 120
# Host memory of runtime and agent.
OCI_OVERHEAD_MIB: Final = {Tier.CONTAINER: 32, Tier.GVISOR: 192}
# Measured: 0.4 MiB of the host for each process in the cell beside its own memory (the sentry's
# record, stubs, page tables), at 100 and at 300.
_GVISOR_PROCESSES_A_MIB: Final = 2
# Tasks of the runtime and the agent, which are in the same group as the workload.
_CONTAINER_SPARE_TASKS: Final = 32
# With the slope below it is 98 tasks or more above each measurement.
_GVISOR_SPARE_TASKS: Final = 192
# Measured: 46 tasks of the host for one process in the cell, 169 for 50, 318 for 200; threads of a
# process add none.
_GVISOR_TASKS_PER_TWO_PROCESSES: Final = 3
# One part in so many of the RAM is the guest kernel's record of its pages (1/64) and what else
# grows with them.
_PAGE_TABLE_SHARE: Final = 40
# Measured: the guest's kernel takes 1.6 MiB for each of its processors.
_MIB_A_CPU: Final = 2
_RAM_STEP_MIB: Final = 2
# The VMM's own threads (devices, migration) run beside the virtual processors.
_VMM_OWN_CORES: Final = 1


def make_plan(
    policy: Policy,
    facts: HostFacts,
    image: ImageFacts | None,
    *,
    base: Path | None = None,
    has_port: bool = False,
) -> Plan:
    """Plan for the named tier, else the least allowed by risk and host.

    Without `image` the plan can only be shown. `base` is the policy's directory. `has_port`: the
    cell has a port, though its policy names no network. Raises `PolicyError`, `ObstacleError`.
    """
    demanded, network = demanded_tier(policy.risk, policy.tier), None
    if policy.network is not None:
        from belljar.plan.network import plan_network

        network = plan_network(
            policy.network, base, decoys=policy.decoys, open_files_max=facts.open_files_max
        )
        kinds = {item.kind for item in network.stand_ins}
        if found := network_obstacles(facts, kinds) if network.has_cells else ():
            raise explain.ObstacleError(found[0].what, *found)
        network = replace(network, controllers=facts.cgroup.controllers)
    is_attached = network is not None and network.has_own_cell
    user = policy.user or (image.user if image else "root")
    has_port = has_port or is_attached
    isolation, skipped = _choose(policy, facts, demanded, user=user, has_port=has_port)
    env = {**(image.env if image else {}), **policy.env}
    why = "can't be used here (`belljar doctor`)"  # which has the hints
    sentences = tuple(
        printable(f"using tier {isolation.tier}: {weaker} {why}: {each.what}")
        for weaker, each in skipped.items()
    )
    emulated = isolation.emulated
    warnings = (*sentences, *explain.warnings_of(isolation.tier, facts, emulated=emulated))
    if network is not None and network.upstreams:
        hosts = ", ".join(printable(item.host) for item in network.upstreams)
        what = "what the model sends there leaves this host"
        warnings += (f"this range reaches something real ({hosts}): {what}",)
    if image is None:
        warnings = (f"image {printable(policy.image)} is not built", *warnings)
    fields: dict[str, Any] = {
        "policy": policy,
        "risk": policy.risk,
        "demanded_tier": demanded,
        "tier": isolation.tier,
        "emulated": emulated,
        "image": image,
        "layers": explain.layers_of(isolation.tier, emulated=emulated),
        "jail": isolation.jail,
        "jail_controllers": facts.cgroup.controllers,
        "memory_by_rlimit": isolation.memory_by_rlimit,
        "user": user,
        "workdir": policy.workdir or (image.workdir if image else "/"),
        "env": env,
        "hostname": "random",
        "limits": policy.resources,
        "blast_radius": explain.blast_radius(
            policy,
            image,
            env,
            explain.bounds_of(policy.resources, isolation.jail),
            tier=isolation.tier,
            network=network if network is not None and network.has_cells else None,
        ),
        "warnings": warnings,
        "skipped_tiers": sentences,
        "network": network,
        "rights": isolation.rights,
    }
    if isinstance(isolation.shape, OciShape):
        return OciPlan(oci=isolation.shape, **fields)
    return MicrovmPlan(vm=isolation.shape[0], guest=isolation.shape[1], **fields)


def _choose(
    policy: Policy, facts: HostFacts, demanded: Tier, *, user: str, has_port: bool
) -> tuple[Isolation, dict[Tier, Obstacle]]:
    """Return the tier, and why each lower one was skipped."""
    refused: dict[Tier, Obstacle] = {}
    for tier in Tier:
        if tier < demanded or policy.tier not in (None, tier):
            continue
        devices = () if policy.model is None else policy.model.devices
        asked = policy_obstacles(tier, policy.rights, user, devices)
        if found := (*asked, *tier_obstacles(tier, facts)):
            refused[tier] = found[0]
            continue
        isolation = _isolation(tier, policy, facts, has_port=has_port)
        # The tier could run here; whether this policy fits it is another question.
        hardware = hardware_obstacle(facts) if policy.risk is Risk.CRITICAL else None
        sizes = size_obstacles(policy.resources, isolation.jail.memory_max_bytes, facts)
        unfit = hardware or next(sizes, None)
        if unfit is None:
            return isolation, refused
        refused[tier] = unfit
    first, *others = refused.values()
    what = first.what
    # A size is the same matter in all of them.
    if others and not first.where.startswith("resources."):
        whys = "; ".join(f"{tier}: {each.what}" for tier, each in refused.items())
        what = f"no tier that this risk allows can run here: {whys}"
    raise explain.ObstacleError(what, first, *others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    tier: Tier
    jail: JailLimits
    emulated: bool = False
    memory_by_rlimit: bool = False
    rights: Granted = NOTHING_GRANTED
    shape: OciShape | tuple[VmShape, GuestLimits]


def granted(rights: Rights | None, tier: Tier) -> Granted:
    if rights is None:
        return NOTHING_GRANTED
    most = GRANTABLE[tier]
    setuid_programs = most.setuid_programs and rights.setuid_programs != "off"
    if rights.privileged:
        return replace(most, setuid_programs=setuid_programs)
    return Granted(
        capabilities=tuple(name for name in most.capabilities if name in rights.capabilities),
        calls=most.calls if rights.seccomp == "unconfined" else (),
        setuid_programs=setuid_programs,
    )


def _isolation(tier: Tier, policy: Policy, facts: HostFacts, *, has_port: bool) -> Isolation:
    resources, model, rights = policy.resources, policy.model, granted(policy.rights, tier)
    controllers = facts.cgroup.controllers
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
        limits = oci_limits(tier, resources)
        return Isolation(tier=tier, jail=limits, shape=container, rights=rights)
    emulated = facts.kvm.state is not TrialState.PROVEN
    shape = vm_shape(resources, emulated=emulated, has_port=has_port, has_data=model is not None)
    jail = JailLimits(
        memory_max_bytes=vmm_memory_max_bytes(shape),
        # Without the controller the number of threads bounds it.
        cpu_quota_percent=100 * (shape.vcpus + _VMM_OWN_CORES) if "cpu" in controllers else None,
        processes=vmm_processes(shape),
        lifetime_s=resources.lifetime_s,
        address_space_bytes=vmm_address_space_bytes(shape),
    )
    guest = GuestLimits(
        # What the workload writes is memory too.
        memory_max_bytes=resources.memory_bytes + resources.disk_bytes,
        disk_bytes=resources.disk_bytes,
        disk_inodes=writable_inodes(resources),
        processes=resources.processes,
        capabilities=rights.mask,
        debugger_calls=bool(rights.calls),
        setuid_programs=rights.setuid_programs,
    )
    return Isolation(
        tier=tier,
        jail=jail,
        emulated=emulated,
        memory_by_rlimit="memory" not in controllers,
        shape=(shape, guest),
        rights=rights,
    )


def vm_shape(
    resources: Resources, *, emulated: bool, has_port: bool = False, has_data: bool = False
) -> VmShape:
    """Size the VM; its RAM holds processes, files and kernel."""
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
