"""What stands in a tier's way on this host: each obstacle's code, sentence and hint.

Used to refuse a plan, and by `belljar doctor` to say so beforehand.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from belljar.dataclass import replace
from belljar.host.model import (
    CgroupVersion,
    CoreFact,
    CoreState,
    HostFacts,
    IdsFact,
    ToolFact,
    TrialState,
    UsernsFact,
)
from belljar.plan.model import Obstacle, ObstacleCode
from belljar.plan.oci import ARCHITECTURES, ID_COUNT
from belljar.policy.limits import GRANTABLE, Resources, Tier
from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.policy.sections import Rights

# For the container tiers: a tmpfs with user attributes.
MIN_KERNEL: Final = (6, 6)
# Every bound of a container on what the host has is held by one of them.
_CONTROLLERS: Final = ("cpu", "memory", "pids")
# The kind of stand-in that needs a module.
MODULE_OF: Final = {"asyncssh": "ssh", "dulwich": "git", "jinja2": "http", "packaging": "pypi"}
NETWORK_EXTRA_HINT: Final = (
    "install Belljar with its extras `network` and `stand-ins`: pip install "
    "'belljar-sandbox[network,stand-ins]'"
)
KVM_STATES: Final = {
    TrialState.PROVEN: "works",
    TrialState.UNPROVEN: "is not tested",
    TrialState.REFUTED: "does not work",
    TrialState.ABSENT: "is not available",
}
# How to get proven hardware virtualisation.
KVM_HINTS: Final = {
    TrialState.UNPROVEN: "run `belljar doctor`, which boots a test guest under KVM",
    TrialState.REFUTED: "use a host on which KVM boots a guest; `belljar doctor` tests it again",
    TrialState.ABSENT: "use a host with hardware virtualisation that this user may use",
}
# Distributions append to it (`6.12.48+deb13-amd64`): only the first two numbers are compared.
_RELEASE: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")
# The kernel's own patterns are shorter; what an administrator wrote may be a whole command.
_MAX_PATTERN_CHARS: Final = 80


def tier_obstacles(tier: Tier, facts: HostFacts) -> Iterator[Obstacle]:
    """Why no cell can run in the tier here."""
    known = ("x86_64",) if tier is Tier.MICROVM else tuple(ARCHITECTURES)
    if facts.arch not in known:
        what = f"the {tier} tier runs on {', '.join(known)}, and this is {facts.arch}"
        yield Obstacle(ObstacleCode.ARCHITECTURE, what, "use such a host")
    if tier is not Tier.MICROVM:
        yield from _runtime(tier, facts)
    for tool in facts.tools:
        name = "microvm" if tier is Tier.MICROVM else "oci"
        if tool.needed and tool.tier == name and not tool.ok:
            yield _lack(tool)
    if not facts.userns.available:
        yield _no_userns("a cell", facts.userns)
    if tier is Tier.MICROVM:
        return
    if not facts.ids.available:
        yield _no_ids("a cell", facts.ids)
    # A container's limits are its control groups: no machine around it would bound it otherwise.
    if missing := [name for name in _CONTROLLERS if name not in facts.cgroup.controllers]:
        yield _no_groups(tier, missing, facts)
    match = _RELEASE.match(facts.kernel_release)
    if ((int(match[1]), int(match[2])) if match else ()) < MIN_KERNEL:
        needed = ".".join(map(str, MIN_KERNEL))
        what = f"the {tier} tier needs Linux {needed} for its writable layer, and this is"
        hint = f"use a kernel {needed} or newer (Debian 12: linux-image-amd64 from"
        hint += " bookworm-backports), or the microvm tier"
        yield Obstacle(ObstacleCode.KERNEL_TOO_OLD, f"{what} {facts.kernel_release}", hint)


def _runtime(tier: Tier, facts: HostFacts) -> Iterator[Obstacle]:
    runtime = facts.runtime(tier.value)
    hint = (runtime.hint if runtime is not None else "") or "run `belljar doctor`"
    if runtime is None:
        what = f"this host was not checked for an OCI runtime of the {tier} tier"
        yield Obstacle(ObstacleCode.RUNTIME_UNUSABLE, what, hint)
    elif runtime.state is TrialState.UNUSABLE:
        yield Obstacle(ObstacleCode.RUNTIME_UNUSABLE, runtime.reason, hint)
    elif runtime.state is TrialState.REFUTED:
        what = f"{runtime.name} {runtime.version} failed to run a test container: {runtime.reason}"
        yield Obstacle(ObstacleCode.RUNTIME_FAILED, what, hint)


def _no_groups(tier: Tier, missing: list[str], facts: HostFacts) -> Obstacle:
    each, uid = " ".join(missing), facts.uid
    code = ObstacleCode.CGROUPS_NOT_OWNED
    hint = (
        f"as root: for c in {each}; do mkdir /sys/fs/cgroup/$c/{uid}; chown {uid} "
        f"/sys/fs/cgroup/$c/{uid} /sys/fs/cgroup/$c/{uid}/cgroup.procs; done\n"
        f"then in your shell: for c in {each}; do echo $$ >/sys/fs/cgroup/$c/{uid}/cgroup.procs; "
        "done\nor run as root"
    )
    if facts.cgroup.version is CgroupVersion.NONE:
        code, hint = ObstacleCode.CGROUPS_NOT_MOUNTED, "mount the control groups"
    elif facts.is_root:
        hint = "run where root may make control groups, and the kernel has these controllers"
        code = ObstacleCode.CGROUPS_NOT_IN_KERNEL
    elif facts.cgroup.version is CgroupVersion.V2:
        hint = "start it as: systemd-run --user --scope -p Delegate=yes belljar …; or run as root"
        code = ObstacleCode.CGROUPS_NOT_DELEGATED
    because = f" ({facts.cgroup.reason})" if facts.cgroup.reason else ""
    what = f"the {tier} tier's limits need the control groups {each}, which can't be used here"
    return Obstacle(code, f"{what}{because}", hint)


def _lack(tool: ToolFact) -> Obstacle:
    hint = tool.hint or f"run `belljar setup`, or install {tool.name}"
    if not tool.path:
        return Obstacle(ObstacleCode.TOOL_MISSING, f"{tool.name} is missing", hint)
    what = f"{tool.name} is version {tool.version or 'unknown'}; {tool.needed_min} is needed"
    return Obstacle(ObstacleCode.TOOL_TOO_OLD, what, hint)


def _no_userns(needing: str, fact: UsernsFact) -> Obstacle:
    what = f"{needing} needs user namespaces, which this user can't make: {fact.reason}"
    return Obstacle(ObstacleCode.NO_USER_NAMESPACES, what, fact.hint or "run as root")


def _no_ids(needing: str, fact: IdsFact) -> Obstacle:
    what = f"{needing} needs ids of its own: {fact.reason}"
    return Obstacle(ObstacleCode.NO_IDS, what, fact.hint or "run as root")


# Why a tier grants no more rights.
_NOT_GRANTED: Final = {
    Tier.CONTAINER: "its kernel is this host's",
    Tier.GVISOR: "the guest agent shares the users of its workload",
    Tier.MICROVM: "it could reach the guest agent, whose word counts in verdicts, or open more of "
    "the guest's kernel",
}


def refusals(rights: Rights | None, tier: Tier) -> Iterator[str]:
    """The rights that the tier does not grant."""
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


def policy_obstacles(
    tier: Tier, rights: Rights | None, user: str, devices: tuple[str, ...]
) -> Iterator[Obstacle]:
    """Why the tier can't give these rights, user and GPUs."""
    if refused := tuple(refusals(rights, tier)):
        what = f"a {tier} cell does not grant {', '.join(refused)}: {_NOT_GRANTED[tier]}"
        able = " or ".join(each.value for each in Tier if not any(refusals(rights, each)))
        code, hint = ObstacleCode.RIGHTS_OF_NO_TIER, "leave out what no tier grants"
        if able:
            code, hint = ObstacleCode.RIGHTS_NEED_OTHER_TIER, f"run it in tier {able}"
        yield Obstacle(code, what, hint, "rights")
    # An image may write thousands of digits, which `int` refuses
    ids = [int(part[:11]) for part in user.split(":") if part.isascii() and part.isdigit()]
    if tier is not Tier.MICROVM and max(ids, default=0) >= ID_COUNT:
        what = f"user `{user}` is beyond the ids of a cell of the {tier} tier, which end at 65,535"
        hint = "run it in tier microvm (`tier: microvm`), or write a smaller `user`"
        yield Obstacle(ObstacleCode.USER_BEYOND_IDS, what, hint, "user")
    if devices and tier is not Tier.CONTAINER:
        hint = "leave `model.gpu` out, or use tier container, which risk `low` allows"
        what = f"a {tier} cell gets no GPU"
        yield Obstacle(ObstacleCode.GPU_NEEDS_CONTAINER, what, hint, "model.gpu")


