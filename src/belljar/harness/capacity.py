"""How many cells this host should run at once.

Pure, but for the one function that reads the host.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

RESERVED_BYTES: Final = 1 << 30
"""Left to the host itself."""
OVERHEAD_BYTES: Final = 192 << 20
"""A VMM's own memory and the guest kernel's, beside what the policy gives the workload."""


def cells_at_once(*, cpus: int, available_bytes: int, memory_bytes: int, disk_bytes: int) -> int:
    """Twice the processors, but never more than fit into memory if each cell used all it may.

    At least 1.
    """
    each = memory_bytes + disk_bytes + OVERHEAD_BYTES
    return max(1, min(2 * cpus, (available_bytes - RESERVED_BYTES) // each))


def room_for_one_more(
    *, available_bytes: int, memory_bytes: int, disk_bytes: int, in_use: int
) -> bool:
    """Whether one more cell fits into memory beside those in use, if each of them still comes to
    use all it may.
    """
    each = memory_bytes + disk_bytes + OVERHEAD_BYTES
    return available_bytes - RESERVED_BYTES >= (in_use + 1) * each


def host_cpus_and_memory() -> tuple[int, int]:
    """Processors this process may use, and bytes of memory that are available now (0 when the
    kernel does not say).
    """
    cpus = len(os.sched_getaffinity(0))
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return cpus, int(line.split()[1]) << 10
    return cpus, 0
