"""Rights that a workload may have inside its cell beyond an ordinary container's, and which tier
grants them.

The list is short on purpose. A right is in it only where it can't reach the host, nor the guest
agent, whose word counts in verdicts: see docs/policy.md for the reason of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from belljar.policy import fields as kinds
from belljar.policy.resources import Strict
from belljar.policy.risk import Tier

_NAMES: Final = (
    "CHOWN DAC_OVERRIDE DAC_READ_SEARCH FOWNER FSETID KILL SETGID SETUID SETPCAP LINUX_IMMUTABLE "
    "NET_BIND_SERVICE NET_BROADCAST NET_ADMIN NET_RAW IPC_LOCK IPC_OWNER SYS_MODULE SYS_RAWIO "
    "SYS_CHROOT SYS_PTRACE SYS_PACCT SYS_ADMIN SYS_BOOT SYS_NICE SYS_RESOURCE SYS_TIME "
    "SYS_TTY_CONFIG MKNOD LEASE AUDIT_WRITE AUDIT_CONTROL SETFCAP MAC_OVERRIDE MAC_ADMIN SYSLOG "
    "WAKE_ALARM BLOCK_SUSPEND AUDIT_READ PERFMON BPF CHECKPOINT_RESTORE"
)
CAPABILITIES: Final[Mapping[str, int]] = MappingProxyType({name: number for number, name in enumerate(_NAMES.split())})
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
        Tier.MICROVM: Granted(capabilities=("SYS_PTRACE",), calls=DEBUGGER_CALLS, setuid_programs=True),
    }
)
"""The most that each tier grants. In a container the kernel is the host's, so nothing. In gVisor
the guest agent shares the workload's user namespace, where CAP_SYS_PTRACE would reach it; in a
microVM it does not. Set-user-ID programs add nothing to what a command of the cell's root may do;
gVisor ignores their bit."""


def _read_capabilities(value: object) -> object:
    if isinstance(value, tuple):
        return value
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"a list of capabilities is needed, but this is {kinds.kind_of(value)}")
    names = {name.upper().removeprefix("CAP_") for name in value}
    if unknown := sorted(names - set(CAPABILITIES)):
        raise ValueError(f"{kinds.quoted(unknown[0])} is no capability of Linux")
    return tuple(sorted(names - USUAL_CAPABILITIES))


class Rights(Strict):
    """What the workload may do inside its cell beyond an ordinary container's workload."""

    capabilities: Annotated[
        tuple[str, ...],
        BeforeValidator(_read_capabilities, json_schema_input_type=list[str]),
        PlainSerializer(list, return_type=list[str]),
    ] = Field(default=(), description="Capabilities of root in the cell, beside the usual ones.")
    seccomp: Literal["default", "unconfined"] = Field(
        default="default", description="unconfined: the calls by which debuggers work."
    )
    setuid_programs: Literal["off", "auto", "on"] = Field(
        default="off",
        description="Whether `su`, `sudo` and other set-user-ID programs gain their owner's rights, as in Docker. "
        "auto: where the tier grants it; on: only such a tier will do.",
    )
    privileged: bool = Field(
        default=False, description="All rights that the cell's tier grants, but for set-user-ID programs."
    )

    def common(self, other: Rights) -> Rights:
        """What both ask for. A tier's list is not known here: `privileged` stands for all of it."""
        setuid = min(self.setuid_programs, other.setuid_programs, key=_SETUID.index)
        if self.privileged or other.privileged:
            fewer = self if other.privileged else other
            return fewer.model_copy(update={"setuid_programs": setuid})
        shared = tuple(name for name in self.capabilities if name in other.capabilities)
        is_open = self.seccomp == other.seccomp == "unconfined"
        return Rights(
            capabilities=shared,
            seccomp="unconfined" if is_open else "default",
            setuid_programs=setuid,
        )


_SETUID: Final = ("off", "auto", "on")
NO_RIGHTS: Final = Rights()


def common_rights(ours: Rights | None, floor: Rights | None) -> Rights | None:
    """What a task's policy keeps under an operator's; one that says nothing bounds nothing."""
    return ours if ours is None or floor is None else ours.common(floor)


def is_within(ours: Rights | None, floor: Rights | None) -> bool:
    """Whether a task's policy asks for nothing that an operator's does not have."""
    return common_rights(ours, floor) == ours


def granted(rights: Rights, tier: Tier) -> Granted:
    """What a cell of this tier gets; `refusals` says what it does not get."""
    most = GRANTABLE[tier]
    setuid_programs = most.setuid_programs and rights.setuid_programs != "off"
    if rights.privileged:
        return replace(most, setuid_programs=setuid_programs)
    return Granted(
        capabilities=tuple(name for name in most.capabilities if name in rights.capabilities),
        calls=most.calls if rights.seccomp == "unconfined" else (),
        setuid_programs=setuid_programs,
    )


def refusals(rights: Rights, tier: Tier) -> Iterator[str]:
    """What of these rights the tier does not grant, as the author wrote it."""
    most = GRANTABLE[tier]
    if rights.privileged and not most.calls:
        yield "privileged"
    yield from (f"CAP_{name}" for name in rights.capabilities if name not in most.capabilities)
    if rights.seccomp == "unconfined" and not most.calls:
        yield "seccomp: unconfined"
    if rights.setuid_programs == "on" and not most.setuid_programs:
        yield "set-user-ID programs"
