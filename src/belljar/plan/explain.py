"""A plan in words: what the cell can read, write, reach and consume at its worst, what holds it,
and what its author should know. Pure; every dynamic string is escaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from belljar.host import HostFacts
from belljar.plan.jail import JailLimits, vmm_memory_max_bytes
from belljar.plan.model import REAL, BlastRadius, Bound, ImageFacts, OciPlan, Plan
from belljar.plan.oci import MAX_TERMINALS, OPEN_FILES, OciShape
from belljar.plan.qemu import VmShape
from belljar.policy import Resources, Tier
from belljar.units import format_duration, format_size, printable

if TYPE_CHECKING:
    from belljar.plan.network import NetworkPlan
    from belljar.policy import Policy

_WIDTH = 110
_LABEL = 10
_PROGRAM_CHARS = 200
_SHOWN_DIGITS = 12
HOST_GROUP = "the host's control group"
HOST_DISK = Bound(
    what="this host's disk",
    most="nothing but its record, which grows with its output",
    enforced_by=("the jail's read-only root",),
)


def microvm_bounds(
    resources: Resources, shape: VmShape, jail: JailLimits, controllers: tuple[str, ...]
) -> tuple[Bound, ...]:
    """Everything a cell may consume, each with what holds it there."""
    memory_bytes = resources.memory_bytes + resources.disk_bytes
    vm_memory = f"the VM's memory ({format_size(shape.ram_mib << 20)})"
    vmm_threads = (
        f"{HOST_GROUP} and RLIMIT_NPROC"
        if "pids" in controllers
        else "RLIMIT_NPROC; no control group"
    )
    return (
        _processors(resources, jail),
        Bound(
            what="memory and files together",
            most=format_size(memory_bytes),
            enforced_by=("the guest's control group", vm_memory),
        ),
        Bound(
            what="files it writes",
            most=format_size(resources.disk_bytes),
            enforced_by=("the guest's tmpfs (bytes and inodes)", vm_memory),
        ),
        _host_memory(resources, jail, controllers),
        HOST_DISK,
        Bound(
            what="processes in the cell",
            most=str(resources.processes),
            enforced_by=("the guest's control group",),
        ),
        Bound(what="threads on this host", most=str(jail.processes), enforced_by=(vmm_threads,)),
        *time_and_output(resources, agent="the guest agent"),
    )


def time_and_output(resources: Resources, *, agent: str) -> tuple[Bound, ...]:
    """The bounds that hold in the same way in every tier; `agent` is what the tier's is called."""
    return (
        Bound(
            what="time",
            most=format_duration(resources.lifetime_s),
            enforced_by=("the jail's supervisor",),
        ),
        Bound(
            what="time of one command",
            most=f"{format_duration(resources.exec_timeout_s)} unless it asks for another",
            enforced_by=(agent, "a deadline on the host"),
        ),
        Bound(
            what="output kept of one command",
            most=f"{format_size(resources.output_bytes)} a stream; the rest is dropped and counted",
            enforced_by=(agent, "the channel's window on the host"),
        ),
    )


def _host_memory(resources: Resources, jail: JailLimits, controllers: tuple[str, ...]) -> Bound:
    """Without a control group a compromised VMM may fill all its address space, but in one process
    only.
    """
    usual = resources.memory_sum(jail.memory_max_bytes)
    if "memory" in controllers:
        return Bound(what="this host's memory", most=usual, enforced_by=(HOST_GROUP,))
    return Bound(
        what="this host's memory",
        most=f"{usual}; {format_size(jail.address_space_bytes)} if the VMM itself is compromised",
        enforced_by=(
            "the VM's shape",
            "RLIMIT_AS",
            "QEMU's seccomp (one process); no control group",
        ),
    )


