"""A plan in words: why a tier can't be had, what the author should know, and the whole as text.
Pure.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from belljar.errors import HostError
from belljar.host.model import CgroupVersion, HostFacts, KvmState, RuntimeFact, RuntimeState
from belljar.plan.jail import JailLimits
from belljar.plan.model import REAL, ImageFacts, Obstacle, ObstacleCode, OciPlan, Plan
from belljar.plan.obstacles import cores_warning
from belljar.plan.qemu import VmShape, vmm_memory_max_bytes
from belljar.policy.limits import Tier
from belljar.units import format_size, printable

if TYPE_CHECKING:
    from belljar.policy.model import Policy

# ---- obstacles

NETWORK_EXTRA_HINT: Final = (
    "install Belljar with its extras `network` and `stand-ins`: pip install "
    "'belljar-sandbox[network,stand-ins]'"
)
_KVM_STATES: Final = {
    KvmState.PROVEN: "works",
    KvmState.UNPROVEN: "is not tested",
    KvmState.REFUTED: "does not work",
    KvmState.ABSENT: "is not available",
}
KVM_HINTS: Final = {
    KvmState.UNPROVEN: "run `belljar doctor`, which boots a test guest under KVM",
    KvmState.REFUTED: "use a host on which KVM boots a guest; `belljar doctor --prove-again` tests "
    "it again",
    KvmState.ABSENT: "use a host with hardware virtualisation that this user may use",
}
"""How to get proven hardware virtualisation."""
_NO_GROUPS: Final = (
    "the {tier} tier's limits need the control groups {missing}, which can't be used here{because}"
)
_OWN_GROUPS: Final = (
    "as root: for c in {each}; do mkdir /sys/fs/cgroup/$c/{uid}; chown {uid} "
    "/sys/fs/cgroup/$c/{uid} /sys/fs/cgroup/$c/{uid}/cgroup.procs; done\n"
    "then in your shell: for c in {each}; do echo $$ >/sys/fs/cgroup/$c/{uid}/cgroup.procs; done\n"
    "or run as root"
)
_NOT_GRANTED: Final = "a {tier} cell does not grant {refused}: {why_not}"
_NOT_GRANTED_BY: Final = {
    Tier.CONTAINER.value: "its kernel is this host's",
    Tier.GVISOR.value: "the guest agent shares the users of its workload",
    Tier.MICROVM.value: "it could reach the guest agent, whose word counts in verdicts, or open "
    "more of the guest's kernel",
}
_NO_GPU: Final = {
    Tier.GVISOR.value: "runsc's proxy for the driver (`--nvproxy`) was never tried with Belljar",
    Tier.MICROVM.value: "passing a PCI device to a machine (VFIO) is not built",
}
_INSTALL: Final = "run `belljar setup`, or install {package}"
_CORES_HINT: Final = "as root: sysctl -w kernel.core_pattern=core"
OBSTACLES: Final[Mapping[ObstacleCode, tuple[str, str]]] = {
    ObstacleCode.ARCHITECTURE: (
        "the {tier} tier runs on {known}, and this is {arch}",
        "use such a host; nothing weaker is used instead",
    ),
    ObstacleCode.RUNTIME_UNUSABLE: ("{reason}", "run `belljar doctor`"),
    ObstacleCode.RUNTIME_FAILED: (
        "{name} {version} failed to run a test container: {reason}",
        "`belljar doctor` tests it again",
    ),
    ObstacleCode.TOOL_MISSING: ("{tool} is missing", _INSTALL),
    ObstacleCode.TOOL_TOO_OLD: (
        "{tool} is version {version}; {needed} or newer is needed",
        _INSTALL,
    ),
    ObstacleCode.NO_USER_NAMESPACES: (
        "{needing} needs user namespaces, which this user can't make: {reason}",
        "run as root",
    ),
    ObstacleCode.NO_IDS: ("{needing} needs ids of its own: {reason}", "run as root"),
    ObstacleCode.CGROUPS_NOT_MOUNTED: (_NO_GROUPS, "mount the control groups"),
    ObstacleCode.CGROUPS_NOT_IN_KERNEL: (
        _NO_GROUPS,
        "run where root may make control groups, with {missing} among the kernel's controllers",
    ),
    ObstacleCode.CGROUPS_NOT_DELEGATED: (
        _NO_GROUPS,
        (
            "start it in a group handed to you: systemd-run --user --scope -p Delegate=yes belljar "
            "…; or run as root"
        ),
    ),
    ObstacleCode.CGROUPS_NOT_OWNED: (_NO_GROUPS, _OWN_GROUPS),
    ObstacleCode.KERNEL_TOO_OLD: (
        "the {tier} tier needs Linux {needed} for its writable layer, and this is {release}",
        (
            "use a kernel {needed} or newer (Debian 12: linux-image-amd64 from "
            "bookworm-backports), or the microvm tier"
        ),
    ),
    ObstacleCode.RIGHTS_NEED_OTHER_TIER: (_NOT_GRANTED, "run it in tier {able_tiers}"),
    ObstacleCode.USER_BEYOND_IDS: (
        "user `{user}` is beyond the ids of a cell of the {tier} tier, which end at 65,535",
        "run it in tier microvm (`tier: microvm`), or write a smaller `user`",
    ),
    ObstacleCode.GPU_NEEDS_CONTAINER: (
        "a {tier} cell gets no GPU: {why_no_gpu}",
        "leave `model.gpu` out, or use tier container, which risk `low` allows",
    ),
    ObstacleCode.RIGHTS_OF_NO_TIER: (_NOT_GRANTED, "leave out what no tier grants"),
    **{
        ObstacleCode(f"kvm_{state.value}"): (
            (
                "risk `critical` demands hardware virtualisation, which "
                f"{_KVM_STATES[state]} here: {{reason}}"
            ),
            f"{hint}; or lower `risk` if the risk is lower",
        )
        for state, hint in KVM_HINTS.items()
    },
    ObstacleCode.TOO_FEW_PROCESSORS: (
        "the policy asks for {asked} processors, and this host has {cpus}",
        "write `cpus: {cpus}` or less, or use a larger host",
    ),
    ObstacleCode.TOO_LITTLE_MEMORY: (
        (
            "a cell of this policy may take {cell_bytes} (memory {memory_bytes} + disk "
            "{disk_bytes} + {overhead_bytes} for what holds the cell), and this host has "
            "{host_bytes}"
        ),
        "lower `memory` or `disk` (all a cell writes is held in memory), or use a larger host",
    ),
    ObstacleCode.MODULES_MISSING: (
        "{needing} needs the Python modules {modules}, which are not installed",
        NETWORK_EXTRA_HINT,
    ),
    ObstacleCode.NO_NETWORK_NAMESPACES: (
        "{needing} needs network namespaces, which this kernel doesn't have",
        "use a kernel with CONFIG_NET_NS",
    ),
    ObstacleCode.NETWORK_NAMESPACES_OFF: (
        "{needing} needs network namespaces, and user.max_net_namespaces is 0",
        "as root: sysctl -w user.max_net_namespaces=15000",
    ),
    ObstacleCode.TOO_FEW_OPEN_FILES: (
        "{needing} needs {needed} open files for its gateway, and this process may have {most}",
        "raise the hard limit of open files (`ulimit -Hn`, LimitNOFILE= in a systemd unit)",
    ),
    ObstacleCode.CRASH_STARTS_PROGRAM: (
        (
            "{crash} starts a program of this host as its root ({pattern}): a hard limit of core "
            "dumps of 0 can't be made 1, at which the kernel starts none"
        ),
        f"start Belljar with `ulimit -Hc` of 1 or more; or {_CORES_HINT}",
    ),
    ObstacleCode.CRASH_LIMITED_IN_CELL: (
        (
            "this host's kernel starts a program as its root when something crashes ({pattern}); "
            "only a cell's limit of core dumps of 1 keeps it from that, and only its system call "
            "profile keeps that limit"
        ),
        _CORES_HINT,
    ),
    ObstacleCode.CRASH_TO_SERVER: (
        (
            "a crash in a cell is handed to a server of this host ({pattern}), and no limit keeps "
            "the kernel from it"
        ),
        _CORES_HINT,
    ),
}
"""Each code's sentence, and the hint where the host's facts have none."""
_ALSO_AS_ROOT: Final = frozenset({ObstacleCode.NO_IDS, ObstacleCode.NO_USER_NAMESPACES})


class ObstacleError(HostError):
    """A refusal for obstacles, the one that is shown first."""

    def __init__(self, what: str, hint: str, obstacles: tuple[Obstacle, ...]) -> None:
        super().__init__(what, where=obstacles[0].where, hint=hint)
        self.obstacles = obstacles


def obstacle_text(obstacle: Obstacle) -> tuple[str, str]:
    """The sentence and the hint. Not escaped."""
    words = {
        name: format_size(int(value))
        if name.endswith("_bytes") and not isinstance(value, tuple)
        else ", ".join(value)
        if isinstance(value, tuple)
        else str(value)
        for name, value in obstacle.values.items()
    }
    tier, of_network = words.get("tier", ""), obstacle.where == "network"
    words |= {
        "needing": "a range's network" if of_network else "a cell",
        "because": f" ({reason})" if (reason := words.get("reason")) else "",
        "each": words.get("missing", "").replace(",", ""),
        "able_tiers": words.get("able", "").replace(", ", " or "),
        "package": "nftables" if words.get("tool") == "nft" else words.get("tool", ""),
        "why_not": _NOT_GRANTED_BY.get(tier, ""),
        "why_no_gpu": _NO_GPU.get(tier, ""),
        "crash": "a crash in a cell"
        if tier == Tier.CONTAINER.value
        else "a crash of what holds the cell",
    }
    what, hint = (part.format_map(words) for part in OBSTACLES[obstacle.code])
    if obstacle.hint:
        also = obstacle.code in _ALSO_AS_ROOT and hint not in obstacle.hint
        hint = f"{obstacle.hint}; or {hint}" if also else obstacle.hint
    return what, f"{hint}; or write `network: none`" if of_network else hint


def refusal(refused: Mapping[Tier, Obstacle]) -> ObstacleError:
    """The error when each tier has an obstacle: the least tier's, with those of the others.

    A size is the same matter in all of them.
    """
    first, *others = refused.values()
    what, hint = obstacle_text(first)
    if others and not first.where.startswith("resources."):
        whys = "; ".join(f"{tier}: {obstacle_text(each)[0]}" for tier, each in refused.items())
        what = f"no tier that this risk allows can run here: {whys}"
    return ObstacleError(what, hint, (first, *others))


def skipped_tiers(tier: Tier, refused: Mapping[Tier, Obstacle]) -> tuple[str, ...]:
    """A sentence for the skipped tiers of each kind of obstacle; `belljar doctor` has the hints."""
    tiers: dict[ObstacleCode, list[str]] = {}
    for weaker, obstacle in refused.items():
        tiers.setdefault(obstacle.code, []).append(weaker.value)
    what = {obstacle.code: obstacle_text(obstacle)[0] for obstacle in refused.values()}
    return tuple(
        printable(
            f"using tier {tier}: {', '.join(named)} can't be used here (see `belljar doctor`): "
            f"{what[code]}"
        )
        for code, named in tiers.items()
    )


# ---- warnings


def vm_warnings(facts: HostFacts, shape: VmShape, *, emulated: bool) -> Iterator[str]:
    """What the author should know of a microVM here."""
    if emulated:
        yield (
            f"emulated: KVM {_KVM_STATES[facts.kvm.state]} ({facts.kvm.reason}). Under emulation "
            f"the VM is not a security boundary by QEMU's own policy; the jail around it is"
        )
    if facts.cgroup.reason:
        why = printable(facts.cgroup.reason)
        yield f"not all control groups can be used ({why}); the bounds above say what holds instead"
    yield from _memory_warning(vmm_memory_max_bytes(shape), facts)
    if shape.ram_mib > facts.disk_free_mib:
        ram, free = format_size(shape.ram_mib << 20), format_size(facts.disk_free_mib << 20)
        yield (
            f"the first cell of this shape writes a template of up to {ram}, and the store has "
            f"{free} free"
        )
    yield from _crash_warning(Tier.MICROVM, facts)


def oci_warnings(
    tier: Tier, runtime: RuntimeFact, jail: JailLimits, facts: HostFacts
) -> Iterator[str]:
    """What the author should know of a container here."""
    if tier is Tier.CONTAINER:
        yield (
            "shared kernel: the workload's system calls are answered by this host's kernel, so a "
            "flaw in what they reach is a way out of every layer"
        )
    if not facts.is_root:
        yield (
            "all cells of this user share one range of ids: code that escapes from one can act on "
            "the processes of another; run as root, each cell has its own"
        )
    if runtime.state is RuntimeState.UNPROVEN:
        name = printable(runtime.name)
        yield f"{name} was not tested here yet: `belljar doctor` runs a test container"
    if facts.cgroup.version in {CgroupVersion.V1, CgroupVersion.HYBRID}:
        yield (
            "control groups are version 1 here: each limit is in a group of its own, and none "
            "ends a cell as a whole; its process 1 does"
        )
    yield from _memory_warning(jail.memory_max_bytes, facts)
    yield from _crash_warning(tier, facts)


def _memory_warning(needed_bytes: int, facts: HostFacts) -> Iterator[str]:
    free_bytes = facts.memory_available_mib << 20
    if needed_bytes > free_bytes:
        needed, free = format_size(needed_bytes), format_size(free_bytes)
        yield f"one cell may take {needed} of memory, and {free} is free now"


def _crash_warning(tier: Tier, facts: HostFacts) -> Iterator[str]:
    warning = cores_warning(tier, facts.cores)
    if warning is not None:
        what, hint = obstacle_text(warning)
        yield printable(f"{what}; hint: {hint}")


_MAPPED: Final = "a file that is only mapped into memory counts as opened"
_SENSORS: Final = {
    "fanotify": f"a process that ends within a millisecond may stay without a name; {_MAPPED}",
    "inotify": f"no process is known (only root may ask for it); {_MAPPED}",
    "runsc-trace": "files are known by their paths: what is read under a hard link or after a "
    "rename, by sendfile, copy_file_range or splice, or only mapped, is not seen as read",
    "guest-fanotify": f"it is the guest's word, which a guest with a compromised kernel may "
    f"withhold; {_MAPPED}",
}
"""Each sensor of touched decoys, and what it can't see."""


