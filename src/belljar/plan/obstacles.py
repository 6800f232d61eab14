"""What stands in a tier's way on this host, as codes with their values.

Used to refuse a plan, and by `belljar doctor` to say so beforehand; `explain` has the sentences.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final

from belljar.host.model import (
    CgroupVersion,
    CoreFact,
    CoreState,
    HostFacts,
    IdsFact,
    KvmState,
    RuntimeState,
    ToolFact,
    UsernsFact,
)
from belljar.plan.model import Obstacle, ObstacleCode, ObstacleValue
from belljar.plan.oci import ID_COUNT
from belljar.plan.seccomp import ARCHITECTURES
from belljar.policy.limits import GRANTABLE, Resources, Tier
from belljar.units import printable

if TYPE_CHECKING:
    from belljar.policy.sections import Rights

MIN_KERNEL: Final = (6, 6)
"""For the container tiers: a tmpfs with user attributes."""
_CONTROLLERS: Final = ("cpu", "memory", "pids")
MODULE_OF: Final = {"asyncssh": "ssh", "dulwich": "git", "jinja2": "http", "packaging": "pypi"}
"""The kind of stand-in that needs a module."""
_RELEASE: Final = re.compile(r"(\d{1,4})\.(\d{1,4})")
_MAX_PATTERN_CHARS: Final = 80


# ---- tiers


def tier_obstacles(tier: Tier, facts: HostFacts) -> tuple[Obstacle, ...]:
    """Why no cell, or none on a range's network, can run in the tier here."""
    return tuple(_microvm(facts) if tier is Tier.MICROVM else _oci(tier, facts))


def _microvm(facts: HostFacts) -> Iterator[Obstacle]:
    if facts.arch != "x86_64":
        yield _foreign(Tier.MICROVM, ("x86_64",), facts)
    yield from _tools_and_userns("microvm", facts)


def _oci(tier: Tier, facts: HostFacts) -> Iterator[Obstacle]:
    if facts.arch not in ARCHITECTURES:
        yield _foreign(tier, tuple(ARCHITECTURES), facts)
    runtime, of_tier = facts.runtime(tier.value), {"tier": tier.value}
    if runtime is None:
        reason = f"this host was not checked for an OCI runtime of the {tier} tier"
        yield Obstacle(ObstacleCode.RUNTIME_UNUSABLE, {"reason": reason})
    else:
        named = {"name": runtime.name, "version": runtime.version, "reason": runtime.reason}
        if runtime.state is RuntimeState.UNUSABLE:
            yield Obstacle(ObstacleCode.RUNTIME_UNUSABLE, named, hint=runtime.hint)
        elif runtime.state is RuntimeState.REFUTED:
            yield Obstacle(ObstacleCode.RUNTIME_FAILED, named, hint=runtime.hint)
    yield from _tools_and_userns("oci", facts)
    if not facts.ids.available:
        yield _not_available(ObstacleCode.NO_IDS, facts.ids)
    # A container's limits are its control groups: no machine around it would bound it otherwise.
    missing = tuple(name for name in _CONTROLLERS if name not in facts.cgroup.controllers)
    if missing:
        code = ObstacleCode.CGROUPS_NOT_OWNED
        if facts.cgroup.version is CgroupVersion.NONE:
            code = ObstacleCode.CGROUPS_NOT_MOUNTED
        elif facts.is_root:
            code = ObstacleCode.CGROUPS_NOT_IN_KERNEL
        elif facts.cgroup.version is CgroupVersion.V2:
            code = ObstacleCode.CGROUPS_NOT_DELEGATED
        reason, uid = facts.cgroup.reason, facts.uid
        yield Obstacle(code, {**of_tier, "missing": missing, "reason": reason, "uid": uid})
    match = _RELEASE.match(facts.kernel_release)
    release = (int(match[1]), int(match[2])) if match else ()
    if release < MIN_KERNEL:
        shown = ".".join(map(str, release)) or facts.kernel_release
        needed = ".".join(map(str, MIN_KERNEL))
        values = {**of_tier, "release": shown, "needed": needed}
        yield Obstacle(ObstacleCode.KERNEL_TOO_OLD, values)


def _tools_and_userns(tier: str, facts: HostFacts) -> Iterator[Obstacle]:
    for tool in facts.tools:
        if tool.needed and tool.tier == tier and not tool.ok:
            yield _lack(tool, "host")
    if not facts.userns.available:
        yield _not_available(ObstacleCode.NO_USER_NAMESPACES, facts.userns)


def _foreign(tier: Tier, known: tuple[str, ...], facts: HostFacts) -> Obstacle:
    values = {"tier": tier.value, "known": known, "arch": facts.arch}
    return Obstacle(ObstacleCode.ARCHITECTURE, values)


def _lack(tool: ToolFact, where: str) -> Obstacle:
    if not tool.path:
        return Obstacle(ObstacleCode.TOOL_MISSING, {"tool": tool.name}, where, tool.hint)
    version = tool.version or "unknown"
    values = {"tool": tool.name, "version": version, "needed": tool.needed_min}
    return Obstacle(ObstacleCode.TOOL_TOO_OLD, values, where, tool.hint)


def _not_available(code: ObstacleCode, fact: UsernsFact | IdsFact, where: str = "host") -> Obstacle:
    return Obstacle(code, {"reason": fact.reason}, where, fact.hint)


# ---- what a policy asks for


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