def _processors(resources: Resources, jail: JailLimits) -> Bound:
    most = f"{resources.cpus}, and one for the VMM"
    if jail.cpu_quota_percent is None:
        return Bound(
            what="processors",
            most=f"{most}; all of this host's if the VMM itself is compromised",
            enforced_by=("the VM's shape; no control group",),
        )
    return Bound(
        what="processors",
        most=most,
        enforced_by=("the VM's shape", f"{HOST_GROUP} ({jail.cpu_quota_percent}% of one)"),
    )


def blast_radius(
    policy: Policy,
    image: ImageFacts | None,
    env: Mapping[str, str],
    held: tuple[Bound, ...],
    *,
    tier: Tier,
    network: NetworkPlan | None,
) -> BlastRadius:
    """What the cell can do at its worst. Says only what the plan's layers and bounds make true."""
    return BlastRadius(
        read=(
            f"the image {_shown_image(policy, image)}, shared with no one who can write it",
            *(
                f"a copy of the file {printable(file.source)}, as {printable(file.target)}"
                for file in policy.files
            ),
            *(
                (f"the environment: {', '.join(printable(name) for name in sorted(env))}",)
                if env
                else ()
            ),
            _HOST_SEEN[tier],
        ),
        write=(
            (
                f"its own copy of the file system, in memory, at most "
                f"{format_size(policy.resources.disk_bytes)}, gone with the cell"
            ),
            "nothing on this host, and nothing another cell can read",
        ),
        reach=(
            *((_NO_NETWORK[tier],) if network is None else _reach(network)),
            "this host by one byte pipe, whose every frame is checked",
            *_KERNEL_REACHED[tier],
            f"{_HOST_TOOLS}: {printable(str(policy.host_tools_rule))}",
        ),
        consume=tuple(f"{bound.what}: {bound.most}" for bound in held),
    )


_HOST_TOOLS = (
    "through tools of an evaluation that act outside of it (MCP servers, web search, hosted code)"
)
_NOTHING_SHARED = "nothing of this host: no directory, file, device or process is shared with it"
_HOST_SEEN = {
    Tier.CONTAINER: "of this host, no directory, file or process; but what its kernel shows to "
    "any process: version, processors, memory, load, uptime",
    Tier.GVISOR: "of this host, no directory, file, device or process; the number of its "
    "processors",
    Tier.MICROVM: _NOTHING_SHARED,
}
_NO_ROUTE = "so no internet, no LAN, no metadata service, no DNS, no other cell"
_NO_NETWORK = {
    Tier.CONTAINER: f"no network: a network namespace of its own with nothing but its loopback, "
    f"{_NO_ROUTE}",
    Tier.GVISOR: f"no network: gVisor's own stack with nothing but its loopback, {_NO_ROUTE}",
    Tier.MICROVM: f"no network: the cell has no network device, {_NO_ROUTE}",
}
_KERNEL_REACHED: Mapping[Tier, tuple[str, ...]] = {
    Tier.CONTAINER: (
        "this host's kernel, by the system calls of an allow list (`plan --json` has it)",
    ),
    Tier.GVISOR: ("gVisor's kernel; this host's only by what that one asks of it",),
    Tier.MICROVM: (),
}


def common_warnings(
    image: ImageFacts | None, image_name: str, *, skipped: tuple[str, ...]
) -> tuple[str, ...]:
    """What the author should know in any tier."""
    unbuilt = (
        f"image {printable(image_name)} is not built: run `belljar setup` or `belljar image "
        f"build`; user, workdir and env may differ"
    )
    return (
        *((unbuilt,) if image is None else ()),
        *(printable(sentence) for sentence in skipped),
    )