def hardware_obstacle(facts: HostFacts) -> Obstacle | None:
    """Why risk `critical` can't run here, if so."""
    if (state := facts.kvm.state) is TrialState.PROVEN:
        return None
    what = f"risk `critical` demands hardware virtualisation, which {KVM_STATES[state]} here"
    hint = f"{KVM_HINTS[state]}; or lower `risk` if the risk is lower"
    return Obstacle(ObstacleCode(f"kvm_{state}"), f"{what}: {facts.kvm.reason}", hint, "risk")


def size_obstacles(
    resources: Resources, memory_max_bytes: int, facts: HostFacts
) -> Iterator[Obstacle]:
    """Why this cell size doesn't fit this host."""
    if resources.cpus > facts.cpus:
        what = f"the policy asks for {resources.cpus} processors, and this host has {facts.cpus}"
        hint = f"write `cpus: {facts.cpus}` or less, or use a larger host"
        yield Obstacle(ObstacleCode.TOO_FEW_PROCESSORS, what, hint, "resources.cpus")
    host_bytes = facts.memory_total_mib << 20
    if memory_max_bytes > host_bytes:
        needed = resources.memory_sum(memory_max_bytes)
        what = f"a cell may take {needed}, and this host has {format_size(host_bytes)}"
        hint = "lower `memory` or `disk` (all a cell writes is held in memory)"
        yield Obstacle(ObstacleCode.TOO_LITTLE_MEMORY, what, hint, "resources.memory")