def rights_obstacles(rights: Rights | None, tier: Tier) -> tuple[Obstacle, ...]:
    """Why the tier can't grant the rights that a policy asks for."""
    refused = tuple(refusals(rights, tier))
    if not refused:
        return ()
    able = tuple(each.value for each in Tier if not any(refusals(rights, each)))
    code = ObstacleCode.RIGHTS_NEED_OTHER_TIER if able else ObstacleCode.RIGHTS_OF_NO_TIER
    values = {"tier": tier.value, "refused": refused, "able": able}
    return (Obstacle(code, values, "rights"),)


def user_obstacles(user: str, tier: Tier) -> tuple[Obstacle, ...]:
    """Why the tier can't run commands as this user: only so many ids are mapped in a container."""
    ids = [int(part) for part in user.split(":") if part.isascii() and part.isdigit()]
    if tier is Tier.MICROVM or max(ids, default=0) < ID_COUNT:
        return ()
    return (Obstacle(ObstacleCode.USER_BEYOND_IDS, {"user": user, "tier": tier.value}, "user"),)


def gpu_obstacles(devices: tuple[str, ...], tier: Tier) -> tuple[Obstacle, ...]:
    """Why the tier passes no GPU through."""
    if not devices or tier is Tier.CONTAINER:
        return ()
    return (Obstacle(ObstacleCode.GPU_NEEDS_CONTAINER, {"tier": tier.value}, "model.gpu"),)


def hardware_obstacle(facts: HostFacts) -> Obstacle | None:
    """Why risk `critical` can't run here, if so."""
    if facts.kvm.state is KvmState.PROVEN:
        return None
    code = ObstacleCode(f"kvm_{facts.kvm.state.value}")
    return Obstacle(code, {"reason": facts.kvm.reason}, "risk")


def size_obstacles(
    resources: Resources, memory_max_bytes: int, facts: HostFacts
) -> Iterator[Obstacle]:
    """Why a cell and jail of this size don't fit this host."""
    if resources.cpus > facts.cpus:
        values: dict[str, ObstacleValue] = {"asked": resources.cpus, "cpus": facts.cpus}
        yield Obstacle(ObstacleCode.TOO_FEW_PROCESSORS, values, "resources.cpus")
    host_bytes = facts.memory_total_mib << 20
    if memory_max_bytes > host_bytes:
        memory_bytes, disk_bytes = resources.memory_bytes, resources.disk_bytes
        values = {
            "cell_bytes": memory_max_bytes,
            "memory_bytes": memory_bytes,
            "disk_bytes": disk_bytes,
            "overhead_bytes": memory_max_bytes - memory_bytes - disk_bytes,
            "host_bytes": host_bytes,
        }
        yield Obstacle(ObstacleCode.TOO_LITTLE_MEMORY, values, "resources.memory")


# ---- a range's network


def network_obstacles(
    facts: HostFacts, kinds: Collection[str] | None = None
) -> tuple[Obstacle, ...]:
    """Why no range with a network can be made here, whatever the tier.

    `kinds`: of its stand-ins; None: of all there are.
    """
    return tuple(_network(facts, kinds))


def _network(facts: HostFacts, kinds: Collection[str] | None) -> Iterator[Obstacle]:
    from belljar.plan.network import GATEWAY_OTHER_FILES

    where = "network"
    tool = facts.tool("nft")
    if tool is None:
        yield Obstacle(ObstacleCode.TOOL_MISSING, {"tool": "nft"}, where)
    elif not tool.ok:
        yield _lack(tool, where)
    missing = tuple(
        name
        for name in facts.modules_missing
        if kinds is None or MODULE_OF.get(name, "") in {"", *kinds}
    )
    if missing:
        yield Obstacle(ObstacleCode.MODULES_MISSING, {"modules": missing}, where)
    if not facts.network_namespaces:
        yield Obstacle(ObstacleCode.NO_NETWORK_NAMESPACES, where=where)
    elif facts.network_namespaces_max == 0:
        yield Obstacle(ObstacleCode.NETWORK_NAMESPACES_OFF, where=where)
    # A gateway that could take fewer connections than it needs descriptors for itself is not worth
    # starting.
    needed = 2 * GATEWAY_OTHER_FILES
    if facts.open_files_max < needed:
        values = {"needed": needed, "most": facts.open_files_max}
        yield Obstacle(ObstacleCode.TOO_FEW_OPEN_FILES, values, where)
    # An ordinary user's namespace belongs to a user namespace with ids for its cells.
    if not facts.is_root and not facts.userns.available:
        yield _not_available(ObstacleCode.NO_USER_NAMESPACES, facts.userns, where)
    if not facts.is_root and not facts.ids.available:
        yield _not_available(ObstacleCode.NO_IDS, facts.ids, where)


# ---- crashes


def cores_warning(tier: Tier, cores: CoreFact) -> Obstacle | None:
    """Where core dumps of a cell's processes go on this host; None: nowhere.

    In tiers but the container's only the sentry or the VMM could crash so.
    """
    if cores.state is CoreState.FILE:
        return None
    code = ObstacleCode.CRASH_LIMITED_IN_CELL
    if cores.state is CoreState.PROGRAM and not cores.can_limit:
        code = ObstacleCode.CRASH_STARTS_PROGRAM
    elif tier is not Tier.CONTAINER:
        return None
    elif cores.state is CoreState.SERVER:
        code = ObstacleCode.CRASH_TO_SERVER
    pattern = printable(cores.pattern, max_chars=_MAX_PATTERN_CHARS)
    return Obstacle(code, {"tier": tier.value, "pattern": pattern})
