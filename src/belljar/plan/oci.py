"""`config.json` (OCI 1.0.2) and command line of `runc` and `runsc`."""

from __future__ import annotations

import copy
import errno
import socket
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass, replace
from belljar.host.model import RuntimeFact
from belljar.plan.jail import WORKLOAD_ROOT
from belljar.plan.qemu import GuestLimits
from belljar.policy import limits
from belljar.policy.limits import NOTHING_GRANTED, WEIGHTS_IN_CELL, Granted, Resources, Tier

ID_COUNT: Final = 1 << 16  # as many as subordinate ids are handed out at once; `nobody` is 65534
AGENT_IN_CELL: Final = "/dev/.i"  # gone before the workload runs; a neutral name
PROBE_IN_CELL: Final = "/dev/.p"
CHANNEL_FD: Final = 0  # a detached container keeps standard input from its starter
_TMP: Final = "/tmp"  # noqa: S108 - the cell's
STAGES_NETWORK: Final = "/proc/self/ns/net"  # as the runtime sees it, which is in it
SHM_SHARE: Final = 2  # one part in so many of the memory may be shared, as in the VM
# Soft: what `select` can watch. Hard: systemd's default (DefaultLimitNOFILE=), as services expect.
OPEN_FILES: Final = (1024, 524_288)
MAX_TERMINALS: Final = 64  # the host has 3,072 for all cells (kernel.pty.max, .reserve)
_MAX_SHM_INODES: Final = 65_536
_BYTES_PER_INODE: Final = 4096  # a page: a smaller file takes one all the same
_MIN_INODES: Final = 16_384  # a small disk still holds a tree of small files
_MAX_INODES: Final = 4_194_304  # a tmpfs holds inodes in the kernel's memory
_MASKED: Final = (
    "acpi asound bus config.gz consoles driver dynamic_debug fs irq scsi pressure cmdline kcore "
    "keys key-users kmsg kallsyms modules latency_stats lockdep lock_stat timer_list "
    "timer_stats sched_debug schedstat interrupts softirqs iomem ioports dma kpagecount "
    "kpageflags kpagecgroup vmallocinfo slabinfo pagetypeinfo buddyinfo zoneinfo allocinfo "
    "sysrq-trigger partitions diskstats mdstat mtrr crypto kpageidle "
    # Counters of the whole host, by which one cell could tell another something. The agent covers
    # /proc/stat and /proc/vmstat with lines that stand still: psutil, ps, vmstat and Node end where
    # these are empty.
    "cgroups devices misc sys/fs sys/kernel/pty"
)
# What tells too much of the host, or helped a breakout before.
MASKED_PROC: Final = tuple(f"/proc/{name}" for name in _MASKED.split())
READ_ONLY_PROC: Final = ("/proc/sys", "/proc/tty")  # some sysctls are the whole host's
CPU_FILES: Final = tuple(  # all that is shown of the host's sysfs
    f"/sys/devices/system/cpu/{name}" for name in ("online", "possible", "present")
)

_WORD: Final = 0xFFFF_FFFF  # of most arguments the kernel looks at the lower 32 bits alone
# The machine's own: 32-bit and x32 calls on x86_64 kill the caller.
ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup:
    """`error` None allows, 0 pretends."""

    calls: tuple[str, ...]
    any_of: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    error: int | None = None


# The part of a group's answer that its table doesn't write out.
_ERRORS: Final = {"pretend": 0, "refuse": errno.EPERM}


