"""What stands in a tier's way on this host, each with its hint.

Used to refuse a plan, and by `belljar doctor` to say so beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from belljar.dataclass import dataclass
from belljar.errors import HostError
from belljar.host import (
    CgroupVersion,
    CoreFact,
    CoreState,
    HostFacts,
    KvmState,
    RuntimeState,
    ToolFact,
)
from belljar.plan.seccomp import ARCHITECTURES
from belljar.policy import Resources, Tier
from belljar.policy.limits import GRANTABLE
from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.policy.sections import Rights

MIN_KERNEL: Final = (6, 6)
"""For the container tiers: a writable layer on a tmpfs needs its user attributes; what root's
id-mapped layers need (5.19) is older."""
NETWORK_EXTRA_HINT: Final = (
    "install Belljar with its extra `network`: pip install 'belljar-sandbox[network]'"
)
KVM_HINTS: Final = {
    KvmState.UNPROVEN: "run `belljar doctor`, which boots a guest under KVM to prove it",
    KvmState.REFUTED: "use a host whose KVM really boots a guest; `belljar doctor --prove-again` "
    "tries again",
    KvmState.ABSENT: "use a host with hardware virtualisation that this user may use",
}
"""How to get proven hardware virtualisation."""
_CONTROLLERS: Final = ("cpu", "memory", "pids")
_MODULE_OF: Final = {"dulwich": "git", "jsonschema": "openapi", "referencing": "openapi"}
"""The one kind of stand-in that needs a module; what isn't here the gateway itself needs."""
_USUAL_NAMESPACES: Final = 15_000
_RELEASE: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")
_CORES_HINT: Final = "as root: sysctl -w kernel.core_pattern=core"
_NO_RIGHTS: Final = {
    Tier.CONTAINER: "its kernel is this host's",
    Tier.GVISOR: "the guest agent shares the users of its workload",
    Tier.MICROVM: "it could reach the guest agent, whose word counts in verdicts, or open more of "
    "the guest's kernel",
}
"""Why a tier grants no more rights."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One reason why it can't be done here, what to do about it, and where that shows."""

    what: str
    hint: str
    where: str = "host"

    def error(self) -> HostError:
        """As the error that refuses."""
        return HostError(self.what, where=self.where, hint=self.hint)


# ---- tiers


def tier_obstacles(tier: Tier, facts: HostFacts, *, has_port: bool = False) -> tuple[Obstacle, ...]:
    """Why no cell at all, or none on a range's network (`has_port`), can run in the tier here."""
    return tuple(_microvm(facts) if tier is Tier.MICROVM else _oci(tier, facts, has_port=has_port))


def _microvm(facts: HostFacts) -> Iterator[Obstacle]:
    if facts.arch != "x86_64":
        yield Obstacle(
            f"the microvm tier runs on x86_64 so far, and this is {facts.arch}",
            "use an x86_64 host; nothing weaker is used instead",
        )
    yield from _tools_and_userns("microvm", facts)


def _oci(tier: Tier, facts: HostFacts, *, has_port: bool) -> Iterator[Obstacle]:
    if facts.arch not in ARCHITECTURES:
        yield Obstacle(
            f"there is no system call profile for {facts.arch}",
            f"use a host of one of these: {', '.join(ARCHITECTURES)}",
        )
    yield from _runtime(tier, facts, has_port=has_port)
    yield from _tools_and_userns("oci", facts)
    if not facts.ids.available:
        yield Obstacle(
            f"a container needs ids of its own: {facts.ids.reason}",
            f"{facts.ids.hint}; or run as root",
        )
    # A container's limits are its control groups': no machine around it would bound it otherwise.
    missing = [name for name in _CONTROLLERS if name not in facts.cgroup.controllers]
    if missing:
        reason = f" ({facts.cgroup.reason})" if facts.cgroup.reason else ""
        yield Obstacle(
            f"the {tier} tier's limits need the control groups {', '.join(missing)}, which can't "
            f"be used here{reason}",
            _groups_hint(facts, missing),
        )
    match = _RELEASE.match(facts.kernel_release)
    release = (int(match[1]), int(match[2])) if match else ()
    if release < MIN_KERNEL:
        least = ".".join(map(str, MIN_KERNEL))
        shown = ".".join(map(str, release)) or facts.kernel_release
        yield Obstacle(
            f"the {tier} tier needs Linux {least} for its writable layer, and this is {shown}",
            f"use a kernel {least} or newer (Debian 12: linux-image-amd64 from "
            f"bookworm-backports), or the microvm tier",
        )


