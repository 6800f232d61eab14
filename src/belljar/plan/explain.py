"""A plan in words: refusals, warnings, the whole. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from belljar.errors import HostError
from belljar.host.model import HostFacts
from belljar.plan.jail import JailLimits
from belljar.plan.model import REAL, BlastRadius, ImageFacts, Layer, Obstacle, OciPlan, Plan
from belljar.plan.network import CATCH_ALL_PORTS, NetworkPlan, PortPlan, plan_network
from belljar.plan.obstacles import KVM_STATES, cores_warning
from belljar.plan.oci import OciRuntime
from belljar.plan.qemu import VmShape
from belljar.policy.guarding import METADATA_ADDRESS
from belljar.policy.limits import WEIGHTS_IN_CELL, Resources, Tier
from belljar.units import format_duration, format_size, printable

if TYPE_CHECKING:
    from belljar.policy.loaded import LoadedPolicy
    from belljar.policy.model import Policy

# ---- obstacles


class ObstacleError(HostError):
    """A refusal for obstacles, of which one is shown first."""

    def __init__(self, what: str, first: Obstacle, *others: Obstacle) -> None:
        super().__init__(what, where=first.where, hint=first.hint)
        self.obstacles = (first, *others)


def warnings_of(tier: Tier, facts: HostFacts, *, emulated: bool) -> Iterator[str]:
    """Yield what the author should know."""
    if tier is Tier.CONTAINER:
        yield (
            "shared kernel: the workload's system calls are answered by this host's kernel, so a "
            "flaw in what they reach is a way out of every layer"
        )
    if emulated:
        yield (
            f"emulated: KVM {KVM_STATES[facts.kvm.state]} ({facts.kvm.reason}). Under emulation "
            f"the VM is not a security boundary by QEMU's own policy; the jail around it is"
        )
    if tier is Tier.MICROVM and facts.cgroup.reason:
        why = printable(facts.cgroup.reason)
        yield f"not all control groups can be used ({why}); the bounds above say what holds instead"
    if tier is not Tier.MICROVM and not facts.is_root:
        yield (
            "all cells of this user share one range of ids: code that escapes from one can act on "
            "the processes of another; run as root, each cell has its own"
        )
    if warning := cores_warning(tier, facts.cores):
        yield warning


# ---- the whole plan; every dynamic string is escaped

_WIDTH: Final = 110
_LABEL_WIDTH: Final = 10
# An image's command may be a whole script.
_MAX_PROGRAM_CHARS: Final = 200


def render_plan(
    plan: Plan, *, width: int = _WIDTH, real: Callable[[str], str] = str
) -> tuple[str, ...]:
    """Return the plan's lines; `real` shows those about real networks in red."""
    import textwrap

    lines: list[str] = []
    for label, text in _blocks(plan):
        wrapped = [printable(text)]
        if label:
            head = f"  {label.strip():<{_LABEL_WIDTH}}"
            wrapped = textwrap.wrap(
                printable(text),
                width,
                initial_indent=head,
                subsequent_indent=" " * len(head),
                # Paths and digests stay whole, so that they can be copied.
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines += map(real, wrapped) if text.startswith(REAL) else wrapped
    return tuple(lines)


def _blocks(plan: Plan) -> Iterator[tuple[str, str]]:
    """(label, text) pairs; a label " " continues the last."""
    image, radius = plan.image, plan.blast_radius
    yield "policy", plan.policy.name
    yield "risk", f"{plan.risk}: at least {plan.demanded_tier}"
    how = "EMULATED (no hardware virtualisation)" if plan.emulated else "hardware virtualisation"
    if isinstance(plan, OciPlan):
        kernel = "gVisor's kernel" if plan.tier is Tier.GVISOR else "this host's kernel, SHARED"
        how = f"{kernel}, by {plan.oci.runtime.name} {plan.oci.runtime.version}"
    yield "tier", f"{plan.tier}, {how}"
    built = f"{image.name} sha256:{image.digest}" if image else f"{plan.policy.image} (not built)"
    yield "image", built
    if image and image.program:
        from belljar.compose.values import SETTLE_S

        settled = f"it has run for {SETTLE_S:g} s, or ended with status 0"
        ready = "the image's health check passes" if image.has_check else settled
        shown = printable(image.program, max_chars=_MAX_PROGRAM_CHARS)
        yield "runs", f"{shown} — before a sample starts, until {ready}"
    if (model := plan.policy.model) is not None:
        server = model.server if isinstance(model.server, str) else shlex.join(model.server)
        shown = printable(server, max_chars=_MAX_PROGRAM_CHARS)
        yield "serves", f"a model by {shown} on its own loopback, port {model.port}"
    if rights := str(plan.rights):
        yield "rights", f"inside the cell, beyond an ordinary container's: {rights}"
    yield "as", f"user {plan.user}, in {plan.workdir}, host name {plan.hostname}"
    yield from _labelled("decoys", _decoys(plan.policy))
    yield "", ""
    yield "", "The cell can, at its worst,"
    yield from _labelled("read", radius.read)
    yield from _labelled("write", radius.write)
    yield from _labelled("reach", radius.reach)
    yield from _labelled("consume", radius.consume)
    yield "", ""
    yield "", "Between it and this host, outermost first:"
    for number, layer in enumerate(plan.layers, 1):
        what = f"{layer.name} ({layer.state}) — {layer.what}; enforced by {layer.enforced_by}"
        yield str(number), what
    if plan.warnings:
        yield "", ""
        yield from _labelled("note", plan.warnings)


def _labelled(label: str, sentences: Iterable[str]) -> Iterator[tuple[str, str]]:
    for index, sentence in enumerate(sentences):
        yield (label if index == 0 else " ", sentence)


def _decoys(policy: Policy) -> Iterator[str]:
    for decoy in policy.decoys:
        from belljar.signals.decoys import FILES  # late: most policies have none

        at = f"{decoy.host}:{decoy.port}" if decoy.is_service else decoy.place
        yield f"{decoy.id} ({decoy.kind}): {at or FILES[decoy.kind][0]}"


# As many as `docker images` shows; `--json` has all.
_SHOWN_DIGITS: Final = 12
_HOST_GROUP: Final = "the host's control group"
_NO_GROUP: Final = "no control group"


_KERNEL: Final = "this host's kernel"


def vm_layers(
    *, emulated: bool, is_root: bool, has_port: bool, has_data: bool = False
) -> tuple[Layer, ...]:
    """What is between a microVM's workload and this host."""
    uid = "a uid that no other user has" if is_root else "this user's own uid on the host"
    device = "one network device, which leads into its range" if has_port else "no network device"
    disks = "two disks" if has_data else "one disk"
    own = (
        "the VMM's own namespaces (all seven), a read-only root with only its files, "
        f"{uid}, no capabilities, no new privileges, seccomp"
    )
    inner = (
        "the workload's own namespaces in the guest, shifted user ids, seccomp, no guest devices, "
        "no modules"
    )
    return (
        Layer("jail", own, _KERNEL, "enforced"),
        Layer(
            "microvm",
            f"a virtual machine with a kernel of its own; {disks}, read-only; {device}",
            "QEMU's emulator (TCG)" if emulated else "the processor (KVM) and QEMU",
            "emulated" if emulated else "hardware",
        ),
        Layer("container", inner, "the guest's kernel", "enforced"),
    )


def oci_layers(
    tier: Tier, runtime: OciRuntime, *, is_root: bool, has_port: bool, has_gpu: bool = False
) -> tuple[Layer, ...]:
    """What is between a container's workload and this host."""
    shared = f"{_KERNEL}, shared"
    namespaces = "all others but the jail's network" if has_port else "all others"
    ids = "a range of ids that no other user has"
    if not is_root:
        ids = "this user's subordinate ids, shared by all of this user's cells"
    program = printable(f"{runtime.name} {runtime.version}".strip())
    jail = (
        "namespaces of the cell's own (all seven), a read-only root with only its files, "
        f"{ids}, no capability outside, control groups"
    )
    wall = (
        f"a second user namespace and {namespaces}, no capability beyond the image's root's, "
        f"no new privileges, system calls denied by default, six devices"
        f"{' and the GPUs' if has_gpu else ''}, covered /proc, no sysfs"
    )
    own = (
        "the policy's user, an empty bounding set unless that is root, no new privileges, a "
        "second system call filter"
    )
    outer = Layer("jail", jail, shared, "shared")
    if tier is not Tier.GVISOR:
        container = Layer("container", wall, f"{shared} (set up by {program})", "shared")
        return (outer, container, Layer("workload", own, shared, "shared"))
    stack = "a network stack of its own on one link" if has_port else "no network"
    wall = f"a kernel in user space; files through a server of its own (gofer), {stack}"
    by = f"gVisor's sentry (systrap; {program}) and its filter of {_KERNEL}'s calls"
    inner = Layer("workload", own, "gVisor's kernel", "enforced")
    return (outer, Layer("gvisor", wall, by, "enforced"), inner)


# ---- bounds: all that a cell may consume, each with what holds it there, nearest first


def _held(what: str, most: str, *by: str) -> str:
    return f"{what}: {most} — held by {', '.join(by)}"


def microvm_bounds(
    resources: Resources, shape: VmShape, jail: JailLimits, controllers: tuple[str, ...]
) -> tuple[str, ...]:
    """A microVM's bounds; `plan --json` has every limit."""
    by = {name: _HOST_GROUP if name in controllers else _NO_GROUP for name in ("cpu", "pids")}
    cpus = f"{resources.cpus}, and one for the VMM"
    if "cpu" not in controllers:
        cpus += "; all of this host's if it is compromised"
    memory = resources.memory_sum(jail.memory_max_bytes)
    by_jail: tuple[str, ...] = (_HOST_GROUP,)
    if "memory" not in controllers:
        # A compromised VMM may fill all its address space, but in one process only.
        memory += f"; {format_size(jail.address_space_bytes)} if the VMM itself is compromised"
        by_jail = ("RLIMIT_AS", _NO_GROUP)
    ram = f"the VM's memory ({format_size(shape.ram_mib << 20)})"
    group = "the guest's control group"
    return (
        _held("processors", cpus, "the VM's shape", by["cpu"]),
        _held("memory", memory, group, ram, *by_jail),
        _held("files it writes", format_size(resources.disk_bytes), "the guest's tmpfs", ram),
        _held("processes", str(resources.processes), group),
        _held("threads on this host", str(jail.processes), "RLIMIT_NPROC", by["pids"]),
        *_time_and_output(resources),
    )


def oci_bounds(resources: Resources, jail: JailLimits) -> tuple[str, ...]:
    """A container's bounds; `plan --json` has every limit."""
    disk = format_size(resources.disk_bytes)
    processes = f"{resources.processes}; {jail.processes} with what holds the cell"
    return (
        _held("processors", str(resources.cpus), _HOST_GROUP),
        _held("memory", resources.memory_sum(jail.memory_max_bytes), _HOST_GROUP),
        _held("files it writes", disk, "the jail's tmpfs", _HOST_GROUP),
        _held("processes", processes, _HOST_GROUP),
        *_time_and_output(resources),
    )


def _time_and_output(resources: Resources) -> tuple[str, ...]:
    lifetime, timeout = map(format_duration, (resources.lifetime_s, resources.exec_timeout_s))
    time = f"{lifetime}; {timeout} for a command, unless it asks for another"
    output = f"{format_size(resources.output_bytes)} a stream; the rest is dropped and counted"
    return (
        _held("time", time, "the jail's supervisor", "a deadline on the host"),
        _held("output kept of a command", output, "the channel's window on the host"),
    )


def _network_bounds(network: NetworkPlan) -> tuple[str, ...]:
    most = network.bounds
    connections = f"{most.connections:,} open at one time, {most.connections_per_cell:,} of one"
    packets = f"{format_size(most.packet_record_bytes)}; a cell that sends more makes the sample"
    events = f"{format_size(most.recorded_bytes)}; a further event ends the range"
    by_rules = ("the range's packet rules", "the gateway")
    return (
        _held("connections to the gateway", f"{connections} cell", *by_rules),
        _held("packet record on this host's disk", f"{packets} void", "the range supervisor"),
        _held("the range's events and bodies in the ledger", events, "the range's owner"),
    )


def blast_radius(
    policy: Policy,
    image: ImageFacts | None,
    env: Mapping[str, str],
    consumed: tuple[str, ...],
    *,
    tier: Tier,
    network: NetworkPlan | None,
) -> BlastRadius:
    """The worst that the cell can do. `consumed`: its tier's bounds."""
    shown = f"{printable(policy.image)} (not built)"
    if image is not None:
        shown = f"{printable(image.name)} (sha256:{image.digest[:_SHOWN_DIGITS]})"
    read = [f"the image {shown}, shared with no one who can write it"]
    read += [
        f"a copy of the file {printable(file.source)}, as {printable(file.target)}"
        for file in policy.files
    ]
    if env:
        read.append(f"the environment: {', '.join(printable(name) for name in sorted(env))}")
    nothing = "no internet, no LAN, no metadata service, no DNS, no other cell"
    reach = [f"no network: {_NO_NETWORK[tier]}, so {nothing}"]
    if network is not None:
        reach = list(_reached(network))
        consumed += _network_bounds(network)
    reach += [
        "this host by one byte pipe, whose every frame is checked",
        *_KERNEL_REACHED[tier],
        f"tools outside of it (MCP servers, web search): {printable(str(policy.host_tools_rule))}",
    ]
    if (model := policy.model) is not None:
        digest = f"sha256:{model.weights.sha256[:_SHOWN_DIGITS]}"
        read.append(f"the weights {digest}, as {WEIGHTS_IN_CELL}, read-only")
        if model.gpu is not None:
            reason = printable(model.gpu.reason or "no reason given")
            read.append("the memory of its GPUs, as far as the driver lets it")
            consumed += ("the GPUs: all of their memory and time; nothing bounds it",)
            reach.append(
                f"this host's graphics driver, code of its kernel, by {', '.join(model.devices)}, "
                f"which no filter looks at; an error in it is a way out ({reason})"
            )
    if policy.host:
        reach.append(
            "nothing beyond this host, which must be air-gapped: checked before the run, watched "
            "during it"
        )
    disk = format_size(policy.resources.disk_bytes)
    write = f"its own copy of the file system, in memory, at most {disk}, gone with the cell"
    nowhere = "nothing on this host, and nothing another cell can read"
    read.append(_HOST_SEEN[tier])
    return BlastRadius(
        read=tuple(read), write=(write, nowhere), reach=tuple(reach), consume=consumed
    )


_HOST_SEEN: Final = {
    Tier.CONTAINER: "of this host, no directory, file or process; but what its kernel shows to "
    "any process: version, processors, memory, load, uptime",
    Tier.GVISOR: "of this host, no directory, file, device or process; the number of its "
    "processors",
    Tier.MICROVM: "nothing of this host: no directory, file, device or process is shared with it",
}
_NO_NETWORK: Final = {
    Tier.CONTAINER: "a network namespace of its own with nothing but its loopback",
    Tier.GVISOR: "gVisor's own stack with nothing but its loopback",
    Tier.MICROVM: "the cell has no network device",
}
_KERNEL_REACHED: Final[Mapping[Tier, tuple[str, ...]]] = {
    Tier.CONTAINER: (
        "this host's kernel, by the system calls of an allow list (`plan --json` has it)",
    ),
    Tier.GVISOR: ("gVisor's kernel; this host's only by what that one asks of it",),
    Tier.MICROVM: (),
}


def _reached(network: NetworkPlan) -> Iterator[str]:
    gateway = "without capabilities or any route"
    if network.upstreams:
        gateway = "which is handed connections to what is called REAL below, by this host"
    yield (
        "a network of the range's own, of which no packet gets out: no internet, no LAN, no "
        "address of this host, no other range; packets to anything else are refused and counted"
    )
    for item in network.stand_ins:
        if item.is_detached:
            yield f"{printable(item.id)} (a cell without a network): by commands alone"
            continue
        names = [printable(name) for name in item.names]
        if item.kind == "metadata":
            names.append(METADATA_ADDRESS)
        by = "a target cell of the range" if item.is_target else "simulated by the gateway"
        ports = "every TCP port" if item.all_ports else _ports(item.ports)
        yield f"{printable(item.id)} ({item.kind}, {by}): {', '.join(names)} on {ports}"
    if network.default == "simulate":
        yield f"ANY other name, on {_ports(CATCH_ALL_PORTS)}: simulated (`default: simulate`)"
    else:
        yield "no other name: it doesn't exist (NXDOMAIN)"
    if network.sink:
        yield "ANY other TCP port of any address: a sink that records and closes (`sink: true`)"
    yield f"the range's gateway, which answers all this: a confined process, {gateway}"
    yield from _real(network)


def _ports(ports: tuple[PortPlan, ...]) -> str:
    return ", ".join(f"{port.number}/{port.protocol}" for port in ports)


def _real(network: NetworkPlan) -> tuple[str, ...]:
    return tuple(
        f"{REAL}{printable(item.host)} on {', '.join(map(str, item.ports))}, by "
        f"{', '.join(item.methods)}, dialled by this host for the gateway; in both directions at "
        f"most {format_size(item.budget_bytes)} for each sample and "
        f"{format_size(item.run_budget_bytes)} for all samples of a run. Why: "
        f"{printable(item.reason)}"
        for item in network.upstreams
    )


def announcements(loaded: LoadedPolicy) -> tuple[str, ...]:
    """A sentence for each real host. Raises as `plan_network`."""
    network = loaded.policy.network
    return () if network is None else _real(plan_network(network, loaded.base))
