"""A plan in words: refusals, warnings, the whole. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from belljar.dataclass import replace
from belljar.errors import HostError
from belljar.host.model import HostFacts
from belljar.plan.jail import JailLimits
from belljar.plan.model import REAL, BlastRadius, ImageFacts, Layer, Obstacle, OciPlan, Plan
from belljar.plan.network import CATCH_ALL_PORTS, NetworkPlan, PortPlan, plan_network
from belljar.plan.obstacles import KVM_STATES, cores_warning
from belljar.policy.guarding import METADATA_ADDRESS
from belljar.policy.limits import WEIGHTS_IN_CELL, Resources, Tier
from belljar.units import format_duration, format_size, printable

if TYPE_CHECKING:
    from belljar.policy.loaded import LoadedPolicy
    from belljar.policy.model import Policy

# ---- obstacles


class ObstacleError(HostError):
    """Its first obstacle is shown."""

    def __init__(self, what: str, first: Obstacle, *others: Obstacle) -> None:
        super().__init__(what, where=first.where, hint=first.hint)
        self.obstacles = (first, *others)


def warnings_of(
    tier: Tier, facts: HostFacts, network: NetworkPlan | None, *, emulated: bool
) -> Iterator[str]:
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
        more = "a compromised VMM could take more than is said above"
        yield f"not all control groups can be used ({why}): {more}"
    if tier is not Tier.MICROVM and not facts.is_root:
        yield (
            "all cells of this user share one range of ids: code that escapes from one can act on "
            "the processes of another; run as root, each cell has its own"
        )
    if warning := cores_warning(tier, facts.cores):
        yield warning
    if network is not None and network.upstreams:
        hosts = ", ".join(printable(item.host) for item in network.upstreams)
        what = "what the model sends there leaves this host"
        yield f"this range reaches something real ({hosts}): {what}"


# ---- the whole plan; every dynamic string is escaped

_LABEL_WIDTH: Final = 10
_MAX_PROGRAM_CHARS: Final = 200  # an image's command may be a whole script


def render_plan(
    plan: Plan, *, width: int = 110, real: Callable[[str], str] = str
) -> tuple[str, ...]:
    import textwrap

    lines: list[str] = []
    for label, *texts in _blocks(plan):
        for index, text in enumerate(texts):
            wrapped, head = [printable(text)], f"  {'' if index else label:<{_LABEL_WIDTH}}"
            if label:
                wrapped = textwrap.wrap(
                    wrapped[0],
                    width,
                    initial_indent=head,
                    subsequent_indent=" " * len(head),
                    break_long_words=False,  # paths and digests can be copied
                    break_on_hyphens=False,
                )
            lines += map(real, wrapped) if text.startswith(REAL) else wrapped
    return tuple(lines)


def _blocks(plan: Plan) -> Iterator[tuple[str, ...]]:
    """Yield labels with their texts; those of "" are not wrapped."""
    image, radius = plan.image, plan.blast_radius
    yield "policy", plan.policy.name
    yield "risk", f"{plan.risk}: at least {plan.demanded_tier}"
    how = "EMULATED (no hardware virtualisation)" if plan.emulated else "hardware virtualisation"
    if isinstance(plan, OciPlan):
        how = f"by {plan.oci.runtime.name} {plan.oci.runtime.version}"
    yield "tier", f"{plan.tier}, {how}"
    built = f"{image.name} sha256:{image.digest}" if image else f"{plan.policy.image} (not built)"
    yield "image", built
    if image and image.program:
        ready = "its health check passes" if image.has_check else "it has settled"
        shown = printable(image.program, max_chars=_MAX_PROGRAM_CHARS)
        yield "runs", f"{shown} — before a sample starts, until {ready}"
    if (model := plan.policy.model) is not None:
        server = model.server if isinstance(model.server, str) else shlex.join(model.server)
        shown = printable(server, max_chars=_MAX_PROGRAM_CHARS)
        yield "serves", f"a model by {shown} on its own loopback, port {model.port}"
    if rights := str(plan.rights):
        yield "rights", f"inside the cell, beyond an ordinary container's: {rights}"
    yield "as", f"user {plan.user}, in {plan.workdir}, host name {plan.hostname}"
    yield "decoys", *_decoys(plan.policy)
    yield "", "", "The cell can, at its worst,"
    for label in ("read", "write", "reach", "consume"):
        yield label, *getattr(radius, label)
    yield "", "", "Between it and this host, outermost first:"
    for number, layer in enumerate(plan.layers, 1):
        what = f"{layer.name} ({layer.state}) — {layer.what}; enforced by {layer.enforced_by}"
        yield str(number), what
    if plan.warnings:
        yield "", ""
        yield "note", *plan.warnings


def _decoys(policy: Policy) -> Iterator[str]:
    for decoy in policy.decoys:
        from belljar.signals.decoys import FILES  # late: most policies have none

        at = f"{decoy.host}:{decoy.port}" if decoy.is_service else decoy.place
        yield f"{decoy.id} ({decoy.kind}): {at or FILES[decoy.kind][0]}"


_SHOWN_DIGITS: Final = 12  # as many as `docker images` shows; `--json` has all

# ---- layers and bounds

_SHARED: Final = "this host's kernel, shared"
_JAIL: Final = (
    "namespaces of the cell's own (all seven), a read-only root with only its files, ids that no "
    "other user has (this user's subordinate ids, unless root runs it), no capability outside, "
    "control groups"
)
_CONTAINER: Final = (
    "a second user namespace and all others (but the network's, in a range), no capability beyond "
    "the image's root's, no new privileges, system calls denied by default, six devices and the "
    "policy's GPUs, covered /proc, no sysfs"
)
_WORKLOAD: Final = (
    "the policy's user, an empty bounding set unless that is root, no new privileges, a second "
    "system call filter"
)
# Of each tier, outermost first: name, what it is, who enforces it, and how good that is.
_LAYERS: Final[Mapping[Tier, tuple[Layer, ...]]] = {
    Tier.CONTAINER: (
        Layer("jail", _JAIL, _SHARED, "shared"),
        Layer("container", _CONTAINER, _SHARED, "shared"),
        Layer("workload", _WORKLOAD, _SHARED, "shared"),
    ),
    Tier.GVISOR: (
        Layer("jail", _JAIL, _SHARED, "shared"),
        Layer(
            "gvisor",
            "a kernel in user space; files through a server of its own (gofer), a network stack of "
            "its own",
            "gVisor's sentry (systrap) and its filter of this host's system calls",
            "enforced",
        ),
        Layer("workload", _WORKLOAD, "gVisor's kernel", "enforced"),
    ),
    Tier.MICROVM: (
        Layer(
            "jail",
            "the VMM's own namespaces (all seven), a read-only root with only its files, a uid "
            "that no other user has (this user's own, unless root runs it), no capabilities, no "
            "new privileges, seccomp",
            "this host's kernel",
            "enforced",
        ),
        Layer(
            "microvm",
            "a virtual machine with a kernel of its own; its disks are read-only, and only a "
            "range's cell has a network device",
            "the processor (KVM) and QEMU",
            "hardware",
        ),
        Layer(
            "container",
            "the workload's own namespaces in the guest, shifted user ids, seccomp, no guest "
            "devices, no modules",
            "the guest's kernel",
            "enforced",
        ),
    ),
}


def layers_of(tier: Tier, *, emulated: bool) -> tuple[Layer, ...]:
    return tuple(
        replace(layer, enforced_by="QEMU's emulator (TCG)", state="emulated")
        if emulated and layer.state == "hardware"
        else layer
        for layer in _LAYERS[tier]
    )


def bounds_of(resources: Resources, jail: JailLimits) -> tuple[str, ...]:
    lifetime, timeout = map(format_duration, (resources.lifetime_s, resources.exec_timeout_s))
    quota, host = jail.cpu_quota_percent, "of this host's"
    processors = f"at most {quota // 100} {host}" if quota else f"any {host}, if it is compromised"
    return (
        f"processors: {resources.cpus}; {processors}",
        f"memory: {resources.memory_sum(jail.memory_max_bytes)}",
        f"files it writes: {format_size(resources.disk_bytes)}, held in memory",
        f"processes: {resources.processes}; at most {jail.processes} {host} processes and threads",
        f"time: {lifetime}; {timeout} for a command, unless it asks for another",
        f"output kept of a command: {format_size(resources.output_bytes)} a stream",
    )


def _network_bounds(network: NetworkPlan) -> tuple[str, ...]:
    most = network.bounds
    packets, events = map(format_size, (most.packet_record_bytes, most.recorded_bytes))
    return (
        f"connections to the gateway: {most.connections:,}, {most.connections_per_cell:,} a cell",
        f"packet record: {packets}; a cell that sends more makes the sample void",
        f"the range's events and bodies: {events}; a further event ends the range",
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
    seen, no_network, kernel = _OF_TIER[tier]
    reach = [f"no network: {no_network}, so {nothing}"]
    if network is not None:
        reach = list(_reached(network))
        consumed += _network_bounds(network)
    reach += [
        "this host by one byte pipe, whose every frame is checked",
        *kernel,
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
    read.append(seen)
    return BlastRadius(
        read=tuple(read), write=(write, nowhere), reach=tuple(reach), consume=consumed
    )


# Of each tier: what is seen of the host, why there is no network, and which kernel is reached.
_OF_TIER: Final[Mapping[Tier, tuple[str, str, tuple[str, ...]]]] = {
    Tier.CONTAINER: (
        "no directory, file or process of this host; its kernel's version, memory, load, uptime",
        "a network namespace of its own with nothing but its loopback",
        ("this host's kernel, by the system calls of an allow list (`plan --json` has it)",),
    ),
    Tier.GVISOR: (
        "no directory, file, device or process of this host; the number of its processors",
        "gVisor's own stack with nothing but its loopback",
        ("gVisor's kernel; this host's only by what that one asks of it",),
    ),
    Tier.MICROVM: (
        "nothing of this host: no directory, file, device or process",
        "the cell has no network device",
        (),
    ),
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
    """Raises as `plan_network`."""
    network = loaded.policy.network
    return () if network is None else _real(plan_network(network, loaded.base))