def seccomp_profile(
    arch: str, *, gvisor: bool, rights: Granted = NOTHING_GRANTED
) -> dict[str, Any]:
    """Raises `ValueError` for another architecture."""
    if arch not in ARCHITECTURES:
        raise ValueError(f"no system call profile for {arch}")
    rules = load_rules()
    groups = tuple(
        group for name in ("allow", "agent", "pretend", "refuse") for group in rules[name]
    )
    if gvisor:  # what it answers itself is allowed whatever the others say of it
        own = {call for group in rules["gvisor"] for call in group.calls}
        groups = (*rules["gvisor"], *(_without(group, own) for group in groups))
    if rights.calls:
        opened = CallGroup(calls=rights.calls)
        groups = (opened, *(_without(group, set(rights.calls)) for group in groups))
    # Tools that set up or watch a network need packet sockets: the right brings them along.
    if "NET_ADMIN" in rights.capabilities:
        packets = ((_masked(0, socket.AF_PACKET),),)
        groups = (CallGroup(calls=("socket",), any_of=packets), *groups)
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "architectures": [ARCHITECTURES[arch]],
        "syscalls": [entry for group in groups if group.calls for entry in _entries(group)],
    }


@cache
def load_rules() -> Mapping[str, tuple[CallGroup, ...]]:
    data = tomllib.loads(Path(__file__).with_name("seccomp.toml").read_text())
    return {
        name: tuple(_group(item, _ERRORS.get(name)) for item in items)
        for name, items in data.items()
    }


def _group(item: Mapping[str, Any], error: int | None) -> CallGroup:
    any_of = [tuple(map(_argument, conditions)) for conditions in item.get("when", [])]
    if unless := item.get("unless"):
        # Every 32-bit value but these, as prefixes: libseccomp takes no two comparisons of one
        # argument in a rule, so "not this and not that" can't be said.
        allowed = prefixes_without(frozenset(unless["values"]), 0, 32)
        also = tuple(map(_argument, item.get("also", [])))
        at = unless["argument"]
        any_of += [(*also, _masked(at, value, mask)) for value, mask in allowed]
    return CallGroup(
        calls=tuple(item["calls"]),
        any_of=tuple(any_of),
        error=int(getattr(errno, item["error"])) if "error" in item else error,
    )


def _argument(item: Mapping[str, int]) -> dict[str, Any]:
    for word, op in (("whole", "SCMP_CMP_EQ"), ("whole_not", "SCMP_CMP_NE")):
        if word in item:
            return {"index": item["argument"], "value": item[word], "op": op}
    return _masked(item["argument"], item["is"], item.get("mask", _WORD))


def _masked(index: int, value: int, mask: int = _WORD) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def prefixes_without(
    values: frozenset[int], value: int, free_bits: int
) -> Iterator[tuple[int, int]]:
    """Yield (value, mask) of all other numbers."""
    within = frozenset(item for item in values if item >> free_bits == value >> free_bits)
    if not within:
        yield value, _WORD >> free_bits << free_bits
    elif free_bits:
        for bit in (0, 1):
            yield from prefixes_without(within, value | bit << (free_bits - 1), free_bits - 1)


def _without(group: CallGroup, taken: set[str]) -> CallGroup:
    return replace(group, calls=tuple(call for call in group.calls if call not in taken))


def _entries(group: CallGroup) -> Iterator[dict[str, Any]]:
    action: dict[str, Any] = {"action": "SCMP_ACT_ALLOW"}
    if group.error is not None:
        action = {"action": "SCMP_ACT_ERRNO", "errnoRet": group.error}
    for args in group.any_of or ((),):
        yield {"names": list(group.calls), **action, **({"args": list(args)} if args else {})}


@dataclass(frozen=True, slots=True, kw_only=True)
class OciShape:
    """`config` lacks what `OciCell` has."""

    runtime: RuntimeFact
    guest: GuestLimits
    raw_sockets: bool = False
    devices: tuple[str, ...] = ()
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OciCell:
    """gVisor's own /tmp has no inode limit: `tmp` replaces it."""

    hostname: str
    root: str = "/new"
    agent: str = "/i/agent"
    probe: str = "/i/probe"
    tmp: str = ""
    has_port: bool = False
    weights: str = ""


