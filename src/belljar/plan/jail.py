"""The launcher's command line: a VMM's jail, or a runtime's."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from belljar.dataclass import dataclass

INNER_ID: Final = 1000  # of the VMM in its namespace: an ordinary user's, never root's
# Too small for a file, and the one RLIMIT_CORE at which the kernel doesn't start the program that a
# piped `core_pattern` names (fs/coredump.c)
_NO_CORE: Final = 1
WORKLOAD_ROOT: Final = 1  # in the jail's user namespace; 0 is the stage
MountKind = Literal["bind", "tree", "device", "tmpfs", "proc", "sysfs", "cgroup", "overlay"]
IdLine = tuple[int, int, int]  # first id inside, first on the host, count


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLimits:
    """100 `cpu_quota_percent` are one core."""

    memory_max_bytes: int
    cpu_quota_percent: int | None
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JailLimits(GroupLimits):
    """`address_space_bytes` holds without control groups."""

    lifetime_s: float
    address_space_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IdRange:
    start: int
    count: int = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class JailIdentity:
    """`uids` and `gids` are an OCI workload's, beside its stage."""

    host_uid: int
    host_gid: int
    privileged: bool
    uids: IdRange | None = None
    gids: IdRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JailIds:
    """A line for 0 is the program's. Below `JailFds.user_namespace` outer ids are that one's."""

    uid_map: tuple[IdLine, ...]
    gid_map: tuple[IdLine, ...]
    newuidmap: Path | None = None
    newgidmap: Path | None = None


