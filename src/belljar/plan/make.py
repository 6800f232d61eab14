"""Policy + host facts + image → plan: tier, machine or container, limits, layers.

Pure: the same in, the same out, and nothing is weakened to make it fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from belljar.dataclass import dataclass
from belljar.host import CgroupVersion, HostFacts, KvmState, RuntimeFact, RuntimeState
from belljar.plan import explain
from belljar.plan.jail import (
    JailLimits,
    vmm_address_space_bytes,
    vmm_memory_max_bytes,
    vmm_processes,
)
from belljar.plan.model import Bound, ImageFacts, Layer, MicrovmPlan, OciPlan, Plan
from belljar.plan.obstacles import (
    Obstacle,
    cores_warning,
    hardware_obstacle,
    network_obstacles,
    rights_obstacles,
    size_obstacles,
    tier_obstacles,
)
from belljar.plan.oci import OciRuntime, OciShape, oci_shape, writable_inodes
from belljar.plan.qemu import GuestLimits, VmShape
from belljar.policy import Resources, Tier, demanded_tier, needs_hardware
from belljar.policy.limits import GRANTABLE, NOTHING_GRANTED, Granted
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.plan.network import NetworkPlan
    from belljar.policy import Policy
    from belljar.policy.sections import Rights

NO_IMAGE_USER: Final = "root"
_MIB: Final = 1 << 20
GUEST_OVERHEAD_MIB: Final = 120
"""RAM for the guest's kernel and agent, which the workload can't take: some 60 used at once, a
reserve, and room to work in when the workload has all of its own. With less the guest thrashes for
minutes instead of ending a process that takes too much; the agent refuses too small a machine."""
OCI_OVERHEAD_MIB: Final = {Tier.CONTAINER: 32, Tier.GVISOR: 192}
"""Host memory of what makes and holds the container: the runtime while it starts and the agent;
gVisor's sentry and gofer all the time."""
_GVISOR_PROCESSES_A_MIB: Final = 2
"""Measured: 0.4 MiB of the host for each process in the cell beside its own memory (the sentry's
record, stubs, page tables), at 100 and at 300."""
_CONTAINER_SPARE_TASKS: Final = 32
_GVISOR_SPARE_TASKS: Final = 192
_GVISOR_TASKS_PER_TWO_PROCESSES: Final = 3
"""Measured: 46 tasks of the host for one process in the cell, 169 for 50, 318 for 200; threads of a
process add none."""
_PAGE_TABLE_SHARE: Final = 40
"""One part in so many of the RAM is the guest kernel's record of its pages (1/64) and what else
grows with them."""
_MIB_A_CPU: Final = 2
"""Measured: the guest's kernel takes 1.6 MiB for each of its processors."""
_RAM_STEP_MIB: Final = 2
_VMM_OWN_CORES: Final = 1
"""The VMM's own threads (devices, migration) run beside the virtual processors."""


def make_plan(
    policy: Policy,
    facts: HostFacts,
    image: ImageFacts | None,
    *,
    base: Path | None = None,
    has_port: bool = False,
) -> Plan:
    """What this host will do about the policy.

    A policy that says its tier gets that one or is refused. Else the least tier that its risk
    allows and this host can carry out, with every limit enforced; which were skipped, and why, is
    among the plan's warnings.

    Args:
        image: None: not built; such a plan can be shown, not carried out.
        base: the policy's own directory, needed when its stand-ins have files.
        has_port: the cell is on a range's network though its own policy names none (a target cell).

    Raises:
        PolicyError: the policy asks for a lower tier than its risk demands, or its stand-ins have
            files and there is no `base`.
        HostError: this host can't do what the policy demands. The message says why and what to do.
    """
    demanded = demanded_tier(policy.risk, policy.tier)
    network = _network(policy, facts, base)
    isolation, skipped = _choose(policy, facts, demanded, has_port=has_port or network is not None)
    env = {**(image.env if image else {}), **policy.env}
    bounds, network_warnings = isolation.bounds, tuple[str, ...]()
    if network is not None:
        from belljar.plan import explain_network

        bounds += explain_network.bounds(network)
        network_warnings = explain_network.warnings(network, facts)
    make: Callable[..., Plan]
    match isolation.shape:
        case OciShape() as shape:
            make = partial(OciPlan, oci=shape)
        case vm, guest:
            make = partial(MicrovmPlan, vm=vm, guest=guest)
    return make(
        policy=policy,
        risk=policy.risk,
        demanded_tier=demanded,
        tier=isolation.tier,
        emulated=isolation.emulated,
        image=image,
        layers=isolation.layers,
        jail=isolation.jail,
        jail_controllers=facts.cgroup.controllers,
        memory_by_rlimit=isolation.memory_by_rlimit,
        user=policy.user or (image.user if image else NO_IMAGE_USER),
        workdir=policy.workdir or (image.workdir if image else "/"),
        env=env,
        hostname="random",
        limits=policy.resources,
        bounds=bounds,
        blast_radius=explain.blast_radius(
            policy, image, env, bounds, tier=isolation.tier, network=network
        ),
        warnings=(
            *explain.common_warnings(image, policy.image, skipped=skipped),
            *isolation.warnings,
            *network_warnings,
            *explain.decoy_warnings(policy, isolation.tier, facts),
        ),
        network=network,
        rights=isolation.rights,
        skipped_tiers=tuple(map(printable, skipped)),
    )


