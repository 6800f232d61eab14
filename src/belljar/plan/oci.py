"""`config.json` and command line of `runc` (container tier) and `runsc` (gvisor tier). Pure.

Paths are *inside the jail*, where the runtime runs. OCI runtime specification 1.0.2; see
`design/isolation.md`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from belljar.dataclass import dataclass
from belljar.plan.jail import WORKLOAD_ROOT
from belljar.plan.seccomp import seccomp_profile
from belljar.policy.limits import NOTHING_GRANTED, WEIGHTS_IN_CELL, Granted, Resources, Tier

OCI_VERSION: Final = "1.0.2"
# As many as subordinate ids are handed out at once; `nobody` is 65534.
ID_COUNT: Final = 1 << 16
# Gone before the workload runs; neutral names, in a directory that every image has.
AGENT_IN_CELL: Final = "/dev/.i"
PROBE_IN_CELL: Final = "/dev/.p"
# Standard input: a detached container keeps it from its starter, without an option of the runtime.
CHANNEL_FD: Final = 0
_TMP: Final = "/tmp"  # noqa: S108 - the cell's
# As the runtime sees it, which is in it.
STAGES_NETWORK: Final = "/proc/self/ns/net"
# One part in so many of the memory may be shared, as in the VM.
SHM_SHARE: Final = 2
# Soft: what `select` can watch. Hard: systemd's default (DefaultLimitNOFILE=), as services expect.
OPEN_FILES: Final = (1024, 524_288)
# Of a cell; the host has 3,072 for all (kernel.pty.max and .reserve).
MAX_TERMINALS: Final = 64
_MAX_SHM_INODES: Final = 65_536
# A page: a smaller file takes one all the same.
_BYTES_PER_INODE: Final = 4096
# Few pages make few inodes: a small disk still holds a tree of small files.
_MIN_INODES: Final = 16_384
# A tmpfs holds inodes in the kernel's memory: a disk beyond 16 GiB gets no more of them.
_MAX_INODES: Final = 4_194_304

RuntimeKind = Literal["runc", "runsc"]

_CAPABILITIES: Final = (
    # What the image's root has when a policy's user is root; the agent hands on no more, and
    # nothing at all to anybody else.
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP "
    "SETGID SETPCAP SETUID SYS_CHROOT "
    # The agent's alone, until it has taken away the files it came by and set the host name (RENEW).
    "SYS_ADMIN"
)
AGENT_CAPABILITIES: Final = tuple(f"CAP_{name}" for name in _CAPABILITIES.split())
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
# Some sysctls are the whole host's, in whatever namespace they are written.
READ_ONLY_PROC: Final = ("/proc/sys", "/proc/tty")
# All that is shown of the host's sysfs.
CPU_FILES: Final = tuple(
    f"/sys/devices/system/cpu/{name}" for name in ("online", "possible", "present")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OciRuntime:
    """The program that makes the container; `path`: on the host."""

    name: str
    kind: RuntimeKind
    path: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OciShape:
    """A container; `config`: config.json but for what `OciCell` has.

    `raw_sockets`: runsc must be told. `memory_max_bytes`: for processes and files together.
    `disk_bytes`, `disk_inodes`: the writable layer's. `devices`: besides the usual six.
    """

    runtime: OciRuntime
    memory_max_bytes: int
    disk_bytes: int
    disk_inodes: int
    processes: int
    debugger_calls: bool = False
    raw_sockets: bool = False
    devices: tuple[str, ...] = ()
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class OciCell:
    """What is one cell's own; paths are the jail's, "" for none.

    `tmp`: the image's /tmp, mounted over itself: gVisor's own has no inode limit. `has_port`: the
    jail's stage has a network namespace with a link.
    """

    hostname: str
    root: str = "/new"
    agent: str = "/i/agent"
    probe: str = "/i/probe"
    tmp: str = ""
    has_port: bool = False
    weights: str = ""


def oci_shape(
    tier: Tier,
    runtime: OciRuntime,
    resources: Resources,
    *,
    arch: str,
    open_files_max: int,
    rights: Granted = NOTHING_GRANTED,
    devices: tuple[str, ...] = (),
) -> OciShape:
    """The container for these resources. `open_files_max`: this host's."""
    return OciShape(
        runtime=runtime,
        memory_max_bytes=resources.memory_bytes + resources.disk_bytes,
        disk_bytes=resources.disk_bytes,
        disk_inodes=writable_inodes(resources),
        processes=resources.processes,
        debugger_calls=bool(rights.calls),
        raw_sockets="NET_ADMIN" in rights.capabilities,
        devices=devices,
        config=_config(tier, arch, resources, open_files_max=open_files_max, rights=rights),
    )


