"""What to say of a container that did not come up, or that ended: from what the host saw of its
jail, its runtime and its limits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from belljar.errors import CellError
from belljar.host.tools import at_least
from belljar.isolation.jail import JailEnd
from belljar.isolation.jailed import Jailed
from belljar.isolation.lifetime import signal_name
from belljar.plan.jail import JailLimits
from belljar.plan.oci import RuntimeKind
from belljar.units import format_duration, format_size

_DEATH_WORD_S: Final = 0.5
_SILENT_CRUN: Final = "; crun before 1.9 ends without a word where control groups of version 1 and 2 are mixed: use runc, or a newer crun"

# runc copies itself into memory and seals the copy. Under load, other users of its pages may keep
# the kernel from sealing for longer than it waits (memfd_wait_for_pins, 150 ms). runc 1.1, then 1.2
# and later.
_BUSY_SEALS: Final = (
    "could not ensure we are a cloned binary: device or resource busy",
    "fcntl(f_add_seals): device or resource busy",
)


def is_busy_sealing(diagnosis: str) -> bool:
    """Whether runc failed before it made anything, since the kernel could not seal its copy yet.

    Pure.
    """
    return any(words in diagnosis.lower() for words in _BUSY_SEALS)


def explain_runtime(
    how: str, *, name: str, version: str, where: str, silent: bool = False
) -> CellError:
    """The error for a runtime that did not start a container: which one it was, and what is known
    of it. Pure.

    Args:
        how: what it did, as a clause.
        silent: it wrote nothing.
    """
    program = Path(name).name
    silent_crun = silent and program.startswith("crun") and not at_least(version, "1.9")
    another = (
        "install another runsc"
        if program.startswith("runsc")
        else "name another OCI runtime in BELLJAR_OCI_RUNTIME"
    )
    hint = f"{another}, or use another tier; `belljar doctor` tries it again"
    return CellError(
        f"the OCI runtime {name} {version} {how}{_SILENT_CRUN if silent_crun else ''}",
        where=where,
        hint=hint,
    )


def said(diagnosis: str) -> str:
    """What launcher and runtime said, if they did, to end a sentence with. Pure."""
    return f"; it said: {diagnosis}" if diagnosis else ""


def death_limit(end: JailEnd | None, *, fatal_oom_kills: int) -> str | None:
    """The limit that ended a container, from what the host saw. Pure."""
    if end is None:
        return None
    if end.cause == "lifetime":
        return "lifetime"
    return "memory" if end.cause == "itself" and fatal_oom_kills > 0 else None


def cause_of_death(
    jailed: Jailed, limits: JailLimits, kind: RuntimeKind, *, fatal_oom_kills: int
) -> str:
    """One sentence, from what the host saw; empty while the agent runs.

    May wait half a second for the supervisor's word.
    """
    end = jailed.end() or jailed.last_word(_DEATH_WORD_S)
    if end is None:
        return ""
    match death_limit(end, fatal_oom_kills=fatal_oom_kills), end.cause:
        case "lifetime", _:
            return f"its lifetime of {format_duration(limits.lifetime_s)} was reached"
        case "memory", _:
            return f"out of memory: it reached its limit of {format_size(limits.memory_max_bytes)}"
        case _, "owner":
            return "its owner ended it"
    return ended_by_itself(
        end,
        kind=kind,
        memory=(jailed.memory_peak_bytes(), limits.memory_max_bytes),
        refused_forks=jailed.count_refused_forks(),
    )


def ended_by_itself(end: JailEnd, *, kind: str, memory: tuple[int, int], refused_forks: int) -> str:
    """An end that no limit is known for: what ended, how, and how near the limits were. Pure.

    Args:
        memory: the most that was in use (0: not known), and the limit.
        refused_forks: how often the host refused the cell a process or thread.
    """
    who = "gVisor's sentry or the guest agent in it" if kind == "runsc" else "its guest agent"
    how = f"signal {signal_name(end.signal)}" if end.signal is not None else f"status {end.status}"
    used = (
        f"at most {format_size(memory[0])} of {format_size(memory[1])} of memory was in use"
        if memory[0]
        else ""
    )
    refused = f"the host refused it {refused_forks} processes or threads" if refused_forks else ""
    known = "; ".join(
        ("no limit is known to have been reached", *(word for word in (used, refused) if word))
    )
    return f"{who} ended, or was killed (the last word was {how}; {known})"
