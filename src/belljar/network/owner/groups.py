"""The control groups of a range's own processes: made before there is any, removed when all have
ended. Blocking.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from belljar.isolation import cgroup
from belljar.plan.jail import GroupLimits
from belljar.process import ProcessId


class RangeGroups:
    """One group in each hierarchy that the plan counts on; none where the host hands out none."""

    def __init__(self, range_id: str, controllers: Iterable[str], limits: GroupLimits) -> None:
        """Decides where they will be: `directories` belong into the journal before `make`.

        Raises `HostError`.
        """
        self._groups = cgroup.plan_groups(range_id, controllers)
        self._limits = limits
        self.directories: tuple[Path, ...] = self._groups.directories

    def make(self) -> None:
        """Raises `HostError`; `end` removes what was made by then."""
        cgroup.make_groups(self._groups, self._limits)

    def join(self, *processes: ProcessId) -> None:
        """Put processes into them, and all that they start from now on. Raises `HostError`."""
        for process in processes:
            cgroup.join(self._groups, process.pid)

    def end(self) -> dict[str, int]:
        """Remove those that are empty; what the memory group counted.

        What is left is found by the look for survivors.
        """
        counts = {}
        if (memory := self._groups.paths.get("memory")) is not None:
            counts["oom_kills"] = cgroup.out_of_memory_kills(memory)
            counts["memory_peak_bytes"] = cgroup.memory_peak_bytes(memory)
        cgroup.remove_empty(self._groups)
        return counts