def writable_inodes(resources: Resources) -> int:
    """How many files the writable layer may hold."""
    return min(max(resources.disk_bytes // _BYTES_PER_INODE, _MIN_INODES), _MAX_INODES)


def oci_config(shape: OciShape, cell: OciCell) -> dict[str, Any]:
    """One cell's config.json, the caller's own copy."""
    # Deep: cells of one shape share the plan's document, and its lists are added to below.
    config = copy.deepcopy(dict(shape.config))
    config["hostname"] = cell.hostname
    config["root"]["path"] = cell.root
    binds = [(cell.agent, AGENT_IN_CELL), *([(cell.probe, PROBE_IN_CELL)] if cell.probe else [])]
    config["mounts"] += [_bind(source, target, executable=True) for source, target in binds]
    for path in shape.devices:  # the jail's node, of a file system that may have nodes
        bind = _mount(path, "bind", "bind", "rw", "nosuid", "noexec")
        config["mounts"].append(bind | {"source": path})
    if cell.weights:
        config["mounts"].append(_bind(cell.weights, WEIGHTS_IN_CELL))
    # In place of gVisor's own tmpfs: of two mounts at one place only the last is seen.
    if cell.tmp:
        config["mounts"] = [mount for mount in config["mounts"] if mount["destination"] != _TMP]
        tmp = _mount(_TMP, "bind", "bind", "rw", "nosuid", "nodev")
        config["mounts"].append(tmp | {"source": cell.tmp})
    if cell.has_port:
        # runc leaves the container in the stage's, over which the container's users have no right.
        # runsc must be told of it, and copies what it finds there into its own network.
        namespaces = [each for each in config["linux"]["namespaces"] if each["type"] != "network"]
        if shape.runtime.kind == "runsc":
            namespaces.append({"type": "network", "path": STAGES_NETWORK})
        config["linux"]["namespaces"] = namespaces
    elif shape.runtime.kind != "runsc":  # as Docker, and as the stage of a cell with a port
        config["linux"]["sysctl"] = {"net.ipv4.ip_unprivileged_port_start": "0"}
    config["process"]["args"] = [
        AGENT_IN_CELL,
        "--contained",
        str(CHANNEL_FD),
        *(target for _, target in binds),
    ]
    return config


def runtime_argv(
    shape: OciShape,
    program: str,
    *,
    state: str,
    bundle: str,
    name: str,
    has_port: bool = False,
    trace: str = "",
) -> tuple[str, ...]:
    """What starts the container and ends; the agent goes on with descriptor 0.

    `state`: a directory of the runtime's own; `bundle`: that of config.json; `trace`: runsc's trace
    points. No workload sees `name`.
    """
    traced = (f"--pod-init-config={trace}",) if trace else ()
    network = f"--network={'sandbox' if has_port else 'none'}"
    raw = ("--net-raw",) if shape.raw_sockets else ()
    own = (*traced, *_RUNSC_FLAGS, network, *raw) if shape.runtime.kind == "runsc" else ()
    return (program, "--root", state, *own, "run", "--detach", "--bundle", bundle, name)


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


def _config(
    tier: Tier, arch: str, resources: Resources, *, open_files_max: int, rights: Granted
) -> dict[str, Any]:
    gvisor = tier is Tier.GVISOR
    shm_bytes = (resources.memory_bytes + resources.disk_bytes) // SHM_SHARE
    capabilities = [*AGENT_CAPABILITIES, *(f"CAP_{name}" for name in rights.capabilities)]
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
        "ociVersion": OCI_VERSION,
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
        "mounts": [*_mounts(shm_bytes), *own],
        "linux": {
            "uidMappings": id_lines,
            "gidMappings": id_lines,
            "namespaces": [
                {"type": kind}
                for kind in ("user", "pid", "network", "ipc", "uts", "mount", "cgroup")
            ],
            "maskedPaths": [] if gvisor else list(MASKED_PROC),
            "readonlyPaths": [] if gvisor else list(READ_ONLY_PROC),
            "seccomp": seccomp_profile(arch, gvisor=gvisor, rights=rights),
        },
    }


def _mounts(shm_bytes: int) -> list[dict[str, Any]]:
    shm = f"size={shm_bytes}", f"nr_inodes={_MAX_SHM_INODES}"
    # Group 5 is `tty` in common images.
    pts = "newinstance", "ptmxmode=0666", "mode=0620", "gid=5", f"max={MAX_TERMINALS}"
    return [
        _mount("/proc", "proc", "nosuid", "noexec", "nodev"),
        _mount("/dev", "tmpfs", "nosuid", "mode=755", "size=1m", "nr_inodes=4096"),
        _mount("/dev/pts", "devpts", "nosuid", "noexec", *pts),
        # The cell's own directory.
        _mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", *shm),  # noqa: S108
        _mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
    ]


def _mount(target: str, kind: str, *options: str) -> dict[str, Any]:
    return {"destination": target, "type": kind, "source": kind, "options": list(options)}


def _bind(source: str, target: str, *, executable: bool = False) -> dict[str, Any]:
    options = ["bind", "ro", "nosuid", "nodev", *(() if executable else ("noexec",))]
    return {"destination": target, "type": "bind", "source": source, "options": options}


# A shared kernel's sysfs is the host's: an empty directory in its place, with the few files that
# libraries ask for.
_SYS_OF_HOST: Final = (
    _mount(
        "/sys", "tmpfs", "nosuid", "noexec", "nodev", "mode=755", "size=64k", "nr_inodes=32", "ro"
    ),
    *(_bind(path, path) for path in CPU_FILES),
)