def _network(policy: Policy, facts: HostFacts, base: Path | None) -> NetworkPlan | None:
    """The range's network, if the policy has one and this host can make it."""
    if policy.network is None:
        return None
    from belljar.plan.network import plan_network

    network = plan_network(
        policy.network, base, decoys=policy.decoys, open_files_max=facts.open_files_max
    )
    if found := network_obstacles(facts, {item.kind for item in network.stand_ins}):
        raise found[0].error()
    return replace(network, controllers=facts.cgroup.controllers)


def _choose(
    policy: Policy, facts: HostFacts, demanded: Tier, *, has_port: bool
) -> tuple[Isolation, tuple[str, ...]]:
    """The tier, and a sentence for each that was skipped; a hint for several is given once."""
    refused: dict[Tier, Obstacle] = {}
    for tier in Tier:
        if tier < demanded or policy.tier not in (None, tier):
            continue
        if found := (*rights_obstacles(policy.rights, tier), *tier_obstacles(tier, facts)):
            refused[tier] = found[0]
            continue
        isolation = isolation_of(
            tier, policy.resources, facts, has_port=has_port, rights=policy.rights
        )
        if found := _too_much(policy, facts, isolation):
            refused[tier] = found[0]
            continue
        skipped, hints = [], set()
        for weaker, each in refused.items():
            hint = f"; hint: {each.hint}" if each.hint not in hints else ""
            hints.add(each.hint)
            why = f"tier {weaker} can't be used here: {each.what}{hint}"
            skipped.append(f"using tier {tier}: {why}")
        return isolation, tuple(skipped)
    raise _refusal(refused).error()


def _too_much(policy: Policy, facts: HostFacts, isolation: Isolation) -> tuple[Obstacle, ...]:
    """What of this policy, though the tier could run, is more than this host has."""
    hardware = hardware_obstacle(facts) if needs_hardware(policy.risk) else None
    sizes = size_obstacles(
        policy.resources, isolation.jail.memory_max_bytes, facts, besides=isolation.besides
    )
    return (*((hardware,) if hardware is not None else ()), *sizes)


def _refusal(refused: dict[Tier, Obstacle]) -> Obstacle:
    """The least tier's own obstacle, with those of the others that were tried; a size is the same
    matter in all of them."""
    first = next(iter(refused.values()))
    if len(refused) == 1 or first.where.startswith("resources."):
        return first
    whys = "; ".join(f"{tier}: {obstacle.what}" for tier, obstacle in refused.items())
    what = f"no tier that this risk allows can run here: {whys}"
    return Obstacle(what=what, where=first.where, hint=first.hint)


# ---- one tier


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """One tier, decided. `besides` says what takes memory but the workload."""

    tier: Tier
    jail: JailLimits
    layers: tuple[Layer, ...]
    bounds: tuple[Bound, ...]
    warnings: tuple[str, ...]
    besides: str
    emulated: bool = False
    memory_by_rlimit: bool = False
    rights: Granted = NOTHING_GRANTED
    shape: OciShape | tuple[VmShape, GuestLimits]
    """The container; or the machine, and what its guest enforces."""


def granted(rights: Rights | None, tier: Tier) -> Granted:
    """What a cell of this tier gets; `obstacles.refusals` says what it does not get."""
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


def isolation_of(
    tier: Tier,
    resources: Resources,
    facts: HostFacts,
    *,
    has_port: bool = False,
    rights: Rights | None = None,
) -> Isolation:
    """The tier for these resources here, as far as this host allows (see `tier_obstacles`).

    `has_port`: the cell is on its range's network. `rights`: what the workload may do inside.
    """
    make = _microvm if tier is Tier.MICROVM else _oci
    return make(tier, resources, facts, granted(rights, tier), has_port=has_port)


