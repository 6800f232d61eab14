"""What becomes of a cell's crash on this host, in words. Pure.

A container's processes are this host's: the kernel hands their core dumps to whatever `core_pattern` names. gVisor's and the VMM's are too, but there only the wall
itself could crash: the workload's crashes end in the sentry, or in the guest's kernel, which has no pattern.
"""

from __future__ import annotations

from belljar.host import CoreFact, CoreState
from belljar.policy import Tier
from belljar.units import printable

CORES_HINT = "as root: sysctl -w kernel.core_pattern=core"


def cores_warning(tier: Tier, cores: CoreFact) -> str:
    """What the plan's author should know of it; "" when the limit of core dumps that every cell has is all there is to it."""
    shown = printable(cores.pattern, max_chars=80)
    if cores.state is CoreState.FILE:
        return ""
    if cores.state is CoreState.SERVER:
        said = f"a crash in a cell is handed to a server of this host ({shown}), and no limit keeps the kernel from it"
        return f"{said}; hint: {CORES_HINT}" if tier is Tier.CONTAINER else ""
    if not cores.can_limit:
        whose = "a crash in a cell" if tier is Tier.CONTAINER else "a crash of what holds the cell"
        said = f"{whose} starts a program of this host as its root ({shown}): a hard limit of core dumps of 0 can't be made 1, at which the kernel starts none"
        return f"{said}; hint: start Belljar with `ulimit -Hc` of 1 or more; or {CORES_HINT}"
    if tier is not Tier.CONTAINER:
        return ""
    return (
        f"this host's kernel starts a program as its root when something crashes ({shown}); only a cell's limit of core dumps of 1 keeps it from that, "
        f"and only its system call profile keeps that limit; hint: {CORES_HINT}"
    )
