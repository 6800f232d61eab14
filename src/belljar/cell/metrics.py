"""What a cell uses of its limits: the host's counts where the host can count, else the guest's
word.

Pure: two reports in, one result out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from belljar.channel.trees import Usage
from belljar.dataclass import dataclass
from belljar.events import JsonValue
from belljar.isolation.sandbox import HostUsage
from belljar.policy import Resources


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What a cell uses now, and may use.

    Attributes:
        cpu_s: seconds of processor time since it was made. memory_bytes: now; of a virtual machine
            the host counts the whole machine, and its limit is that of the whole.
        disk_bytes: what its writable file system holds. processes: and threads, of the workload.
        uptime_s: since it was ready for its first operation, by the host's clock.
        guest_reported: names of the fields that are the guest's own word; a hostile guest may lie.
            The others were counted by the host. A field that neither can tell is None.
    """

    cpu_s: float | None
    memory_bytes: int | None
    memory_limit_bytes: int
    disk_bytes: int | None
    disk_limit_bytes: int
    processes: int | None
    processes_limit: int
    uptime_s: float
    guest_reported: frozenset[str]

    def as_data(self) -> Mapping[str, JsonValue]:
        """As the ledger has it."""
        return {**asdict(self), "guest_reported": sorted(self.guest_reported)}


def join_metrics(host: HostUsage, guest: Usage, limits: Resources) -> Metrics:
    """The host's counts, and where it has none the guest's; a guest's 0 is no count."""
    words: dict[str, float | int | None] = {
        "cpu_s": guest.cpu_us / 1e6 if guest.cpu_us else None,
        "memory_bytes": guest.memory_bytes or None,
        "disk_bytes": guest.disk_bytes if guest.disk_limit_bytes else None,
        "processes": guest.processes if guest.processes_limit else None,
    }
    counted = {name: getattr(host, name) for name in words}
    told = frozenset(name for name in words if counted[name] is None and words[name] is not None)
    found = {name: words[name] if name in told else counted[name] for name in words}
    return Metrics(
        **found,  # type: ignore[arg-type]
        memory_limit_bytes=host.memory_limit_bytes or limits.memory_bytes,
        disk_limit_bytes=limits.disk_bytes,
        processes_limit=limits.processes,
        uptime_s=host.uptime_s,
        guest_reported=told,
    )