def vm_warnings(facts: HostFacts, shape: VmShape, *, emulated: bool) -> tuple[str, ...]:
    """What the author should know of a microVM here and may not expect.

    Nothing here is weaker than the policy demands.
    """
    needed_bytes, free_bytes = vmm_memory_max_bytes(shape), facts.memory_available_mib << 20
    said = {
        f"emulated: KVM is {facts.kvm.state.value} ({facts.kvm.reason}). Under emulation the VM "
        f"is no security boundary by QEMU's own policy; "
        "the jail around it is": emulated,
        _ungrouped(facts): bool(facts.cgroup.reason),
        f"one cell may take {format_size(needed_bytes)} of memory, and {format_size(free_bytes)} "
        f"is free now": needed_bytes > free_bytes,
        f"the first cell of this shape writes a template of up to "
        f"{format_size(shape.ram_mib << 20)}, and the store has "
        f"{format_size(facts.disk_free_mib << 20)} free": shape.ram_mib > facts.disk_free_mib,
    }
    return tuple(sentence for sentence, true in said.items() if true)


def _ungrouped(facts: HostFacts) -> str:
    reason = printable(facts.cgroup.reason)
    return f"not all control groups can be used ({reason}); the bounds above say what holds instead"


def _shown_image(policy: Policy, image: ImageFacts | None) -> str:
    if image is None:
        return f"{printable(policy.image)} (not built)"
    return f"{printable(image.name)} (sha256:{image.digest[:_SHOWN_DIGITS]})"


def _reach(network: NetworkPlan) -> tuple[str, ...]:
    from belljar.plan.explain_network import reach

    return reach(network)


def oci_bounds(
    tier: Tier, resources: Resources, shape: OciShape, jail: JailLimits
) -> tuple[Bound, ...]:
    """Everything a cell may consume, each with what holds it there: the host first of all."""
    return (
        Bound(
            what="processors",
            most=str(resources.cpus),
            enforced_by=(f"{HOST_GROUP} ({jail.cpu_quota_percent}% of one)",),
        ),
        Bound(
            what="memory and files together",
            most=f"{resources.memory_sum(jail.memory_max_bytes)}{_of_processes(tier)}",
            enforced_by=(HOST_GROUP,),
        ),
        Bound(
            what="files it writes",
            most=f"{format_size(shape.disk_bytes)}, {shape.disk_inodes:,} files{_own_tmp(tier)}",
            enforced_by=("the jail's tmpfs (bytes and inodes)", HOST_GROUP),
        ),
        HOST_DISK,
        _processes(tier, resources, jail),
        Bound(
            what="open files of one process",
            most=f"{_open_files(shape):,}",
            enforced_by=("RLIMIT_NOFILE" if tier is Tier.CONTAINER else "gVisor's RLIMIT_NOFILE",),
        ),
        *(
            (Bound(what="terminals", most=str(MAX_TERMINALS), enforced_by=("the cell's devpts",)),)
            if tier is Tier.CONTAINER
            else ()
        ),
        *time_and_output(resources, agent="the agent"),
    )


def _processes(tier: Tier, resources: Resources, jail: JailLimits) -> Bound:
    if tier is Tier.GVISOR:
        what, most = (
            "processes on this host",
            (
                f"{jail.processes}: gVisor's own, and some for each of {resources.processes} in "
                f"the "
                f"cell"
            ),
        )
    else:
        what, most = (
            "processes",
            f"{jail.processes}: {resources.processes}, and what holds the cell",
        )
    return Bound(what=what, most=most, enforced_by=(HOST_GROUP,))


def _of_processes(tier: Tier) -> str:
    """Measured: 0.7 MiB for a sleeping `sleep`, 4.2 for a Python that sleeps, 5.8 for a fork of
    one.
    """
    return (
        "; a sleeping Python takes 4 to 6 MiB of it, and to use it up ends the cell"
        if tier is Tier.GVISOR
        else ""
    )


def _own_tmp(tier: Tier) -> str:
    """gVisor puts a file system of its own where an image has no /tmp; where it has one, that is in
    the layer.
    """
    return "; as much again in /tmp if the image has none" if tier is Tier.GVISOR else ""


def _open_files(shape: OciShape) -> int:
    limits = {limit["type"]: int(limit["hard"]) for limit in shape.config["process"]["rlimits"]}
    return limits.get("RLIMIT_NOFILE", OPEN_FILES[1])


