"""A cell in words: the layers around it, its bounds, and what it can do at its worst. Pure; every
dynamic string is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from belljar.plan.jail import JailLimits
from belljar.plan.model import BlastRadius, Bound, ImageFacts, Layer, bound
from belljar.plan.oci import OciRuntime
from belljar.plan.qemu import VmShape
from belljar.policy.limits import WEIGHTS_IN_CELL, Resources, Tier
from belljar.units import format_duration, format_size, printable

if TYPE_CHECKING:
    from belljar.plan.network import NetworkPlan
    from belljar.policy.model import Policy
    from belljar.policy.serving import Gpu

# As many as `docker images` shows; `--json` has all.
_SHOWN_DIGITS: Final = 12
_HOST_GROUP: Final = "the host's control group"


# ---- layers

_KERNEL: Final = "this host's kernel"


def vm_layers(
    *, emulated: bool, is_root: bool, has_port: bool, has_data: bool = False
) -> tuple[Layer, ...]:
    """What is between a microVM's workload and this host."""
    uid = "this user's own uid on the host (only root can give it another)"
    if is_root:
        uid = "a uid that no other user has"
    device = "no network device"
    if has_port:
        device = "one network device, which leads into its range and nowhere else"
    disks = "two disks" if has_data else "one disk"
    hardware = "the processor (KVM) and QEMU's few devices"
    return (
        Layer(
            name="jail",
            what="the VMM's own namespaces (user, mount, pid, network, ipc, uts, cgroup), a "
            f"read-only root with only its files, {uid}, no capabilities, no new privileges, "
            "seccomp",
            enforced_by=_KERNEL,
            state="enforced",
        ),
        Layer(
            name="microvm",
            what=f"a virtual machine with a kernel of its own; {disks}, read-only; {device}",
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


def oci_layers(
    tier: Tier, runtime: OciRuntime, *, is_root: bool, has_port: bool, has_gpu: bool = False
) -> tuple[Layer, ...]:
    """What is between a container's workload and this host."""
    gvisor, shared = tier is Tier.GVISOR, f"{_KERNEL}, shared"
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
        enforced_by=shared,
        state="shared",
    )
    wall = Layer(
        name="container",
        what=f"a second user namespace and {namespaces}, no capability beyond the image's root's, "
        f"no new privileges, system calls denied by default, six devices"
        f"{' and the GPUs' if has_gpu else ''}, covered /proc, no sysfs",
        enforced_by=f"{shared} (set up by {program})",
        state="shared",
    )
    if gvisor:
        wall = Layer(
            name="gvisor",
            what=f"a kernel of its own in user space; files through a server of its own (gofer), "
            f"{stack}, no host sockets",
            enforced_by=f"gVisor's sentry (systrap; {program}) and its own filter of what it asks "
            f"of {_KERNEL}",
            state="enforced",
        )
    own = Layer(
        name="workload",
        what="the policy's user, an empty bounding set unless that is root, no new privileges, a "
        "second system call filter",
        enforced_by="gVisor's kernel" if gvisor else shared,
        state="enforced" if gvisor else "shared",
    )
    return (jail, wall, own)


# ---- bounds: all that a cell may consume, each with what holds it there


def microvm_bounds(
    resources: Resources, shape: VmShape, jail: JailLimits, controllers: tuple[str, ...]
) -> tuple[Bound, ...]:
    """Everything a microVM may consume; `plan --json` has every limit."""
    by_host, cpus = _HOST_GROUP, f"{resources.cpus}, and one for the VMM"
    if jail.cpu_quota_percent is None:
        by_host, cpus = "no control group", f"{cpus}; all of this host's if it is compromised"
    memory = resources.memory_sum(jail.memory_max_bytes)
    by_jail: tuple[str, ...] = (_HOST_GROUP,)
    if "memory" not in controllers:
        # A compromised VMM may fill all its address space, but in one process only.
        memory += f"; {format_size(jail.address_space_bytes)} if the VMM itself is compromised"
        by_jail = ("RLIMIT_AS", "no control group")
    threads = _HOST_GROUP if "pids" in controllers else "no control group"
    ram = f"the VM's memory ({format_size(shape.ram_mib << 20)})"
    group = "the guest's control group"
    return (
        bound("processors", cpus, "the VM's shape", by_host),
        bound("memory", memory, group, ram, *by_jail),
        bound("files it writes", format_size(resources.disk_bytes), "the guest's tmpfs", ram),
        bound("processes", str(resources.processes), group),
        bound("threads on this host", str(jail.processes), "RLIMIT_NPROC", threads),
        *_time_and_output(resources),
    )


def oci_bounds(tier: Tier, resources: Resources, jail: JailLimits) -> tuple[Bound, ...]:
    """Everything a container may consume; `plan --json` has every limit."""
    memory = resources.memory_sum(jail.memory_max_bytes)
    if tier is Tier.GVISOR:
        # Measured: 0.7 MiB for a sleeping `sleep`, 4.2 for a Python that sleeps, 5.8 for its fork.
        memory += "; a sleeping Python takes 4 to 6 MiB of it, and to use it up ends the cell"
    processes = f"{resources.processes}; {jail.processes} with what holds the cell"
    tmpfs = "the jail's tmpfs"
    return (
        bound("processors", str(resources.cpus), _HOST_GROUP),
        bound("memory", memory, _HOST_GROUP),
        bound("files it writes", format_size(resources.disk_bytes), tmpfs, _HOST_GROUP),
        bound("processes", processes, _HOST_GROUP),
        *_time_and_output(resources),
    )


def _time_and_output(resources: Resources) -> tuple[Bound, ...]:
    """The bounds of every tier."""
    timeout = f"{format_duration(resources.exec_timeout_s)} for a command"
    output = f"{format_size(resources.output_bytes)} a stream; the rest is dropped and counted"
    return (
        bound(
            "time",
            f"{format_duration(resources.lifetime_s)}; {timeout}, unless it asks for another",
            "the jail's supervisor",
            "a deadline on the host",
        ),
        bound("output kept of a command", output, "the channel's window on the host"),
    )


# ---- the blast radius


def blast_radius(
    policy: Policy,
    image: ImageFacts | None,
    env: Mapping[str, str],
    held: tuple[Bound, ...],
    *,
    tier: Tier,
    network: NetworkPlan | None,
) -> BlastRadius:
    """What the cell can do at its worst."""
    shown = f"{printable(policy.image)} (not built)"
    if image is not None:
        shown = f"{printable(image.name)} (sha256:{image.digest[:_SHOWN_DIGITS]})"
    names = ", ".join(printable(name) for name in sorted(env))
    reached: tuple[str, ...] = (_NO_NETWORK[tier],)
    if network is not None:
        from belljar.plan.explain_network import reach

        reached = tuple(reach(network))
    disk = format_size(policy.resources.disk_bytes)
    weights, devices = list[str](), tuple[str, ...]()
    if (model := policy.model) is not None:
        shown_digest = f"sha256:{model.weights.sha256[:_SHOWN_DIGITS]}"
        shared = "read-only; other cells of this model see the same files"
        weights = [f"the weights {shown_digest}, as {WEIGHTS_IN_CELL}, {shared}"]
        devices = model.devices
    return BlastRadius(
        read=(
            f"the image {shown}, shared with no one who can write it",
            *(
                f"a copy of the file {printable(file.source)}, as {printable(file.target)}"
                for file in policy.files
            ),
            *((f"the environment: {names}",) if env else ()),
            *weights,
            *((_GPU_MEMORY,) if devices else ()),
            _HOST_SEEN[tier],
        ),
        write=(
            f"its own copy of the file system, in memory, at most {disk}, gone with the cell",
            "nothing on this host, and nothing another cell can read",
        ),
        reach=(
            *reached,
            "this host by one byte pipe, whose every frame is checked",
            *_KERNEL_REACHED[tier],
            f"{_HOST_TOOLS}: {printable(str(policy.host_tools_rule))}",
            *((_driver(model.gpu, devices),) if model and model.gpu else ()),
            *((_AIR_GAP,) if policy.host else ()),
        ),
        consume=(
            *(f"{each.what}: {each.most}" for each in held),
            *((_GPU_SHARE,) if devices else ()),
        ),
    )


def _driver(gpu: Gpu, devices: tuple[str, ...]) -> str:
    reason = "no reason given" if gpu.reason is None else f"because: {printable(gpu.reason)}"
    return (
        f"this host's graphics driver, code of its kernel, by {', '.join(devices)}: every ioctl "
        f"of it, which no filter looks at; an error in it is a way out ({reason})"
    )


_GPU_MEMORY: Final = (
    "the memory of its GPUs: what programs before it left there, and what those beside it have, as "
    "far as the driver lets it"
)
_GPU_SHARE: Final = "the GPUs: all of their memory and time; nothing bounds it"
_AIR_GAP: Final = (
    "nothing beyond this host, which must be air-gapped: checked before the run, watched during it"
)
_HOST_TOOLS: Final = (
    "through tools of an evaluation that act outside of it (MCP servers, web search, hosted code)"
)
_HOST_SEEN: Final = {
    Tier.CONTAINER: "of this host, no directory, file or process; but what its kernel shows to "
    "any process: version, processors, memory, load, uptime",
    Tier.GVISOR: "of this host, no directory, file, device or process; the number of its "
    "processors",
    Tier.MICROVM: "nothing of this host: no directory, file, device or process is shared with it",
}
_NO_ROUTE: Final = "so no internet, no LAN, no metadata service, no DNS, no other cell"
_NO_NETWORK: Final = {
    Tier.CONTAINER: f"no network: a network namespace of its own with nothing but its loopback, "
    f"{_NO_ROUTE}",
    Tier.GVISOR: f"no network: gVisor's own stack with nothing but its loopback, {_NO_ROUTE}",
    Tier.MICROVM: f"no network: the cell has no network device, {_NO_ROUTE}",
}
_KERNEL_REACHED: Final[Mapping[Tier, tuple[str, ...]]] = {
    Tier.CONTAINER: (
        "this host's kernel, by the system calls of an allow list (`plan --json` has it)",
    ),
    Tier.GVISOR: ("gVisor's kernel; this host's only by what that one asks of it",),
    Tier.MICROVM: (),
}
