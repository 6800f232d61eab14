"""Which tier grants which rights inside a cell beyond an ordinary container's. Without pydantic:
each plan needs this."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from belljar.dataclass import dataclass
from belljar.policy.risk import Tier

if TYPE_CHECKING:
    from belljar.policy.rights import Rights

_NAMES: Final = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
    "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO "
    "SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME "
    "SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG "
    "WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
)
CAPABILITIES: Final[Mapping[str, int]] = MappingProxyType(
    {name: number for number, name in enumerate(_NAMES.split())}
)
"""Every capability of Linux 6.12 by its number (linux/capability.h)."""
USUAL_CAPABILITIES: Final = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "SETFCAP"),
        *("NET_BIND_SERVICE", "NET_RAW", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
"""What root of a container has by default, with Docker and in a cell."""
DEBUGGER_CALLS: Final = ("kcmp", "personality", "pidfd_getfd", "process_madvise")
"""What `seccomp: unconfined` opens: calls by which debuggers work, each of which needs the right to
trace its target. All others that a cell's filter refuses stay refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """Rights in a plan: capabilities of the workload's root, system calls of everyone, and whether
    set-user-ID programs gain their owner's rights.
    """

    capabilities: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    setuid_programs: bool = False

    @property
    def mask(self) -> int:
        """The capabilities as the kernel writes them."""
        return sum(1 << CAPABILITIES[name] for name in self.capabilities)

    def __str__(self) -> str:
        capabilities = (f"CAP_{name}" for name in self.capabilities)
        parts = (
            ", ".join(capabilities),
            f"the calls {', '.join(self.calls)}" if self.calls else "",
            "set-user-ID programs work" if self.setuid_programs else "",
        )
        return "; ".join(part for part in parts if part)


NOTHING_GRANTED: Final = Granted()
GRANTABLE: Final[Mapping[Tier, Granted]] = MappingProxyType(
    {
        Tier.CONTAINER: NOTHING_GRANTED,
        Tier.GVISOR: Granted(calls=DEBUGGER_CALLS),
        Tier.MICROVM: Granted(
            capabilities=("SYS_PTRACE",), calls=DEBUGGER_CALLS, setuid_programs=True
        ),
    }
)
"""The most that each tier grants. In a container the kernel is the host's, so nothing. In gVisor
the guest agent shares the workload's user namespace, where CAP_SYS_PTRACE would reach it; in a
microVM it does not. Set-user-ID programs add nothing to what a command of the cell's root may do;
gVisor ignores their bit."""


def granted(rights: Rights | None, tier: Tier) -> Granted:
    """What a cell of this tier gets; `refusals` says what it does not get."""
    if rights is None:
        return NOTHING_GRANTED
    most = GRANTABLE[tier]
    setuid_programs = most.setuid_programs and rights.setuid_programs != "off"
    if rights.privileged:
        return replace(most, setuid_programs=setuid_programs)
    return Granted(
        capabilities=tuple(name for name in most.capabilities if name in rights.capabilities),
        calls=most.calls if rights.seccomp == "unconfined" else (),
        setuid_programs=setuid_programs,
    )


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
