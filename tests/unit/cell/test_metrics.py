"""What a cell uses: the host's count where there is one, else the guest's word, marked as such."""

from __future__ import annotations

import pytest

from belljar.cell.health import join_metrics
from belljar.channel.trees import Usage
from belljar.isolation.cgroup import HostUsage
from belljar.policy.limits import Resources

LIMITS = Resources(memory_bytes=100, disk_bytes=200, processes=30)
GUEST = Usage(
    cpu_us=2_500_000,
    memory_bytes=50,
    memory_limit_bytes=100,
    disk_bytes=0,
    disk_limit_bytes=200,
    files=1,
    processes=0,
    processes_limit=30,
)


@pytest.mark.promise("4.6")
def test_the_host_is_believed_first() -> None:
    """A count of the host's is never replaced by the guest's; what only the guest tells is
    marked."""
    host = HostUsage(uptime_s=1.0, cpu_s=3.0, memory_bytes=70, memory_limit_bytes=400)
    found = join_metrics(host, GUEST, LIMITS)
    assert (found.cpu_s, found.memory_bytes, found.memory_limit_bytes) == (3.0, 70, 400)
    assert (found.disk_bytes, found.processes) == (0, 0)
    assert found.guest_reported == {"disk_bytes", "processes"}
    assert (found.disk_limit_bytes, found.processes_limit) == (200, 30)


def test_without_control_groups_the_guest_tells() -> None:
    """A host that counts nothing leaves the guest's word; what neither tells is None."""
    found = join_metrics(HostUsage(uptime_s=1.0), GUEST, LIMITS)
    assert (found.cpu_s, found.memory_bytes, found.memory_limit_bytes) == (2.5, 50, 100)
    silent = Usage(**dict.fromkeys(Usage.__dataclass_fields__, 0))
    nothing = join_metrics(HostUsage(uptime_s=1.0), silent, LIMITS)
    assert (nothing.cpu_s, nothing.disk_bytes, nothing.processes) == (None, None, None)
    assert nothing.guest_reported == frozenset()
