"""What a tier is made of for given resources on a given host: machine or container, limits, layers,
bounds, and what its author should know. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from belljar.dataclass import dataclass
from belljar.host import CgroupVersion, HostFacts, KvmState, RuntimeFact, RuntimeState
from belljar.plan import explain
from belljar.plan.cores import cores_warning
from belljar.plan.jail import (
    JailLimits,
    vmm_address_space_bytes,
    vmm_memory_max_bytes,
    vmm_processes,
)
from belljar.plan.model import Bound, Layer
from belljar.plan.oci import OciRuntime, OciShape, RuntimeKind, oci_shape
from belljar.plan.qemu import GuestLimits, VmShape
from belljar.policy import Resources, Tier
from belljar.policy.limits import GRANTABLE, NOTHING_GRANTED, Granted
from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.policy.sections import Rights

_MIB: Final = 1 << 20
GUEST_OVERHEAD_MIB: Final = 120
"""RAM for the guest's kernel and agent, which the workload can't take: some 60 used at once, a
reserve, and room to work in when the workload has all of its own. With less of it the guest
thrashes for minutes instead of ending a process that takes too much; the agent refuses a machine
that is too small.
"""
OCI_OVERHEAD_MIB: Final = {Tier.CONTAINER: 32, Tier.GVISOR: 192}
"""Host memory of what makes and holds the container: the runtime while it starts and the agent;
gVisor's sentry and gofer all the time.
"""
_GVISOR_PROCESSES_A_MIB: Final = 2
"""Measured: 0.4 MiB of the host for each process in the cell beside its own memory (the sentry's
record, stubs, page tables), at 100 and at 300.
"""
_CONTAINER_SPARE_TASKS: Final = 32
_GVISOR_SPARE_TASKS: Final = 192
_GVISOR_TASKS_PER_TWO_PROCESSES: Final = 3
"""Measured: 46 tasks of the host for one process in the cell, 169 for 50, 318 for 200; threads of a
process add none.
"""
_PAGE_TABLE_SHARE: Final = 40
"""One part in so many of the RAM is the guest kernel's record of its pages (1/64) and what else
grows with them.
"""
_MIB_A_CPU: Final = 2
"""Measured: the guest's kernel takes 1.6 MiB for each of its processors."""
_RAM_STEP_MIB: Final = 2
_BYTES_PER_INODE: Final = 4096
_LEAST_INODES: Final = 16_384
_MOST_INODES: Final = 4_194_304
_VMM_OWN_CORES: Final = 1
"""The VMM's own threads (devices, migration) run beside the virtual processors."""


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
    """The tier for these resources here, as far as this host allows: `tier_obstacles` say whether
    it does.

    Args:
        has_port: the cell is on its range's network.
        rights: what the workload may do inside; the tier's `refusals` are the caller's.
    """
    allowed = granted(rights, tier)
    if tier is Tier.MICROVM:
        return _microvm(resources, facts, allowed, has_port=has_port)
    return _oci(tier, resources, facts, allowed, has_port=has_port)


def _microvm(
    resources: Resources, facts: HostFacts, rights: Granted, *, has_port: bool
) -> Isolation:
    emulated = facts.kvm.state is not KvmState.PROVEN
    shape, controllers = (
        vm_shape(resources, emulated=emulated, has_port=has_port),
        facts.cgroup.controllers,
    )
    jail = jail_limits(resources, shape, controllers)
    return Isolation(
        tier=Tier.MICROVM,
        jail=jail,
        layers=_vm_layers(emulated=emulated, is_root=facts.is_root, has_port=has_port),
        bounds=explain.microvm_bounds(resources, shape, jail, controllers),
        warnings=(
            *explain.vm_warnings(facts, shape, emulated=emulated),
            *_cores(Tier.MICROVM, facts),
        ),
        besides="what a VM needs besides",
        emulated=emulated,
        memory_by_rlimit="memory" not in controllers,
        shape=(shape, guest_limits(resources, rights)),
        rights=rights,
    )


def vm_shape(resources: Resources, *, emulated: bool, has_port: bool = False) -> VmShape:
    """The VM for these resources.

    All state of the guest is in its RAM: what processes use, what is written, and what its kernel
    needs.
    """
    workload_mib = _up(resources.memory_bytes + resources.disk_bytes, _MIB)
    ram_mib = (
        workload_mib
        + GUEST_OVERHEAD_MIB
        + _up(workload_mib, _PAGE_TABLE_SHARE)
        + _MIB_A_CPU * resources.cpus
    )
    ram_mib = _up(ram_mib, _RAM_STEP_MIB) * _RAM_STEP_MIB
    return VmShape(
        vcpus=resources.cpus,
        ram_mib=ram_mib,
        accel="tcg" if emulated else "kvm",
        cpu_model="max" if emulated else "host",
        nic=has_port,
    )


