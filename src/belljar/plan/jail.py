"""The launcher's command line, purely: what the jail gives to the one program in it, and how much.

The program gets a read-only root, the files listed, the descriptors listed, one uid (nobody's, when root starts it), and nothing else; see `design/0004-microvm.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from belljar.plan.qemu import VmShape

UID_RANGE_START: Final = 0x7000_0000
"""Host uids of cells when Belljar runs as root: no system allots these (systemd's container ranges end at 0x6FFF_FFFF)."""
SLOTS_PER_HOME: Final = 1 << 12
INNER_ID: Final = 1000
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class JailLimits:
    """What the host lets the jailed VMM use, whatever the guest does.

    `memory_max_bytes` and `cpu_quota_percent` (100 is one core; None: no quota) need control groups; without them `address_space_bytes` bounds memory.
    """

    memory_max_bytes: int
    cpu_quota_percent: int | None
    processes: int
    lifetime_s: float
    address_space_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JailIdentity:
    """Who the jailed program is on the host and inside. `privileged`: root started it, so it has a host uid of its own."""

    host_uid: int
    host_gid: int
    privileged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JailBind:
    """One host file that appears in the jail, `nosuid,nodev,noexec,nosymfollow`, read-only unless `writable` (a template's memory while it is made)."""

    source: Path
    target: str
    writable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JailFds:
    """`kept` are the program's; `lifeline`, `status` and `hold` the supervisor's (`hold` stays open until the jail is empty: the slot's lock)."""

    lifeline: int
    status: int
    kept: tuple[int, ...]
    hold: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSpec:
    """One jail."""

    cell_id: str
    owner_pid: int
    root: Path
    binds: tuple[JailBind, ...]
    identity: JailIdentity
    limits: JailLimits
    cgroups: tuple[Path, ...]
    memory_by_rlimit: bool


def vmm_memory_max_bytes(shape: VmShape) -> int:
    """The RAM, and what the VMM itself may need around it: translated code (64 MiB at most) and its tables under TCG, heaps and stacks."""
    overhead_mib = 192 if shape.accel == "tcg" else 96
    return (shape.ram_mib + overhead_mib + 8 * shape.vcpus) * _MIB


def vmm_address_space_bytes(shape: VmShape) -> int:
    """As above for RLIMIT_AS, which counts what is only reserved: libraries, an arena of 64 MiB and a stack of 8 MiB for each thread."""
    return vmm_memory_max_bytes(shape) + (1024 + 160 * shape.vcpus) * _MIB


def vmm_processes(shape: VmShape) -> int:
    """Threads: the virtual processors, the main loop, RCU, and up to 64 that wait for the disk."""
    return shape.vcpus + 80


def jail_argv(launcher: str, spec: JailSpec, fds: JailFds, program: tuple[str, ...]) -> tuple[str, ...]:
    """The launcher's argv."""
    identity = spec.identity
    return (
        launcher,
        *("--cell", spec.cell_id, "--root", str(spec.root), "--owner", str(spec.owner_pid)),
        *(("--privileged",) if identity.privileged else ()),
        *("--uid", str(identity.host_uid), str(INNER_ID), "--gid", str(identity.host_gid), str(INNER_ID)),
        *(
            "--lifeline",
            str(fds.lifeline),
            "--status",
            str(fds.status),
            "--lifetime-ms",
            str(round(spec.limits.lifetime_s * 1000)),
        ),
        *(("--hold", str(fds.hold)) if fds.hold is not None else ()),
        *(word for bind in spec.binds for word in _bind(bind)),
        *(word for path in spec.cgroups for word in ("--cgroup", str(path))),
        *(word for name, value in _rlimits(spec) for word in ("--rlimit", name, str(value))),
        *(word for fd in fds.kept for word in ("--keep", str(fd))),
        "--",
        *program,
    )


def _bind(bind: JailBind) -> tuple[str, str, str]:
    return ("--bind-writable" if bind.writable else "--bind", str(bind.source), bind.target)


def _rlimits(spec: JailSpec) -> list[tuple[str, int]]:
    limits = [("core", 0), ("nofile", 256), ("memlock", 65536), ("nproc", spec.limits.processes)]
    if not any(bind.writable for bind in spec.binds):
        limits.append(("fsize", 0))
    if spec.memory_by_rlimit:
        limits.append(("as", spec.limits.address_space_bytes))
    return limits
