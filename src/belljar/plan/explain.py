"""A plan in words: refusals, warnings, the whole. Pure."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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


# Every dynamic string is escaped.
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


@cache
def _tiers() -> Mapping[str, Any]:
    return tomllib.loads(Path(__file__).with_name("layers.toml").read_text("utf-8"))


def layers_of(tier: Tier, *, emulated: bool) -> tuple[Layer, ...]:
    layers = (Layer(**each) for each in _tiers()[tier.value]["layers"])
    return tuple(
        replace(layer, enforced_by="QEMU's emulator (TCG)", state="emulated")
        if emulated and layer.state == "hardware"
        else layer
        for layer in layers
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
    own = _tiers()[tier.value]
    reach = [f"no network: {own['no_network']}, so {nothing}"]
    if network is not None:
        reach = list(_reached(network))
        consumed += _network_bounds(network)
    reach += [
        "this host by one byte pipe, whose every frame is checked",
        *own["kernels"],
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
    read.append(own["seen"])
    return BlastRadius(
        read=tuple(read), write=(write, nowhere), reach=tuple(reach), consume=consumed
    )


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