def guest_limits(resources: Resources, rights: Granted) -> GuestLimits:
    """What the guest enforces on the workload.

    Files are memory of the workload too, so that its memory bound is both together.
    """
    inodes = min(max(resources.disk_bytes // _BYTES_PER_INODE, _LEAST_INODES), _MOST_INODES)
    return GuestLimits(
        memory_max_bytes=resources.memory_bytes + resources.disk_bytes,
        disk_bytes=resources.disk_bytes,
        disk_inodes=inodes,
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
    uid = (
        "a uid that no other user has"
        if is_root
        else "this user's own uid on the host (only root can give it another)"
    )
    device = (
        "one network device, which leads into its range and nowhere else"
        if has_port
        else "no network device"
    )
    vm = Layer(
        name="microvm",
        what=f"a virtual machine with a kernel of its own; one disk, read-only; {device}",
        enforced_by="QEMU's emulator (TCG)"
        if emulated
        else "the processor (KVM) and QEMU's few devices",
        state="emulated" if emulated else "hardware",
    )
    return (
        Layer(
            name="jail",
            what="the VMM's own namespaces (user, mount, pid, network, ipc, uts, cgroup), a "
            "read-only root with only its files, "
            f"{uid}, no capabilities, no new privileges, seccomp",
            enforced_by="this host's kernel",
            state="enforced",
        ),
        vm,
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
    runtime = facts.runtime(tier.value) or RuntimeFact(tier=tier.value, name="none", kind="runc")
    shape = oci_shape(
        tier,
        OciRuntime(
            name=runtime.name, kind=_kind(runtime), path=runtime.path, version=runtime.version
        ),
        resources,
        arch=facts.arch,
        open_files_max=facts.open_files_max,
        calls=rights.calls,
    )
    jail = oci_limits(tier, resources)
    return Isolation(
        tier=tier,
        jail=jail,
        layers=_oci_layers(tier, shape.runtime, is_root=facts.is_root, has_port=has_port),
        bounds=explain.oci_bounds(tier, resources, shape, jail),
        warnings=_oci_warnings(tier, runtime, jail, facts),
        besides=f"{oci_overhead_mib(tier, resources)} MiB for what holds the cell",
        shape=shape,
        rights=rights,
    )


def _kind(runtime: RuntimeFact) -> RuntimeKind:
    return "runsc" if runtime.kind == "runsc" else "runc"


def oci_overhead_mib(tier: Tier, resources: Resources) -> int:
    """What the cell's memory group allows besides what the workload may use: in gVisor each process
    costs the host something.
    """
    of_processes = _up(resources.processes, _GVISOR_PROCESSES_A_MIB) if tier is Tier.GVISOR else 0
    return OCI_OVERHEAD_MIB[tier] + of_processes


def oci_limits(tier: Tier, resources: Resources) -> JailLimits:
    """What the host's control groups enforce on a container and all that holds it. gVisor's
    processes are several tasks of the host each.
    """
    of_gvisor = _up(_GVISOR_TASKS_PER_TWO_PROCESSES * resources.processes, 2) + _GVISOR_SPARE_TASKS
    tasks = of_gvisor if tier is Tier.GVISOR else resources.processes + _CONTAINER_SPARE_TASKS
    memory_bytes = (
        resources.memory_bytes + resources.disk_bytes + oci_overhead_mib(tier, resources) * _MIB
    )
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
    namespaces = (
        "all others but the jail's network, over which it has no right"
        if has_port
        else "all others"
    )
    ids = (
        "a range of ids that no other user has"
        if is_root
        else "this user's subordinate ids, shared by all of this user's cells"
    )
    program = printable(f"{runtime.name} {runtime.version}".strip())
    jail = Layer(
        name="jail",
        what="namespaces of the cell's own (user, mount, pid, network, ipc, uts, cgroup), a "
        "read-only root with only its files, "
        f"{ids}, no capability outside, control groups",
        enforced_by="this host's kernel, shared",
        state="shared",
    )
    if gvisor:
        wall = Layer(
            name="gvisor",
            what=f"a kernel of its own in user space; files through a server of its own (gofer), "
            f"{stack}, no host sockets",
            enforced_by=f"gVisor's sentry (systrap; {program}) and its own filter of what it "
            f"asks of this host's kernel",
            state="enforced",
        )
    else:
        wall = Layer(
            name="container",
            what=f"a second user namespace and {namespaces}, no capability beyond the image's "
            f"root's, no new privileges, system calls denied by default, "
            "six devices, covered /proc, no sysfs",
            enforced_by=f"this host's kernel, shared (set up by {program})",
            state="shared",
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
) -> tuple[str, ...]:
    needed_bytes, free_bytes = jail.memory_max_bytes, facts.memory_available_mib * _MIB
    said = (
        (tier is Tier.CONTAINER, _SHARED_KERNEL),
        (not facts.is_root, _SHARED_IDS),
        (
            runtime.state is RuntimeState.UNPROVEN,
            f"{runtime.name} has run no container here yet: `belljar doctor` tries it",
        ),
        (facts.cgroup.version in {CgroupVersion.V1, CgroupVersion.HYBRID}, _GROUPS_V1),
        (
            needed_bytes > free_bytes,
            (
                f"one cell may take {format_size(needed_bytes)} of memory, and "
                f"{format_size(free_bytes)} is free now"
            ),
        ),
    )
    return (*(printable(sentence) for true, sentence in said if true), *_cores(tier, facts))


def _cores(tier: Tier, facts: HostFacts) -> tuple[str, ...]:
    warning = cores_warning(tier, facts.cores)
    return (printable(f"{warning.what}; hint: {warning.hint}"),) if warning else ()


_SHARED_KERNEL: Final = (
    "shared kernel: the workload's system calls are answered by this host's kernel, so a flaw in "
    "what they reach is a way out of every layer"
)
_SHARED_IDS: Final = (
    "all cells of this user share one range of ids: code that escapes from one can act on the "
    "processes of another; run as root, each cell has its own"
)
_GROUPS_V1: Final = (
    "control groups are version 1 here: each limit is in a group of its own, and none ends a cell "
    "as a whole; its process 1 does"
)