def _microvm(
    tier: Tier, resources: Resources, facts: HostFacts, rights: Granted, *, has_port: bool
) -> Isolation:
    emulated, controllers = facts.kvm.state is not KvmState.PROVEN, facts.cgroup.controllers
    shape = vm_shape(resources, emulated=emulated, has_port=has_port)
    jail = jail_limits(resources, shape, controllers)
    return Isolation(
        tier=tier,
        jail=jail,
        layers=_vm_layers(emulated=emulated, is_root=facts.is_root, has_port=has_port),
        bounds=explain.microvm_bounds(resources, shape, jail, controllers),
        warnings=(*explain.vm_warnings(facts, shape, emulated=emulated), *_cores(tier, facts)),
        besides="what a VM needs besides",
        emulated=emulated,
        memory_by_rlimit="memory" not in controllers,
        shape=(shape, guest_limits(resources, rights)),
        rights=rights,
    )


def vm_shape(resources: Resources, *, emulated: bool, has_port: bool = False) -> VmShape:
    """The VM for these resources: its RAM holds what processes use, what is written, and what its
    kernel needs."""
    workload_mib = _up(resources.memory_bytes + resources.disk_bytes, _MIB)
    overhead_mib = GUEST_OVERHEAD_MIB + _MIB_A_CPU * resources.cpus
    ram_mib = workload_mib + _up(workload_mib, _PAGE_TABLE_SHARE) + overhead_mib
    return VmShape(
        vcpus=resources.cpus,
        ram_mib=_up(ram_mib, _RAM_STEP_MIB) * _RAM_STEP_MIB,
        accel="tcg" if emulated else "kvm",
        cpu_model="max" if emulated else "host",
        nic=has_port,
    )


def guest_limits(resources: Resources, rights: Granted) -> GuestLimits:
    """What the guest enforces on the workload, whose files are memory too."""
    return GuestLimits(
        memory_max_bytes=resources.memory_bytes + resources.disk_bytes,
        disk_bytes=resources.disk_bytes,
        disk_inodes=writable_inodes(resources),
        processes=resources.processes,
        capabilities=rights.mask,
        debugger_calls=bool(rights.calls),
        setuid_programs=rights.setuid_programs,
    )


def jail_limits(resources: Resources, shape: VmShape, controllers: tuple[str, ...]) -> JailLimits:
    """What the host enforces on the VMM.

    Without the `cpu` controller there is no quota: the threads' number bounds it.
    """
    return JailLimits(
        memory_max_bytes=vmm_memory_max_bytes(shape),
        cpu_quota_percent=100 * (shape.vcpus + _VMM_OWN_CORES) if "cpu" in controllers else None,
        processes=vmm_processes(shape),
        lifetime_s=resources.lifetime_s,
        address_space_bytes=vmm_address_space_bytes(shape),
    )


