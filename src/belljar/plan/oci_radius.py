"""The bounds of the container and gVisor tiers in words: the most a cell can take, and what holds
it there.
"""

from __future__ import annotations

from belljar.plan.jail import JailLimits
from belljar.plan.model import Bound
from belljar.plan.oci import MAX_TERMINALS, OPEN_FILES, OciShape
from belljar.plan.radius import HOST_DISK, HOST_GROUP, time_and_output
from belljar.policy import Resources, Tier
from belljar.units import format_size


def bounds(
    tier: Tier, resources: Resources, shape: OciShape, jail: JailLimits
) -> tuple[Bound, ...]:
    """Everything a cell may consume, each with what holds it there: the host first of all."""
    return (
        Bound(
            what="processors",
            most=str(resources.cpus),
            enforced_by=(f"{HOST_GROUP} ({jail.cpu_quota_percent}% of one)",),
        ),
        Bound(
            what="memory and files together",
            most=f"{resources.memory_sum(jail.memory_max_bytes)}{_of_processes(tier)}",
            enforced_by=(HOST_GROUP,),
        ),
        Bound(
            what="files it writes",
            most=f"{format_size(shape.disk_bytes)}, {shape.disk_inodes:,} files{_own_tmp(tier)}",
            enforced_by=("the jail's tmpfs (bytes and inodes)", HOST_GROUP),
        ),
        HOST_DISK,
        _processes(tier, resources, jail),
        Bound(
            what="open files of one process",
            most=f"{_open_files(shape):,}",
            enforced_by=("RLIMIT_NOFILE" if tier is Tier.CONTAINER else "gVisor's RLIMIT_NOFILE",),
        ),
        *(
            (Bound(what="terminals", most=str(MAX_TERMINALS), enforced_by=("the cell's devpts",)),)
            if tier is Tier.CONTAINER
            else ()
        ),
        *time_and_output(resources, agent="the agent"),
    )


def _processes(tier: Tier, resources: Resources, jail: JailLimits) -> Bound:
    if tier is Tier.GVISOR:
        what, most = (
            "processes on this host",
            (
                f"{jail.processes}: gVisor's own, and some for each of {resources.processes} in "
                f"the "
                f"cell"
            ),
        )
    else:
        what, most = (
            "processes",
            f"{jail.processes}: {resources.processes}, and what holds the cell",
        )
    return Bound(what=what, most=most, enforced_by=(HOST_GROUP,))


def _of_processes(tier: Tier) -> str:
    """Measured: 0.7 MiB for a sleeping `sleep`, 4.2 for a Python that sleeps, 5.8 for a fork of
    one.
    """
    return (
        "; a sleeping Python takes 4 to 6 MiB of it, and to use it up ends the cell"
        if tier is Tier.GVISOR
        else ""
    )


def _own_tmp(tier: Tier) -> str:
    """gVisor puts a file system of its own where an image has no /tmp; where it has one, that is in
    the layer.
    """
    return "; as much again in /tmp if the image has none" if tier is Tier.GVISOR else ""


def _open_files(shape: OciShape) -> int:
    limits = {limit["type"]: int(limit["hard"]) for limit in shape.config["process"]["rlimits"]}
    return limits.get("RLIMIT_NOFILE", OPEN_FILES[1])
