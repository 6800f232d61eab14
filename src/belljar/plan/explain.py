"""A plan in words: what the cell can read, write, reach and consume at its worst, what holds it,
and what its author should know. Pure; every dynamic string is escaped.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

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

_WIDTH: Final = 110
_LABEL_WIDTH: Final = 10
_MAX_PROGRAM_CHARS: Final = 200
_SHOWN_DIGITS: Final = 12
_HOST_GROUP: Final = "the host's control group"


# ---- bounds: all that a cell may consume, each with what holds it there


def _bound(what: str, most: str, *enforced_by: str) -> Bound:
    return Bound(what=what, most=most, enforced_by=enforced_by)


_HOST_DISK: Final = _bound(
    "this host's disk",
    "nothing but its record, which grows with its output",
    "the jail's read-only root",
)


def microvm_bounds(
    resources: Resources, shape: VmShape, jail: JailLimits, controllers: tuple[str, ...]
) -> tuple[Bound, ...]:
    """Everything a microVM may consume."""
    memory_bytes = resources.memory_bytes + resources.disk_bytes
    vm_memory = f"the VM's memory ({format_size(shape.ram_mib << 20)})"
    cpus = f"{resources.cpus}, and one for the VMM"
    processors = _bound(
        "processors", cpus, "the VM's shape", f"{_HOST_GROUP} ({jail.cpu_quota_percent}% of one)"
    )
    if jail.cpu_quota_percent is None:
        cpus = f"{cpus}; all of this host's if the VMM itself is compromised"
        processors = _bound("processors", cpus, "the VM's shape; no control group")
    memory = resources.memory_sum(jail.memory_max_bytes)
    host_memory = _bound("this host's memory", memory, _HOST_GROUP)
    if "memory" not in controllers:
        # A compromised VMM may fill all its address space, but in one process only.
        host_memory = _bound(
            "this host's memory",
            f"{memory}; {format_size(jail.address_space_bytes)} if the VMM itself is compromised",
            "the VM's shape",
            "RLIMIT_AS",
            "QEMU's seccomp (one process); no control group",
        )
    threads = "RLIMIT_NPROC; no control group"
    if "pids" in controllers:
        threads = f"{_HOST_GROUP} and RLIMIT_NPROC"
    guest_group, tmpfs = "the guest's control group", "the guest's tmpfs (bytes and inodes)"
    return (
        processors,
        _bound("memory and files together", format_size(memory_bytes), guest_group, vm_memory),
        _bound("files it writes", format_size(resources.disk_bytes), tmpfs, vm_memory),
        host_memory,
        _HOST_DISK,
        _bound("processes in the cell", str(resources.processes), guest_group),
        _bound("threads on this host", str(jail.processes), threads),
        *_time_and_output(resources, agent="the guest agent"),
    )


def oci_bounds(
    tier: Tier, resources: Resources, shape: OciShape, jail: JailLimits
) -> tuple[Bound, ...]:
    """Everything a container may consume: the host first of all."""
    memory = resources.memory_sum(jail.memory_max_bytes)
    files = f"{format_size(shape.disk_bytes)}, {shape.disk_inodes:,} files"
    limits = {limit["type"]: int(limit["hard"]) for limit in shape.config["process"]["rlimits"]}
    open_files = f"{limits.get('RLIMIT_NOFILE', OPEN_FILES[1]):,}"
    if tier is Tier.GVISOR:
        # Measured: 0.7 MiB for a sleeping `sleep`, 4.2 for a Python that sleeps, 5.8 for its fork.
        memory += "; a sleeping Python takes 4 to 6 MiB of it, and to use it up ends the cell"
        # gVisor's own file system; where the image has a /tmp, that is in the layer.
        files += "; as much again in /tmp if the image has none"
        more: tuple[Bound, ...] = (
            _bound(
                "processes on this host",
                f"{jail.processes}: gVisor's own, and some for each of {resources.processes} in "
                f"the cell",
                _HOST_GROUP,
            ),
            _bound("open files of one process", open_files, "gVisor's RLIMIT_NOFILE"),
        )
    else:
        tasks = f"{jail.processes}: {resources.processes}, and what holds the cell"
        more = (
            _bound("processes", tasks, _HOST_GROUP),
            _bound("open files of one process", open_files, "RLIMIT_NOFILE"),
            _bound("terminals", str(MAX_TERMINALS), "the cell's devpts"),
        )
    quota = f"{_HOST_GROUP} ({jail.cpu_quota_percent}% of one)"
    return (
        _bound("processors", str(resources.cpus), quota),
        _bound("memory and files together", memory, _HOST_GROUP),
        _bound("files it writes", files, "the jail's tmpfs (bytes and inodes)", _HOST_GROUP),
        _HOST_DISK,
        *more,
        *_time_and_output(resources, agent="the agent"),
    )


def _time_and_output(resources: Resources, *, agent: str) -> tuple[Bound, ...]:
    """The bounds that hold in the same way in every tier; `agent`: what the tier's is called."""
    timeout = f"{format_duration(resources.exec_timeout_s)} unless it asks for another"
    output = f"{format_size(resources.output_bytes)} a stream; the rest is dropped and counted"
    return (
        _bound("time", format_duration(resources.lifetime_s), "the jail's supervisor"),
        _bound("time of one command", timeout, agent, "a deadline on the host"),
        _bound("output kept of one command", output, agent, "the channel's window on the host"),
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
    """What the cell can do at its worst. Says only what the plan's layers and bounds make true."""
    shown = f"{printable(policy.image)} (not built)"
    if image is not None:
        shown = f"{printable(image.name)} (sha256:{image.digest[:_SHOWN_DIGITS]})"
    names = ", ".join(printable(name) for name in sorted(env))
    reached: tuple[str, ...] = (_NO_NETWORK[tier],)
    if network is not None:
        from belljar.plan.explain_network import reach

        reached = reach(network)
    disk = format_size(policy.resources.disk_bytes)
    return BlastRadius(
        read=(
            f"the image {shown}, shared with no one who can write it",
            *(
                f"a copy of the file {printable(file.source)}, as {printable(file.target)}"
                for file in policy.files
            ),
            *((f"the environment: {names}",) if env else ()),
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
        ),
        consume=tuple(f"{bound.what}: {bound.most}" for bound in held),
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


# ---- warnings


def common_warnings(
    image: ImageFacts | None, image_name: str, *, skipped: tuple[str, ...]
) -> tuple[str, ...]:
    """What the author should know in any tier."""
    unbuilt = (
        f"image {printable(image_name)} is not built: run `belljar setup` or `belljar image "
        f"build`; user, workdir and env may differ"
    )
    return (*((unbuilt,) if image is None else ()), *map(printable, skipped))


def vm_warnings(facts: HostFacts, shape: VmShape, *, emulated: bool) -> Iterator[str]:
    """What the author should know of a microVM here; nothing is weaker than the policy demands."""
    if emulated:
        yield (
            f"emulated: KVM is {facts.kvm.state.value} ({facts.kvm.reason}). Under emulation the "
            f"VM is no security boundary by QEMU's own policy; the jail around it is"
        )
    if facts.cgroup.reason:
        why = printable(facts.cgroup.reason)
        yield f"not all control groups can be used ({why}); the bounds above say what holds instead"
    yield from memory_warning(vmm_memory_max_bytes(shape), facts)
    if shape.ram_mib > facts.disk_free_mib:
        ram, free = format_size(shape.ram_mib << 20), format_size(facts.disk_free_mib << 20)
        yield (
            f"the first cell of this shape writes a template of up to {ram}, and the store has "
            f"{free} free"
        )


def memory_warning(needed_bytes: int, facts: HostFacts) -> Iterator[str]:
    """For a cell that may take more memory than is free."""
    free_bytes = facts.memory_available_mib << 20
    if needed_bytes > free_bytes:
        needed, free = format_size(needed_bytes), format_size(free_bytes)
        yield f"one cell may take {needed} of memory, and {free} is free now"


_MAPPED: Final = "a file that is only mapped into memory counts as opened"
_SENSORS: Final = {
    "fanotify": f"a process that ends within a millisecond may stay without a name; {_MAPPED}",
    "inotify": f"no process is known (only root may ask for it); {_MAPPED}",
    "runsc-trace": "files are known by their paths: what is read under a hard link or after a "
    "rename, by sendfile, copy_file_range or splice, or only mapped, is not seen as read",
    "guest-fanotify": f"it is the guest's word, which a guest with a compromised kernel may "
    f"withhold; {_MAPPED}",
}
"""Each sensor of touched decoys, by its name in the record, and what it can't see."""


def decoy_warnings(policy: Policy, tier: Tier, facts: HostFacts) -> tuple[str, ...]:
    """What sees who opens or reads a decoy's file, and what that can't see; none without decoys.

    Whether a decoy is taken, used or sent never depends on it.
    """
    if not policy.decoys:
        return ()
    in_container = "fanotify" if facts.is_root else "inotify"
    others = {Tier.GVISOR: "runsc-trace", Tier.MICROVM: "guest-fanotify"}
    sensor = others.get(tier, in_container)
    return (f"{sensor} sees who opens or reads a decoy; what it can't see: {_SENSORS[sensor]}",)


# ---- the plan as text


def render_plan(
    plan: Plan, *, width: int = _WIDTH, real: Callable[[str], str] = str
) -> tuple[str, ...]:
    """What the cell can read, write, reach and consume, the layers between it and the host, and
    what is emulated.

    `real` is applied to each line about a real network, so that it can be shown in red.
    """
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
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines += map(real, wrapped) if text.startswith(REAL) else wrapped
    return tuple(lines)


def _blocks(plan: Plan) -> Iterator[tuple[str, str]]:
    """(label, text) pairs; label " ": continues the one above; ("", "") is an empty line."""
    image, radius = plan.image, plan.blast_radius
    yield "policy", plan.policy.name
    yield "risk", f"{plan.risk}: at least {plan.demanded_tier}"
    yield "tier", f"{plan.tier}, {_how(plan)}"
    yield (
        "image",
        f"{image.name} sha256:{image.digest}" if image else f"{plan.policy.image} (not built)",
    )
    if image and image.program:
        yield "runs", _program(image)
    if rights := str(plan.rights):
        yield "rights", f"inside the cell, beyond an ordinary container's: {rights}"
    yield "as", f"user {plan.user}, in {plan.workdir}, host name {plan.hostname}"
    yield from _labelled("decoys", _decoys(plan.policy))
    yield "", ""
    yield "", "The cell can, at its worst,"
    yield from _labelled("read", radius.read)
    yield from _labelled("write", radius.write)
    yield from _labelled("reach", radius.reach)
    held = (
        f"{bound.what}: {bound.most} — held by {', '.join(bound.enforced_by)}"
        for bound in plan.bounds
    )
    yield from _labelled("consume", held)
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


def _program(image: ImageFacts) -> str:
    from belljar.compose.values import SETTLE_S

    settled = f"it has run for {SETTLE_S:g} s, or ended with status 0"
    ready = "the image's health check passes" if image.has_check else settled
    shown = printable(image.program, max_chars=_MAX_PROGRAM_CHARS)
    return f"{shown} — before a sample starts, until {ready}, unless the task runs another program"


def _decoys(policy: Policy) -> Iterator[str]:
    """Each decoy, its kind and where it will be."""
    if not policy.decoys:
        return
    from belljar.signals.decoys import PLACES

    for decoy in policy.decoys:
        file = decoy.place or PLACES.get(decoy.kind, "")
        place = f"{decoy.host}:{decoy.port}" if decoy.is_service else file
        yield f"{decoy.id} ({decoy.kind}): {place}"


def _how(plan: Plan) -> str:
    if not isinstance(plan, OciPlan):
        if plan.emulated:
            return "EMULATED (no hardware virtualisation)"
        return "with hardware virtualisation"
    own = plan.tier is Tier.GVISOR
    kernel = "gVisor's kernel on this host's" if own else "this host's kernel, SHARED"
    return f"{kernel}, by {plan.oci.runtime.name} {plan.oci.runtime.version}"