def _up(amount: int, step: int) -> int:
    return -(-amount // step)


def _vm_layers(*, emulated: bool, is_root: bool, has_port: bool) -> tuple[Layer, ...]:
    uid = "this user's own uid on the host (only root can give it another)"
    if is_root:
        uid = "a uid that no other user has"
    device = "no network device"
    if has_port:
        device = "one network device, which leads into its range and nowhere else"
    hardware = "the processor (KVM) and QEMU's few devices"
    return (
        Layer(
            name="jail",
            what="the VMM's own namespaces (user, mount, pid, network, ipc, uts, cgroup), a "
            f"read-only root with only its files, {uid}, no capabilities, no new privileges, "
            "seccomp",
            enforced_by="this host's kernel",
            state="enforced",
        ),
        Layer(
            name="microvm",
            what=f"a virtual machine with a kernel of its own; one disk, read-only; {device}",
            enforced_by="QEMU's emulator (TCG)" if emulated else hardware,
            state="emulated" if emulated else "hardware",
        ),
        Layer(
            name="container",
            what="the workload's own namespaces in the guest, shifted user ids, seccomp, no "
            "guest devices, no modules",
            enforced_by="the guest's kernel",
            state="enforced",
        ),
    )


def _oci(
    tier: Tier, resources: Resources, facts: HostFacts, rights: Granted, *, has_port: bool
) -> Isolation:
    fact = facts.runtime(tier.value) or RuntimeFact(tier=tier.value, name="none", kind="runc")
    runtime = OciRuntime(
        name=fact.name,
        kind="runsc" if fact.kind == "runsc" else "runc",
        path=fact.path,
        version=fact.version,
    )
    shape = oci_shape(
        tier,
        runtime,
        resources,
        arch=facts.arch,
        open_files_max=facts.open_files_max,
        calls=rights.calls,
    )
    jail = oci_limits(tier, resources)
    return Isolation(
        tier=tier,
        jail=jail,
        layers=_oci_layers(tier, runtime, is_root=facts.is_root, has_port=has_port),
        bounds=explain.oci_bounds(tier, resources, shape, jail),
        warnings=(*map(printable, _oci_warnings(tier, fact, jail, facts)), *_cores(tier, facts)),
        besides=f"{oci_overhead_mib(tier, resources)} MiB for what holds the cell",
        shape=shape,
        rights=rights,
    )


def oci_overhead_mib(tier: Tier, resources: Resources) -> int:
    """What the cell's memory group allows besides the workload's: in gVisor each process costs."""
    of_processes = _up(resources.processes, _GVISOR_PROCESSES_A_MIB) if tier is Tier.GVISOR else 0
    return OCI_OVERHEAD_MIB[tier] + of_processes


def oci_limits(tier: Tier, resources: Resources) -> JailLimits:
    """What the host's control groups enforce on a container and all that holds it. gVisor's
    processes are several tasks of the host each."""
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


def _oci_layers(
    tier: Tier, runtime: OciRuntime, *, is_root: bool, has_port: bool
) -> tuple[Layer, ...]:
    gvisor = tier is Tier.GVISOR
    stack = "a network stack of its own on one link, no raw sockets" if has_port else "no network"
    namespaces = "all others"
    if has_port:
        namespaces = "all others but the jail's network, over which it has no right"
    ids = "this user's subordinate ids, shared by all of this user's cells"
    if is_root:
        ids = "a range of ids that no other user has"
    program = printable(f"{runtime.name} {runtime.version}".strip())
    jail = Layer(
        name="jail",
        what="namespaces of the cell's own (user, mount, pid, network, ipc, uts, cgroup), a "
        f"read-only root with only its files, {ids}, no capability outside, control groups",
        enforced_by="this host's kernel, shared",
        state="shared",
    )
    wall = Layer(
        name="container",
        what=f"a second user namespace and {namespaces}, no capability beyond the image's root's, "
        f"no new privileges, system calls denied by default, six devices, covered /proc, no sysfs",
        enforced_by=f"this host's kernel, shared (set up by {program})",
        state="shared",
    )
    if gvisor:
        wall = Layer(
            name="gvisor",
            what=f"a kernel of its own in user space; files through a server of its own (gofer), "
            f"{stack}, no host sockets",
            enforced_by=f"gVisor's sentry (systrap; {program}) and its own filter of what it asks "
            f"of this host's kernel",
            state="enforced",
        )
    own = Layer(
        name="workload",
        what="the policy's user, an empty bounding set unless that is root, no new privileges, a "
        "second system call filter",
        enforced_by="gVisor's kernel" if gvisor else "this host's kernel, shared",
        state="enforced" if gvisor else "shared",
    )
    return (jail, wall, own)


def _oci_warnings(
    tier: Tier, runtime: RuntimeFact, jail: JailLimits, facts: HostFacts
) -> Iterator[str]:
    if tier is Tier.CONTAINER:
        yield (
            "shared kernel: the workload's system calls are answered by this host's kernel, so a "
            "flaw in what they reach is a way out of every layer"
        )
    if not facts.is_root:
        yield (
            "all cells of this user share one range of ids: code that escapes from one can act on "
            "the processes of another; run as root, each cell has its own"
        )
    if runtime.state is RuntimeState.UNPROVEN:
        yield f"{runtime.name} has run no container here yet: `belljar doctor` tries it"
    if facts.cgroup.version in {CgroupVersion.V1, CgroupVersion.HYBRID}:
        yield (
            "control groups are version 1 here: each limit is in a group of its own, and none "
            "ends a cell as a whole; its process 1 does"
        )
    yield from explain.memory_warning(jail.memory_max_bytes, facts)


def _cores(tier: Tier, facts: HostFacts) -> tuple[str, ...]:
    warning = cores_warning(tier, facts.cores)
    return (printable(f"{warning.what}; hint: {warning.hint}"),) if warning else ()
