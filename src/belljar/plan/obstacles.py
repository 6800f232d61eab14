"""What stands in a tier's way on this host."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from belljar.dataclass import replace
from belljar.host.model import CgroupVersion, CoreFact, CoreState, HostFacts, ToolFact, TrialState
from belljar.plan.model import Obstacle, ObstacleCode
from belljar.plan.network import GATEWAY_OTHER_FILES
from belljar.plan.oci import ARCHITECTURES, ID_COUNT
from belljar.policy.limits import GRANTABLE, Risk, Tier
from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.policy.model import Policy
    from belljar.policy.sections import Rights

MIN_KERNEL: Final = (6, 6)  # for the container tiers: a tmpfs with user attributes
_CONTROLLERS: Final = ("cpu", "memory", "pids")  # they hold a container's bounds
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
KVM_HINTS: Final = {  # how to get proven hardware virtualisation
    TrialState.UNPROVEN: "run `belljar doctor`, which boots a test guest under KVM",
    TrialState.REFUTED: "use a host on which KVM boots a guest; `belljar doctor` tests it again",
    TrialState.ABSENT: "use a host with hardware virtualisation that this user may use",
}
# Distributions append to it (`6.12.48+deb13-amd64`): only the first two numbers are compared.
_RELEASE: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")
_MAX_PATTERN_CHARS: Final = 80  # the kernel's own are shorter; an administrator's may be a command


def tier_obstacles(tier: Tier, facts: HostFacts) -> Iterator[Obstacle]:
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
    lacking = _no_ids("a cell", facts)
    if tier is Tier.MICROVM:  # which needs no ids of its own
        yield from (each for each in lacking if each.code is not ObstacleCode.NO_IDS)
        return
    yield from lacking
    # A container's limits are its control groups: no machine around it would bound it otherwise.
    if missing := [name for name in _CONTROLLERS if name not in facts.cgroup.controllers]:
        yield _no_groups(tier, missing, facts)
    match = _RELEASE.match(facts.kernel_release)
    if ((int(match[1]), int(match[2])) if match else ()) < MIN_KERNEL:
        needed = ".".join(map(str, MIN_KERNEL))
        what = f"the {tier} tier needs Linux {needed}, and this is {facts.kernel_release}"
        hint = f"use a kernel {needed} or newer, or the microvm tier"
        yield Obstacle(ObstacleCode.KERNEL_TOO_OLD, what, hint)


def _runtime(tier: Tier, facts: HostFacts) -> Iterator[Obstacle]:
    runtime = facts.runtime(tier.value)
    hint = (runtime.hint if runtime is not None else "") or "run `belljar doctor`"
    what = f"this host was not checked for an OCI runtime of the {tier} tier"
    if runtime is not None and runtime.state is TrialState.UNUSABLE:
        what = runtime.reason
    elif runtime is not None and runtime.state is TrialState.REFUTED:
        what = f"{runtime.name} {runtime.version} failed to run a test container: {runtime.reason}"
    elif runtime is not None:
        return
    yield Obstacle(ObstacleCode.RUNTIME, what, hint)


def _no_groups(tier: Tier, missing: list[str], facts: HostFacts) -> Obstacle:
    each, uid = " ".join(missing), facts.uid
    hint = "run where root may make control groups, and the kernel has these controllers"
    if not facts.is_root and facts.cgroup.version is CgroupVersion.V2:
        hint = "start it as: systemd-run --user --scope -p Delegate=yes belljar …; or run as root"
    elif not facts.is_root:
        hint = (
            f"as root: for c in {each}; do mkdir /sys/fs/cgroup/$c/{uid}; chown {uid} "
            f"/sys/fs/cgroup/$c/{uid} /sys/fs/cgroup/$c/{uid}/cgroup.procs; done\n"
            f"then in your shell: for c in {each}; do echo $$ "
            f">/sys/fs/cgroup/$c/{uid}/cgroup.procs; done\nor run as root"
        )
    because = f" ({facts.cgroup.reason})" if facts.cgroup.reason else ""
    what = f"the {tier} tier's limits need the control groups {each}, which can't be used here"
    return Obstacle(ObstacleCode.CGROUPS, f"{what}{because}", hint)


def _lack(tool: ToolFact) -> Obstacle:
    hint = tool.hint or f"run `belljar setup`, or install {tool.name}"
    what = f"{tool.name} is version {tool.version or 'unknown'}; {tool.needed_min} is needed"
    return Obstacle(ObstacleCode.TOOL, what if tool.path else f"{tool.name} is missing", hint)


def _no_ids(needing: str, facts: HostFacts) -> Iterator[Obstacle]:
    if not facts.userns.available:
        what = f"{needing} needs user namespaces, which this user can't make: {facts.userns.reason}"
        hint = facts.userns.hint or "run as root"
        yield Obstacle(ObstacleCode.NO_USER_NAMESPACES, what, hint)
    if not facts.ids.available:
        what = f"{needing} needs ids of its own: {facts.ids.reason}"
        yield Obstacle(ObstacleCode.NO_IDS, what, facts.ids.hint or "run as root")


_NOT_GRANTED: Final = {  # why a tier grants no more rights
    Tier.CONTAINER: "its kernel is this host's",
    Tier.GVISOR: "the guest agent shares the users of its workload",
    Tier.MICROVM: "it could reach the guest agent, whose word counts in verdicts, or open more of "
    "the guest's kernel",
}


def refusals(rights: Rights | None, tier: Tier) -> Iterator[str]:
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
    if refused := tuple(refusals(rights, tier)):
        what = f"a {tier} cell does not grant {', '.join(refused)}: {_NOT_GRANTED[tier]}"
        able = " or ".join(each.value for each in Tier if not any(refusals(rights, each)))
        hint = f"run it in tier {able}" if able else "leave out what no tier grants"
        yield Obstacle(ObstacleCode.RIGHTS, what, hint, "rights")
    # An image may write thousands of digits, which `int` refuses
    ids = [int(part[:11]) for part in user.split(":") if part.isascii() and part.isdigit()]
    if tier is not Tier.MICROVM and max(ids, default=0) >= ID_COUNT:
        what = f"user `{user}` is beyond the ids of a cell of the {tier} tier, which end at 65,535"
        hint = "run it in tier microvm (`tier: microvm`), or write a smaller `user`"
        yield Obstacle(ObstacleCode.USER, what, hint, "user")
    if devices and tier is not Tier.CONTAINER:
        hint = "leave `model.gpu` out, or use tier container, which risk `low` allows"
        what = f"a {tier} cell gets no GPU"
        yield Obstacle(ObstacleCode.GPU, what, hint, "model.gpu")


def fit_obstacles(policy: Policy, memory_max_bytes: int, facts: HostFacts) -> Iterator[Obstacle]:
    resources, state = policy.resources, facts.kvm.state
    if policy.risk is Risk.CRITICAL and state is not TrialState.PROVEN:
        what = f"risk `critical` demands hardware virtualisation, which {KVM_STATES[state]} here"
        hint = f"{KVM_HINTS[state]}; or lower `risk` if the risk is lower"
        yield Obstacle(ObstacleCode.KVM, f"{what}: {facts.kvm.reason}", hint, "risk")
    if resources.cpus > facts.cpus:
        what = f"the policy asks for {resources.cpus} processors, and this host has {facts.cpus}"
        hint = f"write `cpus: {facts.cpus}` or less, or use a larger host"
        yield Obstacle(ObstacleCode.SIZE, what, hint, "resources.cpus")
    host_bytes = facts.memory_total_mib << 20
    if memory_max_bytes > host_bytes:
        needed = resources.memory_sum(memory_max_bytes)
        what = f"a cell may take {needed}, and this host has {format_size(host_bytes)}"
        hint = "lower `memory` or `disk` (all a cell writes is held in memory)"
        yield Obstacle(ObstacleCode.SIZE, what, hint, "resources.memory")


def network_obstacles(
    facts: HostFacts, kinds: Collection[str] | None = None
) -> tuple[Obstacle, ...]:
    return tuple(
        replace(each, where="network", hint=f"{each.hint}; or write `network: none`")
        for each in _network(facts, kinds)
    )


def _network(facts: HostFacts, kinds: Collection[str] | None) -> Iterator[Obstacle]:
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
        yield Obstacle(ObstacleCode.MODULES, what, NETWORK_EXTRA_HINT)
    if not facts.network_namespaces or facts.network_namespaces_max == 0:
        what = f"{needing} needs network namespaces, which this kernel doesn't have or allow"
        hint = (
            "as root: sysctl -w user.max_net_namespaces=15000; or use a kernel with CONFIG_NET_NS"
        )
        yield Obstacle(ObstacleCode.NETWORK_NAMESPACES, what, hint)
    # A gateway is to take more connections than it needs descriptors for itself.
    if facts.open_files_max < (needed := 2 * GATEWAY_OTHER_FILES):
        what = f"{needing} needs {needed} open files, and this process may have fewer"
        hint = "raise the hard limit of open files (`ulimit -Hn`, or LimitNOFILE= of systemd)"
        yield Obstacle(ObstacleCode.OPEN_FILES, what, hint)
    # An ordinary user's namespace belongs to a user namespace with ids for its cells.
    if not facts.is_root:
        yield from _no_ids(needing, facts)


def cores_warning(tier: Tier, cores: CoreFact) -> str:
    """Return an empty text where a cell's core dumps go nowhere."""
    # With a limit of 1 no program is started; in the other tiers only the sentry or the VMM
    # could crash so.
    is_open = cores.state is CoreState.PROGRAM and not cores.can_limit
    if not is_open and (cores.state is CoreState.FILE or tier is not Tier.CONTAINER):
        return ""
    pattern = printable(cores.pattern, max_chars=_MAX_PATTERN_CHARS)
    held = "no limit stops it"
    if is_open:
        held = "its limit can't be set here: start Belljar with `ulimit -Hc` of 1 or more"
    elif cores.state is CoreState.PROGRAM:
        held = "only the system call profile keeps the limit that stops it"
    return (
        f"a crash in a cell reaches a program of this host's root ({pattern}); {held}; hint: "
        "as root: sysctl -w kernel.core_pattern=core"  # a plain name starts none (core(5))
    )
