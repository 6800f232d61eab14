"""The control groups of a range's own processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from belljar.isolation import cgroup
from belljar.network.owner.processes import end_groups
from belljar.plan.jail import GroupLimits

LIMITS = GroupLimits(memory_max_bytes=1 << 20, cpu_quota_percent=50, processes=3)
RANGE = "r-0123456789ab"


def test_limits_are_set_before_a_process_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their paths are known first; then they are made and limited; processes join; counts are
    returned; empty ones are removed."""
    (tmp_path / "cgroup.subtree_control").write_text("cpu memory pids")
    parents = dict.fromkeys(("cpu", "memory", "pids"), tmp_path)
    monkeypatch.setattr(cgroup, "_host_parents", lambda: (parents, True))
    groups = cgroup.plan_groups(RANGE, parents)
    (group,) = groups.directories
    assert group.name == f"cell-{RANGE}"
    assert not group.exists()
    cgroup.make_groups(groups, LIMITS)
    limits = {name: (group / name).read_text() for name in ("memory.max", "cpu.max", "pids.max")}
    assert limits == {"memory.max": "1048576", "cpu.max": "50000 100000", "pids.max": "3"}
    cgroup.join(groups, 77)
    assert (group / "cgroup.procs").read_text() == "77"
    (group / "memory.events").write_text("oom_kill 2\n")
    (group / "memory.peak").write_text("4096\n")
    assert end_groups(groups) == {"oom_kills": 2, "memory_peak_bytes": 4096}
    assert group.exists()  # a process is in it
    for file in group.iterdir():
        file.unlink()
    end_groups(groups)
    assert not group.exists()
