"""What stands in a tier's way on this host, each with its mend. Used to refuse a plan, and by `belljar doctor` to say so beforehand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from belljar.errors import HostError
from belljar.host import HostFacts, KvmState
from belljar.plan.jail import vmm_memory_max_bytes
from belljar.plan.qemu import VmShape
from belljar.policy import Resources
from belljar.units import format_size


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """One reason why it can't be done here, where that shows, and what to do about it."""

    what: str
    where: str
    mend: str

    def error(self) -> HostError:
        """As the error that refuses."""
        return HostError(self.what, where=self.where, mend=self.mend)


def microvm_obstacles(facts: HostFacts) -> tuple[Obstacle, ...]:
    """Why no microVM at all can run here; empty when one can."""
    return tuple(_microvm(facts))


def _microvm(facts: HostFacts) -> Iterator[Obstacle]:
    if facts.arch != "x86_64":
        yield Obstacle(
            what=f"the microvm tier runs on x86_64 so far, and this is {facts.arch}",
            where="host",
            mend="use an x86_64 host; nothing weaker is used instead",
        )
    for tool in facts.tools:
        if tool.needed and not tool.ok:
            what = (
                f"{tool.name} {tool.version} is too old: {tool.needed_min} is needed"
                if tool.path and tool.version
                else f"{tool.name} is missing"
            )
            unknown = f"{tool.path} doesn't say its version; {tool.needed_min} or newer is needed"
            yield Obstacle(what=unknown if tool.path and not tool.version else what, where="host", mend=tool.mend)
    if not facts.userns.available:
        yield Obstacle(
            what=f"the jail needs user namespaces, which this user can't make: {facts.userns.reason}",
            where="host",
            mend="allow user namespaces as said, or run as root",
        )


def hardware_obstacle(facts: HostFacts) -> Obstacle | None:
    """Why risk `critical` can't run here; None when hardware virtualisation is proven."""
    if facts.kvm.state is KvmState.PROVEN:
        return None
    mends = {
        KvmState.UNPROVEN: "run `belljar doctor`, which boots a guest under KVM to prove it",
        KvmState.REFUTED: "use a host whose KVM really boots a guest; `belljar doctor --prove-again` tries again",
        KvmState.ABSENT: "use a host with hardware virtualisation that this user may use",
    }
    return Obstacle(
        what=f"risk `critical` demands hardware virtualisation, which is {facts.kvm.state.value} here: {facts.kvm.reason}",
        where="risk",
        mend=f"{mends[facts.kvm.state]}; or lower `risk` if the risk is lower",
    )


def size_obstacles(resources: Resources, shape: VmShape, facts: HostFacts) -> tuple[Obstacle, ...]:
    """Why a cell of this size doesn't fit this host; empty when it does."""
    return tuple(_sizes(resources, shape, facts))


def _sizes(resources: Resources, shape: VmShape, facts: HostFacts) -> Iterator[Obstacle]:
    if resources.cpus > facts.cpus:
        yield Obstacle(
            what=f"{resources.cpus} processors are asked for, and this host has {facts.cpus}",
            where="resources.cpus",
            mend=f"write `cpus: {facts.cpus}` or less, or use a larger host",
        )
    most_bytes, has_bytes = vmm_memory_max_bytes(shape), facts.memory_total_mib << 20
    if most_bytes > has_bytes:
        parts = f"memory {format_size(resources.memory_bytes)} + disk {format_size(resources.disk_bytes)} + what a VM needs besides"
        yield Obstacle(
            what=f"a cell of this policy may take {format_size(most_bytes)} ({parts}), and this host has {format_size(has_bytes)}",
            where="resources.memory",
            mend="lower `memory` or `disk` (all a cell writes is held in memory), or use a larger host",
        )