def network_obstacles(
    facts: HostFacts, kinds: Collection[str] | None = None
) -> tuple[Obstacle, ...]:
    """Why no network (of these kinds) is possible here."""
    return tuple(
        replace(each, where="network", hint=f"{each.hint}; or write `network: none`")
        for each in _network(facts, kinds)
    )


def _network(facts: HostFacts, kinds: Collection[str] | None) -> Iterator[Obstacle]:
    from belljar.plan.network import GATEWAY_OTHER_FILES

    needing = "a range's network"
    tool = facts.tool("nft")
    if tool is None or not tool.ok:
        yield _lack(tool or ToolFact(name="nft", use="packet rules", needed=True))
    missing = [
        name
        for name in facts.modules_missing
        if kinds is None or MODULE_OF.get(name, "") in {"", *kinds}
    ]
    if missing:
        what = f"{needing} needs the Python modules {', '.join(missing)}, which are not installed"
        yield Obstacle(ObstacleCode.MODULES_MISSING, what, NETWORK_EXTRA_HINT)
    if not facts.network_namespaces:
        what = f"{needing} needs network namespaces, which this kernel doesn't have"
        hint = "use a kernel with CONFIG_NET_NS"
        yield Obstacle(ObstacleCode.NO_NETWORK_NAMESPACES, what, hint)
    elif facts.network_namespaces_max == 0:
        what = f"{needing} needs network namespaces, and user.max_net_namespaces is 0"
        hint = "as root: sysctl -w user.max_net_namespaces=15000"
        yield Obstacle(ObstacleCode.NETWORK_NAMESPACES_OFF, what, hint)
    # A gateway that could take fewer connections than it needs descriptors for itself is not worth
    # starting.
    if facts.open_files_max < (needed := 2 * GATEWAY_OTHER_FILES):
        what = f"{needing} needs {needed} open files, and this process may have fewer"
        hint = "raise the hard limit of open files (`ulimit -Hn`, or LimitNOFILE= of systemd)"
        yield Obstacle(ObstacleCode.TOO_FEW_OPEN_FILES, what, hint)
    # An ordinary user's namespace belongs to a user namespace with ids for its cells.
    if not facts.is_root and not facts.userns.available:
        yield _no_userns(needing, facts.userns)
    if not facts.is_root and not facts.ids.available:
        yield _no_ids(needing, facts.ids)


# A plain name makes the kernel write a file and start no program (core(5)).
_CORES_HINT: Final = "as root: sysctl -w kernel.core_pattern=core"


def cores_warning(tier: Tier, cores: CoreFact) -> str:
    """Where this host's core dumps of cells go; "": nowhere."""
    pattern = printable(cores.pattern, max_chars=_MAX_PATTERN_CHARS)
    if cores.state is CoreState.PROGRAM and not cores.can_limit:
        return (
            f"a crash of a cell's processes starts a program of this host as its root ({pattern}): "
            "a hard limit of core dumps of 0 can't be made 1, at which the kernel starts none; "
            f"hint: start Belljar with `ulimit -Hc` of 1 or more; or {_CORES_HINT}"
        )
    # In the other tiers only the sentry or the VMM could crash so.
    if cores.state is CoreState.FILE or tier is not Tier.CONTAINER:
        return ""
    what = f"a crash in a cell goes to a server of this host ({pattern}); no limit stops it"
    if cores.state is CoreState.PROGRAM:
        what = (
            f"a crash in a cell starts a program of this host as its root ({pattern}), but for the "
            "limit of core dumps, which only its system call profile keeps at 1"
        )
    return f"{what}; hint: {_CORES_HINT}"