SNAPSHOTS: Final = (
    "the monitor of the virtual machine stays open, for snapshots; a snapshot's memory lies in the "
    "store until the run ends"
)
FILES_ALONE: Final = (
    "a snapshot has the files alone: memory and processes are kept in tier microvm only"
)


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


# ---- the whole plan; every dynamic string is escaped

_WIDTH: Final = 110
_LABEL_WIDTH: Final = 10
_MAX_PROGRAM_CHARS: Final = 200


def render_plan(
    plan: Plan, *, width: int = _WIDTH, real: Callable[[str], str] = str
) -> tuple[str, ...]:
    """Return lines on what the cell can read, write, reach and consume, the layers between it and
    the host, and what is emulated.

    `real` is applied to each line about a real network, so that it can be shown in red.
    """
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
                break_long_words=False,
                break_on_hyphens=False,
            )
        lines += map(real, wrapped) if text.startswith(REAL) else wrapped
    return tuple(lines)


def _blocks(plan: Plan) -> Iterator[tuple[str, str]]:
    """(label, text) pairs; a label " " continues the one above."""
    image, radius = plan.image, plan.blast_radius
    yield "policy", plan.policy.name
    yield "risk", f"{plan.risk}: at least {plan.demanded_tier}"
    how = "EMULATED (no hardware virtualisation)"
    if isinstance(plan, OciPlan):
        gvisor = "gVisor's kernel on this host's"
        kernel = gvisor if plan.tier is Tier.GVISOR else "this host's kernel, SHARED"
        how = f"{kernel}, by {plan.oci.runtime.name} {plan.oci.runtime.version}"
    elif not plan.emulated:
        how = "with hardware virtualisation"
    yield "tier", f"{plan.tier}, {how}"
    yield (
        "image",
        f"{image.name} sha256:{image.digest}" if image else f"{plan.policy.image} (not built)",
    )
    if image and image.program:
        yield "runs", _program(image)
    if (model := plan.policy.model) is not None:
        server = model.server if isinstance(model.server, str) else shlex.join(model.server)
        shown = printable(server, max_chars=_MAX_PROGRAM_CHARS)
        bounds = f"{model.context} tokens, {model.parallel} request(s) at a time"
        yield "serves", f"a model by {shown} on its own loopback, port {model.port}; {bounds}"
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
    from belljar.signals.decoys import FILES

    for decoy in policy.decoys:
        if decoy.is_service:
            place = f"{decoy.host}:{decoy.port}"
        else:
            place = decoy.place or FILES[decoy.kind][0]
        yield f"{decoy.id} ({decoy.kind}): {place}"
