"""What becomes of a cell's crash on this host. Pure.

A container's processes are this host's: the kernel hands their core dumps to what `core_pattern`
names. In the gVisor and microVM tiers only the sentry or the VMM could crash so: the workload's own
crashes end in the sentry, or in the guest's kernel, which has no pattern.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from belljar.host import CoreFact, CoreState
from belljar.policy import Tier
from belljar.units import printable

_HINT: Final = "as root: sysctl -w kernel.core_pattern=core"


class CoresWarning(NamedTuple):
    """Where a crash in a cell goes, and what to do about it."""

    what: str
    hint: str


def cores_warning(tier: Tier, cores: CoreFact) -> CoresWarning | None:
    """None when a cell's limit of core dumps already keeps crashes away from the host."""
    if cores.state is CoreState.FILE:
        return None
    container = tier is Tier.CONTAINER
    shown = printable(cores.pattern, max_chars=80)
    if cores.state is CoreState.PROGRAM and not cores.can_limit:
        crash = "a crash in a cell" if container else "a crash of what holds the cell"
        return CoresWarning(
            f"{crash} starts a program of this host as its root ({shown}): a hard limit of core "
            f"dumps "
            "of 0 can't be made 1, at which the kernel starts none",
            f"start Belljar with `ulimit -Hc` of 1 or more; or {_HINT}",
        )
    if not container:
        return None
    if cores.state is CoreState.SERVER:
        return CoresWarning(
            f"a crash in a cell is handed to a server of this host ({shown}), and no limit keeps "
            f"the kernel from it",
            _HINT,
        )
    return CoresWarning(
        f"this host's kernel starts a program as its root when something crashes ({shown}); only a "
        "cell's limit of core dumps of 1 keeps it from that, and only its system call profile "
        "keeps that limit",
        _HINT,
    )
