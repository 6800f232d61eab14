"""Keys of a service that ask for rights inside its machine: `cap_add`, `cap_drop`, `privileged`,
`security_opt`.

Pure.

Each reads a value into a policy's `rights`; False (or `ValueError`) when it can't be read. Raises
`CannotKeepError` for a right that no tier grants. Which tier a cell gets is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from belljar.compose.words import Refusals, names_in, refusal, switch, text
from belljar.policy.granted import DEBUGGER_CALLS, GRANTABLE, USUAL_CAPABILITIES

if TYPE_CHECKING:
    from belljar.compose.service import Converted

_REFUSED_OPTION: Final = "it would weaken the isolation of the cell"
_PROFILES: Final = frozenset({"label", "apparmor", "seccomp"})
_GRANTED: Final = frozenset(name for most in GRANTABLE.values() for name in most.capabilities)
_CAPABLE: Final = " or ".join(str(tier) for tier, most in GRANTABLE.items() if most.capabilities)
_CALLING: Final = " or ".join(str(tier) for tier, most in GRANTABLE.items() if most.calls)
_NO_TIER: Final = "no tier grants this capability; what can be granted: " + ", ".join(sorted(_GRANTED))
_DEBUGGERS: Final = f"the calls by which debuggers work ({', '.join(DEBUGGER_CALLS)}) are granted in tier {_CALLING}, not in a container"
_PRIVILEGED: Final = (
    f"all rights on Belljar's list (CAP_{', CAP_'.join(sorted(_GRANTED))}; {', '.join(DEBUGGER_CALLS)}) "
    f"are granted in tier {_CALLING} (capabilities: {_CAPABLE}), not in a container; devices, mounts,"
    " namespaces and modules stay closed"
)


def read_security_opt(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """Labels and profiles of a host's security modules narrow a container; a cell has its own
    filter."""
    if not isinstance(value, list):
        return False
    for option in map(text, value):
        name, _, rest = option.replace("=", ":", 1).partition(":")
        if name == "no-new-privileges" and rest in ("", "true"):
            converted.words["rights"] = {**converted.words.get("rights", {}), "setuid_programs": "off"}
            continue
        if (name, rest) == ("seccomp", "unconfined"):
            converted.granted("security_opt", _DEBUGGERS, seccomp="unconfined")
            continue
        if name not in _PROFILES:
            raise refusal(f"service {converted.service}", "security_opt", f"{option}: {_REFUSED_OPTION}")
        converted.dropped("security_opt", f"{option}: a cell's programs have its own filter")
    return True


def read_cap_add(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """The usual capabilities are root's anyway; one that no tier grants is refused by its name."""
    names = {name.upper().removeprefix("CAP_") for name in map(text, names_in(value))}
    if isinstance(value, Mapping):
        return False
    if "ALL" in names:
        return read_privileged("true", converted, key="cap_add")
    more = sorted(names - USUAL_CAPABILITIES)
    refused = Refusals()
    for name in more:
        with refused.collected():
            if name not in _GRANTED:
                raise refusal(f"service {converted.service}", "cap_add", f"{name}: {_NO_TIER}")
    refused.raise_all()
    if "MKNOD" in names:
        converted.dropped("cap_add", "MKNOD: a cell has the usual six devices, and makes no others")
    for name in more:
        converted.granted("cap_add", f"{name}: granted in tier {_CAPABLE}", capabilities=more)
    return True


def read_cap_drop(value: Any, converted: Converted) -> bool:  # noqa: ANN401 - YAML
    """What works in a cell for its owner (files that are written as root) needs the usual ones."""
    if isinstance(value, Mapping):
        return False
    if names_in(value):
        why = "it is not narrowed: root keeps a container's usual capabilities, over its cell alone"
        converted.changed("cap_drop", why)
    return True


def read_privileged(value: Any, converted: Converted, *, key: str = "privileged") -> bool:  # noqa: ANN401 - YAML
    """All that the cell's tier grants; the difference lists it."""
    if switch(value):
        converted.granted(key, _PRIVILEGED, privileged=True)
    return True