def _runtime(tier: Tier, facts: HostFacts, *, has_port: bool) -> Iterator[Obstacle]:
    runtime = facts.runtime(tier.value)
    if runtime is None:
        what = f"no OCI runtime for the {tier} tier was looked for"
        yield Obstacle(what, "run `belljar doctor`")
    elif runtime.state is RuntimeState.UNUSABLE:
        yield Obstacle(runtime.reason, runtime.hint)
    elif has_port and runtime.no_port:
        yield Obstacle(
            f"{runtime.name} {runtime.version} runs no container with a network port here: "
            f"{runtime.no_port}",
            "use another runtime or tier, or `network: none`; `belljar doctor` tries it again",
        )
    elif runtime.state is RuntimeState.REFUTED:
        yield Obstacle(
            f"{runtime.name} {runtime.version} ran no container here: {runtime.reason}",
            runtime.hint or "`belljar doctor` tries it again",
        )


def _tools_and_userns(tier: str, facts: HostFacts) -> Iterator[Obstacle]:
    for tool in facts.tools:
        if tool.needed and tool.tier == tier and not tool.ok:
            yield Obstacle(_lack(tool), tool.hint)
    if not facts.userns.available:
        yield Obstacle(
            f"the jail needs user namespaces, which this user can't make: {facts.userns.reason}",
            facts.userns.hint or "run as root",
        )


def _lack(tool: ToolFact) -> str:
    if not tool.path:
        return f"{tool.name} is missing"
    if not tool.version:
        return f"{tool.path} doesn't say its version; {tool.needed_min} or newer is needed"
    return f"{tool.name} {tool.version} is too old: {tool.needed_min} is needed"


def _groups_hint(facts: HostFacts, missing: list[str]) -> str:
    if facts.cgroup.version is CgroupVersion.NONE:
        return "mount the control groups"
    if facts.is_root:
        return (
            f"run where root may make control groups, with {', '.join(missing)} among the kernel's "
            f"controllers"
        )
    if facts.cgroup.version is CgroupVersion.V2:
        return (
            "start it in a group handed to you: systemd-run --user --scope -p Delegate=yes "
            "belljar …; or run as root"
        )
    each, group = f"for c in {' '.join(missing)}; do", f"/sys/fs/cgroup/$c/{facts.uid}"
    given = f"{each} mkdir {group}; chown {facts.uid} {group} {group}/cgroup.procs; done"
    joined = f"{each} echo $$ >{group}/cgroup.procs; done"
    return f"as root: {given}; then in your shell: {joined}; or run as root"


# ---- what a policy asks for


def refusals(rights: Rights | None, tier: Tier) -> Iterator[str]:
    """What of these rights the tier does not grant, as the author wrote it."""
    if rights is None:
        return
    most = GRANTABLE[tier]
    if rights.privileged and not most.calls:
        yield "privileged"
    yield from (f"CAP_{name}" for name in rights.capabilities if name not in most.capabilities)
    if rights.seccomp == "unconfined" and not most.calls:
        yield "seccomp: unconfined"
    if rights.setuid_programs == "on" and not most.setuid_programs:
        yield "set-user-ID programs"


def rights_obstacles(rights: Rights | None, tier: Tier) -> tuple[Obstacle, ...]:
    """Why the tier can't grant the rights that a policy asks for."""
    refused = ", ".join(refusals(rights, tier))
    if not refused:
        return ()
    able = [each.value for each in Tier if not any(refusals(rights, each))]
    what = f"a {tier.value} cell does not grant {refused}: {_NO_RIGHTS[tier]}"
    hint = f"run it in tier {' or '.join(able)}" if able else "leave out what no tier grants"
    return (Obstacle(what, hint, "rights"),)


def hardware_obstacle(facts: HostFacts) -> Obstacle | None:
    """Why risk `critical` can't run here; None when hardware virtualisation is proven."""
    if facts.kvm.state is KvmState.PROVEN:
        return None
    return Obstacle(
        f"risk `critical` demands hardware virtualisation, which is {facts.kvm.state.value} here: "
        f"{facts.kvm.reason}",
        f"{KVM_HINTS[facts.kvm.state]}; or lower `risk` if the risk is lower",
        "risk",
    )