def oci_shape(
    tier: Tier,
    runtime: RuntimeFact,
    resources: Resources,
    *,
    arch: str,
    open_files_max: int,
    rights: Granted = NOTHING_GRANTED,
    devices: tuple[str, ...] = (),
) -> OciShape:
    return OciShape(
        runtime=runtime,
        guest=guest_limits(resources, rights),
        raw_sockets="NET_ADMIN" in rights.capabilities,
        devices=devices,
        config=_config(tier, arch, resources, open_files_max=open_files_max, rights=rights),
    )


def guest_limits(resources: Resources, rights: Granted) -> GuestLimits:
    inodes = min(max(resources.disk_bytes // _BYTES_PER_INODE, _MIN_INODES), _MAX_INODES)
    return GuestLimits(
        # What the workload writes is memory too.
        memory_max_bytes=resources.memory_bytes + resources.disk_bytes,
        disk_bytes=resources.disk_bytes,
        disk_inodes=inodes,
        processes=resources.processes,
        debugger_calls=bool(rights.calls),
    )


def oci_config(shape: OciShape, cell: OciCell) -> dict[str, Any]:
    """Return the caller's own copy."""
    # Deep: cells of one shape share the plan's document, and its lists are added to below.
    config = copy.deepcopy(dict(shape.config))
    config["hostname"] = cell.hostname
    config["root"]["path"] = cell.root
    binds = [(cell.agent, AGENT_IN_CELL), *([(cell.probe, PROBE_IN_CELL)] if cell.probe else [])]
    config["mounts"] += [_bind(source, target) for source, target in binds]
    for path in shape.devices:  # the jail's node, of a file system that may have nodes
        config["mounts"].append(_mount(path, "bind", "bind", "rw", "nosuid", "noexec", source=path))
    if cell.weights:
        config["mounts"].append(_bind(cell.weights, WEIGHTS_IN_CELL, "noexec"))
    if cell.tmp:  # in place of gVisor's own tmpfs: of two mounts at one place only the last is seen
        config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] != _TMP]
        tmp = _mount(_TMP, "bind", "bind", "rw", "nosuid", "nodev", source=cell.tmp)
        config["mounts"].append(tmp)
    if cell.has_port:
        # runc leaves the container in the stage's, over which the container's users have no right.
        # runsc must be told of it, and copies what it finds there into its own network.
        namespaces = [each for each in config["linux"]["namespaces"] if each["type"] != "network"]
        if shape.runtime.kind == "runsc":
            namespaces.append({"type": "network", "path": STAGES_NETWORK})
        config["linux"]["namespaces"] = namespaces
    elif shape.runtime.kind != "runsc":  # as Docker, and as the stage of a cell with a port
        config["linux"]["sysctl"] = {"net.ipv4.ip_unprivileged_port_start": "0"}
    targets = [target for _, target in binds]
    config["process"]["args"] = [AGENT_IN_CELL, "--contained", str(CHANNEL_FD), *targets]
    return config


# In the jail: a directory of the runtime's own, and that of config.json.
_STATE: Final = "/run/r"
BUNDLE: Final = "/bundle"
# A jail has one container: its name need not be unique, and no workload sees it.
_NAME: Final = "c"


def runtime_argv(
    shape: OciShape, program: str, *, has_port: bool = False, trace: str = ""
) -> tuple[str, ...]:
    traced = (f"--pod-init-config={trace}",) if trace else ()
    network = f"--network={'sandbox' if has_port else 'none'}"
    raw = ("--net-raw",) if shape.raw_sockets else ()
    own = (*traced, *_RUNSC_FLAGS, network, *raw) if shape.runtime.kind == "runsc" else ()
    return (program, "--root", _STATE, *own, "run", "--detach", "--bundle", BUNDLE, _NAME)


