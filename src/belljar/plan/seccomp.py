"""The container's seccomp profile: `seccomp.toml` → OCI's `linux.seccomp`. Deny by default."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from belljar.dataclass import dataclass, replace
from belljar.policy.limits import NOTHING_GRANTED, Granted

# Of most arguments the kernel looks at the lower 32 bits alone.
_WORD: Final = 0xFFFF_FFFF
# The machine's own: 32-bit and x32 calls on x86_64 kill the caller.
ARCHITECTURES: Final = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CallGroup:
    """Calls that are treated alike, and why.

    `any_of`: alternative sets of OCI's `args`; none: always. `error` None: allowed; 0: pretended.
    """

    why: str
    calls: tuple[str, ...]
    any_of: tuple[tuple[Mapping[str, Any], ...], ...] = ()
    error: int | None = None


# The part of a group's answer that its table doesn't write out.
_ERRORS: Final = {"pretend": 0, "refuse": errno.EPERM}


def seccomp_profile(
    arch: str, *, gvisor: bool, rights: Granted = NOTHING_GRANTED
) -> dict[str, Any]:
    """`linux.seccomp` for this machine. Raises `ValueError` for another architecture.

    `gvisor`: as runsc's kernel applies it. `rights`: they open calls.
    """
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
        opened = CallGroup(why="rights of the plan", calls=rights.calls)
        groups = (opened, *(_without(group, set(rights.calls)) for group in groups))
    # Tools that set up or watch a network need packet sockets: the right brings them along.
    if "NET_ADMIN" in rights.capabilities:
        packets = ((_masked(0, socket.AF_PACKET),),)
        opened = CallGroup(why="rights of the plan", calls=("socket",), any_of=packets)
        groups = (opened, *groups)
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "architectures": [ARCHITECTURES[arch]],
        "syscalls": [entry for group in groups if group.calls for entry in _entries(group)],
    }


@cache
def load_rules() -> Mapping[str, tuple[CallGroup, ...]]:
    """Return the package's rules, by their table's name."""
    import tomllib  # here: the microvm tier needs no profile

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
        any_of += [(_masked(unless["argument"], value, mask),) for value, mask in allowed]
    return CallGroup(
        why=item["why"],
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
    """(value, mask) pairs for all numbers but `values`."""
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