def size_obstacles(
    resources: Resources, most_bytes: int, facts: HostFacts, *, besides: str
) -> Iterator[Obstacle]:
    """Why a cell of this size, which may take `most_bytes`, doesn't fit this host.

    `besides`: what takes memory but the workload.
    """
    if resources.cpus > facts.cpus:
        yield Obstacle(
            f"{resources.cpus} processors are asked for, and this host has {facts.cpus}",
            f"write `cpus: {facts.cpus}` or less, or use a larger host",
            "resources.cpus",
        )
    has_bytes = facts.memory_total_mib << 20
    if most_bytes > has_bytes:
        memory, disk = format_size(resources.memory_bytes), format_size(resources.disk_bytes)
        yield Obstacle(
            f"a cell of this policy may take {format_size(most_bytes)} (memory {memory} + disk "
            f"{disk} + {besides}), and this host has {format_size(has_bytes)}",
            "lower `memory` or `disk` (all a cell writes is held in memory), or use a larger host",
            "resources.memory",
        )


# ---- a range's network


def network_obstacles(
    facts: HostFacts, kinds: Collection[str] | None = None
) -> tuple[Obstacle, ...]:
    """Why no range with a network can be made here, whatever the tier.

    `kinds`: of its stand-ins; None: of all there are.
    """
    return tuple(
        Obstacle(f"a range's network needs {what}", hint, "network")
        for what, hint in _network_needs(facts, kinds)
    )


def _network_needs(facts: HostFacts, kinds: Collection[str] | None) -> Iterator[tuple[str, str]]:
    from belljar.plan.network import GATEWAY_OTHER_FILES

    without = "or write `network: none`"
    tool = facts.tool("nft")
    if tool is None or not tool.ok:
        hint = (tool.hint if tool else "") or "run `belljar setup`, or install nftables"
        yield f"nft: {_lack(tool) if tool else 'nft was not looked for'}", f"{hint}; {without}"
    missing = [
        name
        for name in facts.modules_missing
        if kinds is None or _MODULE_OF.get(name, "") in {"", *kinds}
    ]
    if missing:
        what = f"the Python modules {', '.join(missing)}, which are not installed"
        yield what, NETWORK_EXTRA_HINT
    if not facts.network_namespaces:
        what = "network namespaces, which this kernel doesn't have"
        yield what, f"use a kernel with CONFIG_NET_NS; {without}"
    elif facts.network_namespaces_max == 0:
        hint = f"as root: sysctl -w user.max_net_namespaces={_USUAL_NAMESPACES}; {without}"
        yield "network namespaces, and user.max_net_namespaces is 0", hint
    # A gateway that could take fewer connections than it needs descriptors for itself is not worth
    # starting.
    needed = 2 * GATEWAY_OTHER_FILES
    if facts.open_files_max < needed:
        what = f"{needed} open files for its gateway, and this process may have "
        hint = "raise the hard limit of open files (`ulimit -Hn`, LimitNOFILE= in a systemd unit)"
        yield f"{what}{facts.open_files_max}", f"{hint}; {without}"
    # An ordinary user's namespace belongs to a user namespace with ids for its cells.
    if not facts.is_root and not facts.userns.available:
        what = f"user namespaces, which this user can't make: {facts.userns.reason}"
        yield what, facts.userns.hint or "run as root"
    if not facts.is_root and not facts.ids.available:
        what = f"ids of its own: {facts.ids.reason}"
        yield what, f"{facts.ids.hint}; or run as root; {without}"


# ---- crashes


def cores_warning(tier: Tier, cores: CoreFact) -> Obstacle | None:
    """Where a crash in a cell goes on this host; None when a limit of core dumps keeps it away.

    A container's processes are this host's: the kernel hands their core dumps to what
    `core_pattern` names. In the other tiers only the sentry or the VMM could crash so.
    """
    if cores.state is CoreState.FILE:
        return None
    container = tier is Tier.CONTAINER
    shown = printable(cores.pattern, max_chars=80)
    if cores.state is CoreState.PROGRAM and not cores.can_limit:
        crash = "a crash in a cell" if container else "a crash of what holds the cell"
        return Obstacle(
            f"{crash} starts a program of this host as its root ({shown}): a hard limit of core "
            f"dumps of 0 can't be made 1, at which the kernel starts none",
            f"start Belljar with `ulimit -Hc` of 1 or more; or {_CORES_HINT}",
        )
    if not container:
        return None
    if cores.state is CoreState.SERVER:
        what = (
            f"a crash in a cell is handed to a server of this host ({shown}), and no limit keeps "
            f"the kernel from it"
        )
    else:
        what = (
            f"this host's kernel starts a program as its root when something crashes ({shown}); "
            f"only a cell's limit of core dumps of 1 keeps it from that, and only its system call "
            f"profile keeps that limit"
        )
    return Obstacle(what, _CORES_HINT)