def nested_cell_ids() -> JailIds:
    """Return `cell_ids` below a range's user namespace."""
    lines = ((0, 0, 1), (WORKLOAD_ROOT, WORKLOAD_ROOT, IdRange(start=WORKLOAD_ROOT).count))
    return JailIds(uid_map=lines, gid_map=lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class JailMount:
    """One mount in the new root, in order; `target` exists there, or is made on a tmpfs.

    - `bind`: `source`, as a `JailBind`.
    - `tree`: directory `source`, read-only; `shift` (id on disk, host id, count) id-maps it.
    - `device`: `source`, one character device.
    - `tmpfs`: at most `size_bytes` and `inodes`; noexec unless `executable`.
    - `proc`, `sysfs` and `cgroup`: the jail's own.
    - `overlay`: of `lower`, `upper` and `work` in the new root; the last two are made.
    """

    kind: MountKind
    target: str
    source: Path | None = None
    writable: bool = False
    shift: IdLine | None = None
    size_bytes: int = 0
    inodes: int = 0
    mode: int = 0o755
    executable: bool = False
    lower: str = ""
    upper: str = ""
    work: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JailBind:
    """The host's file, noexec and read-only."""

    source: Path
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JailFds:
    """`kept` and `stdin` are the program's; a byte on `network` says ready."""

    lifeline: int
    status: int
    kept: tuple[int, ...]
    hold: int | None = None
    stdin: int | None = None
    user_namespace: int | None = None
    network: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSpec:
    """`init`: when the program ended with 0 (else step 21, runtime), what it left goes on.

    `network`: "covered" hides `/proc/sys/net`. `rlimits` None: a VMM's without `ids`, else none.
    """

    cell_id: str
    owner_pid: int
    root: Path
    identity: JailIdentity
    limits: JailLimits
    memory_by_rlimit: bool
    binds: tuple[JailBind, ...] = ()
    cgroups: tuple[Path, ...] = ()
    ids: JailIds | None = None
    mounts: tuple[JailMount, ...] = ()
    keep_capabilities: bool = False
    init: bool = False
    network: Literal["", "plain", "covered"] = ""
    environment: tuple[tuple[str, str], ...] = ()
    rlimits: tuple[tuple[str, int], ...] | None = None
    hostname: str = "localhost"


def cell_ids(
    identity: JailIdentity, newuidmap: Path | None = None, newgidmap: Path | None = None
) -> JailIds:
    """Map 0 to the stage, then the workload's range."""
    uids, gids = identity.uids, identity.gids
    if uids is None or gids is None:
        raise ValueError("this identity has no range of ids")
    return JailIds(
        uid_map=((0, identity.host_uid, 1), (WORKLOAD_ROOT, uids.start, uids.count)),
        gid_map=((0, identity.host_gid, 1), (WORKLOAD_ROOT, gids.start, gids.count)),
        newuidmap=newuidmap,
        newgidmap=newgidmap,
    )


def jail_argv(
    launcher: str, spec: JailSpec, fds: JailFds, program: tuple[str, ...]
) -> tuple[str, ...]:
    return (
        launcher,
        *("--cell", spec.cell_id, "--root", str(spec.root), "--owner", str(spec.owner_pid)),
        *(("--privileged",) if spec.identity.privileged else ()),
        *_identity(spec, is_nested=fds.user_namespace is not None),
        *("--lifeline", str(fds.lifeline), "--status", str(fds.status)),
        *("--lifetime-ms", str(round(spec.limits.lifetime_s * 1000))),
        *(("--hold", str(fds.hold)) if fds.hold is not None else ()),
        *(word for bind in spec.binds for word in ("--bind", str(bind.source), bind.target)),
        *(word for mount in spec.mounts for word in _mount(mount)),
        *(word for path in spec.cgroups for word in ("--cgroup", str(path))),
        *(word for name, value in _rlimits(spec) for word in ("--rlimit", name, str(value))),
        *(word for fd in fds.kept for word in ("--keep", str(fd))),
        *(("--stdin", str(fds.stdin)) if fds.stdin is not None else ()),
        *(("--hostname", spec.hostname) if spec.hostname != "localhost" else ()),
        *(word for name, value in spec.environment for word in ("--env", f"{name}={value}")),
        *(("--keep-capabilities",) if spec.keep_capabilities else ()),
        *(("--init",) if spec.init else ()),
        *(("--user-namespace", str(fds.user_namespace)) if fds.user_namespace is not None else ()),
        *(("--network", str(fds.network), spec.network) if fds.network is not None else ()),
        "--",
        *program,
    )


def _identity(spec: JailSpec, *, is_nested: bool) -> tuple[str, ...]:
    identity, ids = spec.identity, spec.ids
    if ids is None:
        uid, gid = (0, 0) if is_nested else (identity.host_uid, identity.host_gid)
        return ("--uid", str(uid), str(INNER_ID), "--gid", str(gid), str(INNER_ID))
    return (
        *(word for line in ids.uid_map for word in ("--uid-map", *map(str, line))),
        *(word for line in ids.gid_map for word in ("--gid-map", *map(str, line))),
        *(("--newuidmap", str(ids.newuidmap)) if ids.newuidmap else ()),
        *(("--newgidmap", str(ids.newgidmap)) if ids.newgidmap else ()),
    )


def _mount(mount: JailMount) -> tuple[str, ...]:
    match mount.kind:
        case "bind":
            access = "writable" if mount.writable else "read-only"
            return ("--mount-bind", str(mount.source), mount.target, access)
        case "tree" if mount.shift is not None:
            return ("--mount-shifted-tree", str(mount.source), mount.target, *map(str, mount.shift))
        case "tree" | "device":
            return (f"--mount-{mount.kind}", str(mount.source), mount.target)
        case "tmpfs":
            sizes = (str(mount.size_bytes), str(mount.inodes), str(mount.mode))
            return ("--mount-tmpfs", mount.target, *sizes, "exec" if mount.executable else "noexec")
        case "overlay":
            return ("--mount-overlay", mount.target, mount.lower, mount.upper, mount.work)
        case _:
            return (f"--mount-{mount.kind}", mount.target)


def _rlimits(spec: JailSpec) -> tuple[tuple[str, int], ...]:
    given = spec.rlimits or ()
    if spec.rlimits is None and spec.ids is None:  # a VMM's
        given = (("nofile", 256), ("memlock", 65536), ("nproc", spec.limits.processes))
        given += (("fsize", 0),)  # No VMM ever writes a file: its outputs are sockets and pipes
    memory = (("as", spec.limits.address_space_bytes),) if spec.memory_by_rlimit else ()
    return (("core", _NO_CORE), *given, *memory)
