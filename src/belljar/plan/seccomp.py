"""The container's seccomp profile: `seccomp.toml` → OCI's `linux.seccomp`. Deny by default."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass
from belljar.policy.limits import NOTHING_GRANTED, Granted

# Of most arguments the kernel looks at the lower 32 bits alone.
_WORD: Final = 0xFFFF_FFFF
# The machine's own: 32-bit and x32 calls on x86_64 kill the caller.
ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ArgumentCondition:
    """`argument` & `mask` (None: all 64 bits) is `value`; `differs`: is not."""

    argument: int
    value: int
    mask: int | None = _WORD
    differs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup:
    """Calls that are treated alike, and why.

    `any_of`: alternative sets of conditions; none: always. `error` None: allowed; 0: pretended.
    """

    why: str
    calls: tuple[str, ...]
    any_of: tuple[tuple[ArgumentCondition, ...], ...] = ()
    error: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The whole file."""

    allow: tuple[CallGroup, ...]
    agent: tuple[CallGroup, ...]
    pretend: tuple[CallGroup, ...]
    refuse: tuple[CallGroup, ...]
    gvisor: tuple[CallGroup, ...]

    def allowed(self) -> frozenset[str]:
        """Every allowed call, some only under conditions."""
        return frozenset(call for group in (*self.allow, *self.agent) for call in group.calls)


def seccomp_profile(
    arch: str, *, gvisor: bool, rights: Granted = NOTHING_GRANTED
) -> dict[str, Any]:
    """`linux.seccomp` for this machine. Raises `ValueError` for another architecture.

    `gvisor`: as runsc's kernel applies it. `rights`: they open calls.
    """
    if arch not in ARCHITECTURES:
        raise ValueError(f"no system call profile for {arch}")
    rules = load_rules()
    groups = (*rules.allow, *rules.agent, *rules.pretend, *rules.refuse)
    if gvisor:  # what it answers itself is allowed whatever the others say of it
        own = {call for group in rules.gvisor for call in group.calls}
        groups = (*rules.gvisor, *(_without(group, own) for group in groups))
    if rights.calls:
        opened = CallGroup(why="rights of the plan", calls=rights.calls)
        groups = (opened, *(_without(group, set(rights.calls)) for group in groups))
    # Tools that set up or watch a network need packet sockets: the right brings them along.
    if "NET_ADMIN" in rights.capabilities:
        packets = (ArgumentCondition(argument=0, value=socket.AF_PACKET),)
        groups = (
            CallGroup(why="rights of the plan", calls=("socket",), any_of=(packets,)),
            *groups,
        )
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "architectures": [ARCHITECTURES[arch]],
        "syscalls": [entry for group in groups if group.calls for entry in _entries(group)],
    }


@cache
def load_rules() -> Rules:
    """Return the package's rules."""
    import tomllib  # here: the microvm tier needs no profile

    data = tomllib.loads(Path(__file__).with_name("seccomp.toml").read_text())
    return Rules(
        allow=tuple(_group(item, error=None) for item in data["allow"]),
        agent=tuple(_group(item, error=None) for item in data["agent"]),
        pretend=tuple(_group(item, error=0) for item in data["pretend"]),
        refuse=tuple(_group(item, error=errno.EPERM) for item in data["refuse"]),
        gvisor=tuple(_group(item, error=None) for item in data["gvisor"]),
    )


def _group(item: Mapping[str, Any], *, error: int | None) -> CallGroup:
    given = item.get("error")
    return CallGroup(
        why=item["why"],
        calls=tuple(item["calls"]),
        any_of=(
            *(_all_but(item["unless"]) if "unless" in item else ()),
            *(tuple(map(_condition, conditions)) for conditions in item.get("when", [])),
        ),
        error=error if given is None else int(getattr(errno, given)),
    )


def _condition(item: Mapping[str, int]) -> ArgumentCondition:
    if "whole" in item:
        return ArgumentCondition(argument=item["argument"], value=item["whole"], mask=None)
    if "whole_not" in item:
        return ArgumentCondition(
            argument=item["argument"], value=item["whole_not"], mask=None, differs=True
        )
    return ArgumentCondition(
        argument=item["argument"], value=item["is"], mask=item.get("mask", _WORD)
    )


def _all_but(unless: Mapping[str, Any]) -> tuple[tuple[ArgumentCondition, ...], ...]:
    # Every 32-bit value but these, as prefixes: libseccomp takes no two comparisons of one argument
    # in a rule, so "not this and not that" can't be said
    argument, values = unless["argument"], frozenset(unless["values"])
    return tuple(
        (ArgumentCondition(argument=argument, value=value, mask=mask),)
        for value, mask in prefixes_without(values, 0, 32)
    )


def prefixes_without(
    values: frozenset[int], value: int, free_bits: int
) -> Iterator[tuple[int, int]]:
    """(value, mask) pairs for all numbers but `values`."""
    within = frozenset(item for item in values if item >> free_bits == value >> free_bits)
    if not within:
        yield value, _WORD >> free_bits << free_bits
    elif free_bits:
        for bit in (0, 1):
            yield from prefixes_without(within, value | bit << (free_bits - 1), free_bits - 1)


def _without(group: CallGroup, taken: set[str]) -> CallGroup:
    calls = tuple(call for call in group.calls if call not in taken)
    return CallGroup(why=group.why, calls=calls, any_of=group.any_of, error=group.error)


def _entries(group: CallGroup) -> Iterator[dict[str, Any]]:
    action: dict[str, Any] = (
        {"action": "SCMP_ACT_ALLOW"}
        if group.error is None
        else {"action": "SCMP_ACT_ERRNO", "errnoRet": group.error}
    )
    for conditions in group.any_of or ((),):
        args = [_argument(item) for item in conditions]
        yield {"names": list(group.calls), **action, **({"args": args} if args else {})}


def _argument(item: ArgumentCondition) -> dict[str, Any]:
    if item.mask is None:
        return {
            "index": item.argument,
            "value": item.value,
            "op": "SCMP_CMP_NE" if item.differs else "SCMP_CMP_EQ",
        }
    return {
        "index": item.argument,
        "value": item.mask,
        "valueTwo": item.value,
        "op": "SCMP_CMP_MASKED_EQ",
    }
