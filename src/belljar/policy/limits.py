"""What a cell may at most. Without pydantic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import total_ordering
from typing import Any, Final

from belljar.dataclass import dataclass, field_names
from belljar.errors import PolicyError
from belljar.units import format_size

WEIGHTS_IN_CELL: Final = "/weights"  # where a model cell's weights are, read-only


@total_ordering
class _Scale(Enum):
    """Words in order, least first, compared by position."""

    def __str__(self) -> str:
        return str(self.value)

    def __lt__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        order = list(type(self))
        return order.index(self) < order.index(other)


class Risk(_Scale):
    """The model's possible worst, mildest first."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Tier(_Scale):
    """A cell's isolation, weakest first."""

    CONTAINER = "container"
    GVISOR = "gvisor"
    MICROVM = "microvm"


def least_tier(risk: Risk) -> Tier:
    return {Risk.LOW: Tier.CONTAINER, Risk.MEDIUM: Tier.GVISOR}.get(risk, Tier.MICROVM)


def demanded_tier(risk: Risk, asked: Tier | None) -> Tier:
    """Raises `PolicyError` for less than the risk's."""
    least = least_tier(risk)
    if asked is not None and asked < least:
        what = f"tier `{asked}` is less than risk `{risk}` demands, which is `{least}`"
        hint = f"leave `tier` out, or write `tier: {least}`; lower `risk` only if the risk is lower"
        raise PolicyError(f"{what}; a tier can only be raised", where="tier", hint=hint)
    return asked or least


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """`sections.ResourcesText` documents the fields."""

    cpus: int = 1
    memory_bytes: int = 512 << 20
    disk_bytes: int = 512 << 20
    processes: int = 512
    lifetime_s: float = 4 * 3600.0
    exec_timeout_s: float = 600.0
    output_bytes: int = 10 << 20

    @classmethod
    def words(cls) -> dict[str, str]:
        """Return each field's word in a policy file."""
        return {name: re.sub("_(bytes|s)$", "", name) for name in field_names(cls)}

    def written(self) -> dict[str, Any]:
        return {word: getattr(self, name) for name, word in self.words().items()}

    def memory_sum(self, limit_bytes: int) -> str:
        overhead_bytes = limit_bytes - self.memory_bytes - self.disk_bytes
        return (
            f"{format_size(limit_bytes)} (memory {format_size(self.memory_bytes)} + disk "
            f"{format_size(self.disk_bytes)} + overhead {format_size(overhead_bytes)})"
        )


ANY: Final = "*"  # stands alone: no other pattern is read, so a name with a star in it is a name


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTools:
    allow: tuple[str, ...]

    def permits(self, names: Iterable[str]) -> bool:
        """A tool has its own name and its server's."""
        return ANY in self.allow or any(name in self.allow for name in names)

    def __str__(self) -> str:
        if not self.allow:
            return "refused"
        if ANY in self.allow:
            return "allowed, and reported"
        return f"refused, but for {', '.join(self.allow)}"


REFUSE: Final = HostTools(allow=())  # the default from risk `high` on
REPORT: Final = HostTools(allow=(ANY,))  # nothing is refused, and the report names each call


def usual_host_tools(risk: Risk) -> HostTools:
    return REFUSE if risk >= Risk.HIGH else REPORT


# In the order of their numbers: a name in the wrong place would grant another right.
_NAMES: Final = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
    "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO "
    "SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME "
    "SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG "
    "WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
)
# Every capability of Linux 6.12 by its number (linux/capability.h).
CAPABILITIES: Final[Mapping[str, int]] = {
    name: number for number, name in enumerate(_NAMES.split())
}
# What root of a container has by default, with Docker and in a cell.
USUAL_CAPABILITIES: Final = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "SETFCAP"),
        *("NET_BIND_SERVICE", "NET_RAW", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
# What `seccomp: unconfined` opens; each needs the right to trace.
DEBUGGER_CALLS: Final = ("kcmp", "personality", "pidfd_getfd", "process_madvise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """`calls` are everyone's, not root's alone."""

    capabilities: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    setuid_programs: bool = False

    @property
    def mask(self) -> int:
        return sum(1 << CAPABILITIES[name] for name in self.capabilities)

    def __str__(self) -> str:
        parts = (
            ", ".join(f"CAP_{name}" for name in self.capabilities),
            f"the calls {', '.join(self.calls)}" if self.calls else "",
            "set-user-ID programs work" if self.setuid_programs else "",
        )
        return "; ".join(part for part in parts if part)


NOTHING_GRANTED: Final = Granted()
# The most that each tier grants
# In a container the kernel is the host's. In gVisor CAP_SYS_PTRACE would reach the guest agent, and
# set-user-ID bits are ignored; in a microVM they add nothing to what root of the cell may do, nor
# does CAP_DAC_READ_SEARCH: root reads every file, and files are not opened by handle. CAP_NET_ADMIN
# holds over the cell's own network stack: what leaves it is judged on the host.
GRANTABLE: Final[Mapping[Tier, Granted]] = {
    Tier.CONTAINER: NOTHING_GRANTED,
    Tier.GVISOR: Granted(capabilities=("NET_ADMIN",), calls=DEBUGGER_CALLS),
    Tier.MICROVM: Granted(
        capabilities=("DAC_READ_SEARCH", "NET_ADMIN", "SYS_PTRACE"),
        calls=DEBUGGER_CALLS,
        setuid_programs=True,
    ),
}
# Why what tasks ask for most is refused in every tier.
NEVER_GRANTED: Final = {"SYS_ADMIN": "mounts and namespaces of a cell are its guest agent's"}