def render_plan(
    plan: Plan, *, width: int = _WIDTH, real: Callable[[str], str] = str
) -> tuple[str, ...]:
    """What the cell can read, write, reach and consume, which layers are between it and the host,
    and what is emulated.

    `real` is applied to each line of what tells of a real network, so that it can be shown in red.
    """
    shown = (
        (_wrapped(block, width), real if block[1].startswith(REAL) else str)
        for block in _blocks(plan)
    )
    return tuple(show(line) for lines, show in shown for line in lines)


def _blocks(plan: Plan) -> Iterator[tuple[str, str]]:
    """(label, text) pairs; a label that begins with a blank continues the one above; ("", "") is an
    empty line.
    """
    yield ("policy", plan.policy.name)
    yield ("risk", f"{plan.risk}: at least {plan.demanded_tier}")
    yield (
        "tier",
        f"{plan.tier}, {_how(plan)}",
    )
    yield (
        "image",
        f"{plan.image.name} sha256:{plan.image.digest}"
        if plan.image
        else f"{plan.policy.image} (not built)",
    )
    if plan.image and plan.image.program:
        yield ("runs", _program(plan.image))
    if rights := str(plan.rights):
        yield ("rights", f"inside the cell, beyond an ordinary container's: {rights}")
    yield ("as", f"user {plan.user}, in {plan.workdir}, host name {plan.hostname}")
    yield from _labelled("decoys", _decoys(plan.policy))
    yield ("", "")
    yield ("", "The cell can, at its worst,")
    radius = plan.blast_radius
    for label, sentences in (
        ("read", radius.read),
        ("write", radius.write),
        ("reach", radius.reach),
    ):
        yield from _labelled(label, sentences)
    yield from _labelled(
        "consume",
        (
            f"{bound.what}: {bound.most} — held by {', '.join(bound.enforced_by)}"
            for bound in plan.bounds
        ),
    )
    yield ("", "")
    yield ("", "Between it and this host, outermost first:")
    for number, layer in enumerate(plan.layers, 1):
        yield (
            f"{number}",
            f"{layer.name} ({layer.state}) — {layer.what}; enforced by {layer.enforced_by}",
        )
    if plan.warnings:
        yield ("", "")
        yield from _labelled("note", plan.warnings)


def _program(image: ImageFacts) -> str:
    from belljar.compose.values import SETTLE_S

    settled = f"it has run for {SETTLE_S:g} s, or ended with status 0"
    ready = "the image's health check passes" if image.has_check else settled
    shown = printable(image.program, max_chars=_PROGRAM_CHARS)
    return f"{shown} — before a sample starts, until {ready}, unless the task runs another program"


def _decoys(policy: Policy) -> Iterator[str]:
    """Each decoy, its kind and where it will be."""
    if not policy.decoys:
        return
    from belljar.signals.kinds import PLACES

    for decoy in policy.decoys:
        place = (
            f"{decoy.host}:{decoy.port}" if decoy.is_service else decoy.place or PLACES[decoy.kind]
        )
        yield f"{decoy.id} ({decoy.kind}): {place}"


def _how(plan: Plan) -> str:
    if isinstance(plan, OciPlan):
        kernel = (
            "gVisor's kernel on this host's"
            if plan.tier is Tier.GVISOR
            else "this host's kernel, SHARED"
        )
        return f"{kernel}, by {plan.oci.runtime.name} {plan.oci.runtime.version}"
    return (
        "EMULATED (no hardware virtualisation)" if plan.emulated else "with hardware virtualisation"
    )


def _labelled(label: str, sentences: Iterable[str]) -> Iterator[tuple[str, str]]:
    for index, sentence in enumerate(sentences):
        yield (label if index == 0 else " ", sentence)


def _wrapped(block: tuple[str, str], width: int) -> list[str]:
    label, text = block
    if not text:
        return [""]
    if not label:
        return [printable(text)]
    head = f"  {label.strip():<{_LABEL}}"
    return textwrap.wrap(
        printable(text),
        width,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
