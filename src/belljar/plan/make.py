"""Policy + host facts + image → plan. A pure function: the same in, the same out, and nothing is weakened to make it fit."""

from __future__ import annotations

from typing import Final

from belljar.host import HostFacts, KvmState
from belljar.plan import radius
from belljar.plan.jail import JailLimits, vmm_address_space_bytes, vmm_memory_max_bytes, vmm_processes
from belljar.plan.model import ImageFacts, Layer, Plan
from belljar.plan.obstacles import hardware_obstacle, microvm_obstacles, size_obstacles
from belljar.plan.qemu import GuestLimits, VmShape
from belljar.policy import Policy, Resources, Tier, demanded_tier, needs_hardware

_MIB: Final = 1 << 20
GUEST_OVERHEAD_MIB: Final = 96
"""RAM for the guest's kernel and agent, which the workload can't take."""
_PAGE_TABLE_SHARE: Final = 50
"""One part in so many of the RAM is the guest kernel's record of its pages."""
_RAM_STEP_MIB: Final = 2
_BYTES_PER_INODE: Final = 4096
_LEAST_INODES: Final = 16_384
_MOST_INODES: Final = 4_194_304
_VMM_OWN_CORES: Final = 1
"""The VMM's own threads (devices, migration) run beside the virtual processors."""
BUILT_TIERS: Final = (Tier.MICROVM,)
NO_IMAGE_USER: Final = "root"


def make_plan(policy: Policy, facts: HostFacts, image: ImageFacts | None) -> Plan:
    """What this host will do about the policy. `image` None: not built; such a plan can be shown, not carried out.

    Raises:
        PolicyError: the policy asks for a lower tier than its risk demands.
        HostError: this host can't do what the policy demands. The message says why and what to do.
    """
    demanded = demanded_tier(policy.risk, policy.tier)
    emulated = facts.kvm.state is not KvmState.PROVEN
    shape = vm_shape(policy.resources, emulated=emulated)
    _refuse(policy, facts, shape)
    controllers = facts.cgroup.controllers
    jail = jail_limits(policy.resources, shape, controllers)
    guest = guest_limits(policy.resources)
    user, workdir = (
        policy.user or (image.user if image else NO_IMAGE_USER),
        policy.workdir or (image.workdir if image else "/"),
    )
    env = {**(image.env if image else {}), **policy.env}
    bounds = radius.bounds(policy.resources, shape, jail, controllers)
    return Plan(
        policy=policy,
        risk=policy.risk,
        demanded_tier=demanded,
        tier=_built_tier(demanded),
        emulated=emulated,
        image=image,
        layers=_layers(emulated=emulated, is_root=facts.is_root),
        vm=shape,
        guest=guest,
        jail=jail,
        jail_controllers=controllers,
        memory_by_rlimit="memory" not in controllers,
        user=user,
        workdir=workdir,
        env=env,
        hostname="random",
        limits=policy.resources,
        bounds=bounds,
        blast_radius=radius.blast_radius(policy, image, env, bounds),
        warnings=radius.warnings(
            facts, image, policy.image, shape, demanded=demanded, tier=_built_tier(demanded), emulated=emulated
        ),
    )


def vm_shape(resources: Resources, *, emulated: bool) -> VmShape:
    """The VM for these resources. All state of the guest is in its RAM: what processes use, what is written, and what its kernel needs."""
    workload_mib = _up(resources.memory_bytes + resources.disk_bytes, _MIB)
    ram_mib = workload_mib + GUEST_OVERHEAD_MIB + _up(workload_mib, _PAGE_TABLE_SHARE)
    ram_mib = _up(ram_mib, _RAM_STEP_MIB) * _RAM_STEP_MIB
    return VmShape(
        vcpus=resources.cpus,
        ram_mib=ram_mib,
        accel="tcg" if emulated else "kvm",
        cpu_model="max" if emulated else "host",
    )


def guest_limits(resources: Resources) -> GuestLimits:
    """What the guest enforces on the workload. Files are memory of the workload too, so that its memory bound is both together."""
    inodes = min(max(resources.disk_bytes // _BYTES_PER_INODE, _LEAST_INODES), _MOST_INODES)
    return GuestLimits(
        memory_max_bytes=resources.memory_bytes + resources.disk_bytes,
        disk_bytes=resources.disk_bytes,
        disk_inodes=inodes,
        processes=resources.processes,
    )


def jail_limits(resources: Resources, shape: VmShape, controllers: tuple[str, ...]) -> JailLimits:
    """What the host enforces on the VMM. Without the `cpu` controller there is no quota: the threads' number bounds it."""
    return JailLimits(
        memory_max_bytes=vmm_memory_max_bytes(shape),
        cpu_quota_percent=100 * (shape.vcpus + _VMM_OWN_CORES) if "cpu" in controllers else None,
        processes=vmm_processes(shape),
        lifetime_s=resources.lifetime_s,
        address_space_bytes=vmm_address_space_bytes(shape),
    )


def _up(amount: int, step: int) -> int:
    return -(-amount // step)


def _built_tier(demanded: Tier) -> Tier:
    return next(tier for tier in BUILT_TIERS if tier >= demanded)


def _refuse(policy: Policy, facts: HostFacts, shape: VmShape) -> None:
    obstacles = list(microvm_obstacles(facts))
    if needs_hardware(policy.risk) and (hardware := hardware_obstacle(facts)) is not None:
        obstacles.append(hardware)
    obstacles.extend(size_obstacles(policy.resources, shape, facts))
    if obstacles:
        raise obstacles[0].error()


def _layers(*, emulated: bool, is_root: bool) -> tuple[Layer, ...]:
    uid = "a uid that is nobody's" if is_root else "this user's own uid on the host (only root can give it another)"
    vm = Layer(
        name="microvm",
        what="a virtual machine with a kernel of its own; one disk, read-only; no network device",
        enforced_by="QEMU's emulator (TCG)" if emulated else "the processor (KVM) and QEMU's few devices",
        state="emulated" if emulated else "hardware",
    )
    return (
        Layer(
            name="jail",
            what="the VMM's own namespaces (user, mount, pid, network, ipc, uts, cgroup), a read-only root with only its files, "
            f"{uid}, no capabilities, no new privileges, seccomp",
            enforced_by="this host's kernel",
            state="enforced",
        ),
        vm,
        Layer(
            name="container",
            what="the workload's own namespaces in the guest, shifted user ids, seccomp, no guest devices, no modules",
            enforced_by="the guest's kernel",
            state="enforced",
        ),
    )