_RUNSC_FLAGS: Final = (
    # The jail's namespace is already the mapped one; runsc's own would map one id only
    "--rootless=false",
    "--ignore-cgroups",  # the jail's, joined before
    "--host-uds=none",
    "--host-fifo=none",
    "--platform=systrap",
    "--overlay2=none",  # the jail's layer is the bounded one
    "--file-access=exclusive",
    "--directfs=false",  # the sentry opens no file of the jail itself: the gofer does
    "--oci-seccomp",
)
_NAMESPACES: Final = ("user", "pid", "network", "ipc", "uts", "mount", "cgroup")


def _config(
    tier: Tier, arch: str, resources: Resources, *, open_files_max: int, rights: Granted
) -> dict[str, Any]:
    gvisor = tier is Tier.GVISOR
    shm_bytes = (resources.memory_bytes + resources.disk_bytes) // SHM_SHARE
    shm = ("nosuid", "noexec", "nodev", "mode=1777", f"size={shm_bytes}")
    # Group 5 is `tty` in common images.
    pts = ("newinstance", "ptmxmode=0666", "mode=0620", "gid=5", f"max={MAX_TERMINALS}")
    # The agent hands them on to root alone. SYS_ADMIN is its own, until it has taken away the files
    # it came by and set the host name (RENEW).
    names = (*sorted(limits.USUAL_CAPABILITIES), "SYS_ADMIN", *rights.capabilities)
    capabilities = [f"CAP_{name}" for name in names]
    # No runtime can raise a hard limit above its own without a capability (setrlimit(2)).
    soft, hard = (min(limit, open_files_max) for limit in OPEN_FILES)
    id_lines = [{"containerID": 0, "hostID": WORKLOAD_ROOT, "size": ID_COUNT}]
    own: Sequence[dict[str, Any]] = _SYS_OF_HOST
    if gvisor:  # its sysfs has nothing of the host; its default /tmp has no bound
        tmp = ("nosuid", "nodev", "mode=1777", f"size={resources.disk_bytes}")
        own = (
            _mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
            _mount("/tmp", "tmpfs", *tmp),  # noqa: S108 - the cell's own directory
        )
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": [],
            "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "cwd": "/",
            "capabilities": {
                kind: list(capabilities) for kind in ("bounding", "effective", "permitted")
            },
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": soft, "hard": hard}],
            "noNewPrivileges": True,
        },
        "root": {"path": "", "readonly": False},
        "hostname": "",
        "mounts": [
            _mount("/proc", "proc", "nosuid", "noexec", "nodev"),
            _mount("/dev", "tmpfs", "nosuid", "mode=755", "size=1m", "nr_inodes=4096"),
            _mount("/dev/pts", "devpts", "nosuid", "noexec", *pts),
            # The cell's own directory.
            _mount("/dev/shm", "tmpfs", *shm, f"nr_inodes={_MAX_SHM_INODES}"),  # noqa: S108
            _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
            *own,
        ],
        "linux": {
            "uidMappings": id_lines,
            "gidMappings": id_lines,
            "namespaces": [{"type": kind} for kind in _NAMESPACES],
            "maskedPaths": [] if gvisor else list(MASKED_PROC),
            "readonlyPaths": [] if gvisor else list(READ_ONLY_PROC),
            "seccomp": seccomp_profile(arch, gvisor=gvisor, rights=rights),
        },
    }


def _mount(target: str, kind: str, *options: str, source: str = "") -> dict[str, Any]:
    of = source or kind
    return {"destination": target, "type": kind, "source": of, "options": list(options)}


def _bind(source: str, target: str, *options: str) -> dict[str, Any]:
    return _mount(target, "bind", "bind", "ro", "nosuid", "nodev", *options, source=source)


# A shared kernel's sysfs is the host's: an empty directory in its place, with the few files that
# libraries ask for.
_SYS_OF_HOST: Final = (
    _mount(
        "/sys", "tmpfs", "nosuid", "noexec", "nodev", "mode=755", "size=64k", "nr_inodes=32", "ro"
    ),
    *(_bind(path, path, "noexec") for path in CPU_FILES),
)
